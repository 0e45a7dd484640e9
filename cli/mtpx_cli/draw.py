"""Drawing numbers and tables: one style for every report.

Values that are not there are a dash with a numbered note; a number is never made up for one.
Text from traces and packs goes through `clean`, so that it cannot drive the terminal.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

WIDEST = 100
"""Columns. Wider lines are harder to read, and tables do not need them."""


LONGEST_CELL = len("inconclusive")
"""Characters of a number or a word that are never broken; ten columns of them would not fit."""


def console() -> Console:
    """Standard output: colours only on a terminal and without NO_COLOR, at most 100 columns."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would leave with status 1, which may mean something else

    # A terminal that cannot show "×" gets a question mark instead of a traceback.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    found = Plain(highlight=False, markup=False, emoji=False, soft_wrap=False)
    found.width = min(found.width, WIDEST)
    return found


def clean(text: object) -> str:
    """`text` on one line without control characters."""
    return "".join(c if c.isprintable() else " " for c in str(text)).strip()


def number(value: float) -> str:
    """About three significant digits, never an exponent below a billion."""
    size = abs(value)
    if size >= 1e9:
        return f"{value:.2g}"
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:,.{decimals}f}".replace(",", " ")


def percent(rate: float, decimals: int = 0) -> str:
    return f"{100 * rate:.{decimals}f} %"


class Notes:
    """Reasons for what is absent, numbered in the order they are first used."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def dash(self, reason: str) -> str:
        """A dash that refers to `reason`."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        return f"– [{self._reasons.index(reason) + 1}]"

    def show(self, value: float | None, reason: str, form: str = "number") -> str:
        """`value` as `form` ("number", "percent"), or a dash with its reason."""
        if value is None:
            return self.dash(reason)
        if not math.isfinite(value):
            return self.dash("not a finite number")
        return percent(value) if form == "percent" else number(value)

    def lines(self) -> list[str]:
        return [f"[{i}] {reason}" for i, reason in enumerate(self._reasons, 1)]


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, trailing: int = 0
) -> Table:
    """Columns of numbers to the right; the first `left` and the last `trailing` columns are words, to
    the left. Only words are broken over lines, and headings between them."""
    from rich.table import Table

    drawn = Table(
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
        pad_edge=False,
        show_header=any(columns),
    )
    for i, column in enumerate(columns):
        wordy = i < left or i >= len(columns) - trailing
        words = column.split() if wordy else [*column.split(), *(row[i] for row in rows)]
        drawn.add_column(
            column,
            justify="left" if wordy else "right",
            overflow="fold",
            vertical="top" if trailing or not any(columns) else "bottom",
            min_width=min(LONGEST_CELL, max(map(len, words), default=1)),
        )
    for row in rows:
        drawn.add_row(*row)
    return drawn


def heading(title: str) -> Text:
    from rich.text import Text

    return Text(f"\n{title}", style="bold")


def indented(*parts: RenderableType) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding

    return Padding(Group(*parts), (0, 0, 0, 2), expand=False)
