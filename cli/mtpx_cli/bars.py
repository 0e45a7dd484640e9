"""The bar that counted work is shown with on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def counted_bar(field: str) -> Progress:
    """What runs now, a bar, and the task's `field`, on standard error; gone again at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn(f"{{task.fields[{field}]}}", markup=False),
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        transient=True,
    )
