"""A trace's summary as one HTML page: offline, without scripts, light or dark, for screen and paper.

Every number on it is a `<data>` element that names its place in the summary (a JSON pointer); the summary
itself is in the page, so that a page is its own evidence.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup, escape

from mtpx.bench.fastest import held_to, leading
from mtpx.bench.verdict import Verdict
from mtpx.errors import TraceError
from mtpx.trace.summary import RunSummary, Summary

MOST_REQUESTS = 2000
"""More requests than this are left out of the data in the page, which says so: they would fill it."""


def check_writable(path: Path) -> None:
    """Raises `TraceError` if a page cannot be put at `path`. Leaves what is there as it is."""
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        parent = path.parent
        if not parent.is_dir():
            raise NotADirectoryError(0, f"there is no directory {parent}")
        if not os.access(path if path.exists() else parent, os.W_OK):
            raise PermissionError(0, "permission denied")
    except OSError as error:
        raise TraceError(
            f"the page cannot be written to {path}: {error.strerror}; name another file"
        ) from None


def write_page(path: Path, summary: Summary) -> None:
    """The page of `summary`, at `path`. Raises `TraceError` if it cannot be written."""
    check_writable(path)
    text = page(summary)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TraceError(
            f"the page cannot be written to {path}: {error.strerror or error}; name another file"
        ) from error


def page(summary: Summary) -> str:
    """The whole page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from mtpx.trace.pictures import PICTURES

    environment = Environment(
        loader=PackageLoader("mtpx.trace", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    data = msgspec.to_builtins(summary)
    runs = [
        _RunPage(data, f"/files/{i}/runs/{j}", file.path, run)
        for i, file in enumerate(summary.files)
        for j, run in enumerate(file.runs)
    ]
    trimmed = 0
    for file in data["files"]:
        for run in file["runs"]:
            if len(run["requests"]) > MOST_REQUESTS:
                trimmed += len(run["requests"]) - MOST_REQUESTS
                del run["requests"][MOST_REQUESTS:]
    # `<` would let a name in a trace end the element.
    embedded = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    return environment.get_template("page.html").render(
        summary=summary,
        runs=runs,
        pictures=PICTURES,
        held_to=held_to,
        embedded=Markup(embedded),
        trimmed=trimmed,
        several=len(runs) > 1,
    )


class _Card(NamedTuple):
    """An arm's verdict against its own precision, the one of its two that is told first, and the other one;
    each with its place in the run."""

    own: Verdict
    at: str
    lead: Verdict
    lead_at: str
    other: Verdict | None = None
    other_at: str = ""


class _RunPage:
    """One run as the template sees it: `run`, and `num` for numbers by their place in it."""

    def __init__(self, data: dict[str, Any], at: str, path: str, run: RunSummary) -> None:
        self.run, self.at, self.path = run, at, path
        self.notes: list[str] = []
        self._data = _found(data, at)

    def cards(self) -> list[_Card]:
        """The verdicts, each with the one against plain decode in the fastest precision, if there is one."""
        places = {v.arm: f"/against_fastest/{i}" for i, v in enumerate(self.run.against_fastest)}
        out: list[_Card] = []
        for i, own in enumerate(self.run.verdicts):
            at, fastest = f"/verdicts/{i}", self.run.fastest(own.arm)
            if fastest is None:
                out.append(_Card(own, at, own, at))
            elif leading(own, fastest) is own:
                out.append(_Card(own, at, own, at, fastest, places[own.arm]))
            else:
                out.append(_Card(own, at, fastest, places[own.arm], own, at))
        return out

    def picture(self, make: Any) -> Markup | None:
        found: Markup | None = make(self.run, self.at)
        return found

    def num(self, place: str, form: str = "number", reason: str = "not recorded") -> Markup:
        """The number at `place` (a pointer within the run), or a dash and the number of its reason."""
        value = _found(self._data, place)
        if value is None:
            return self.dash(reason)
        return Markup(
            f'<data value="{value!r}" data-at="{escape(self.at + place)}">{FORMS[form](value)}</data>'
        )

    def dash(self, reason: str) -> Markup:
        if reason not in self.notes:
            self.notes.append(reason)
        n = self.notes.index(reason) + 1
        anchor = f"{self.at.replace('/', '-')}-note-{n}"
        return Markup(f'<span class="absent">–<a href="#{anchor}">[{n}]</a></span>')

    def noted(self) -> list[tuple[str, str]]:
        """(anchor, reason) of every dash so far."""
        prefix = self.at.replace("/", "-")
        return [(f"{prefix}-note-{i}", reason) for i, reason in enumerate(self.notes, 1)]


def _found(data: Any, pointer: str) -> Any:
    """What is at a JSON pointer; `None` where the way ends in what is absent."""
    for step in pointer.split("/")[1:]:
        if data is None:
            return None
        data = data[int(step)] if isinstance(data, list) else data.get(step)
    return data


def _number(value: float) -> str:
    """About three significant digits, as in the terminal."""
    size = abs(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    if size >= 1e9 or 0 < size < 0.001:
        return f"{value:.2e}"
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 4
    return f"{value:,.{decimals}f}".replace(",", " ")


FORMS: dict[str, Callable[[Any], str]] = {
    "number": _number,
    "ratio": lambda value: f"{value:.3f}",
    "percent": lambda value: f"{100 * value:.1f} %",
    "points": lambda value: f"{100 * value:+.1f} pts",
    "count": lambda value: f"{value:,}".replace(",", " "),
    "signed": lambda value: f"{100 * value:+.1f} %",
}
"""How numbers are written, by what they are."""
