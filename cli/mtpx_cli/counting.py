"""Progress of counted work, with about how long it still takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Bar = Callable[[int, int, str], None]
"""(done, total, what runs now). A new total is a new piece of work."""

Clock = Callable[[], float]

FEWEST_DONE = 2
"""Pieces that must be done before they say how long the others take: the first ones warm up."""


class TimeLeft:
    """Seconds left, from what a piece took so far; `clock` in seconds."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._total = self._first = 0
        self._began = 0.0

    def __call__(self, done: int, total: int) -> float | None:
        """`None` while too little is done to tell."""
        now = self._clock()
        if total != self._total or done < self._first:
            self._total, self._first, self._began = total, done, now
        counted = done - self._first
        if counted < FEWEST_DONE or done >= total:
            return None
        return (now - self._began) / counted * (total - done)


@contextmanager
def counting(quiet: bool) -> Iterator[Bar]:
    """A bar on a terminal, a line every tenth of the way elsewhere, nothing when quiet; all on standard
    error."""
    from mtpx_cli.bars import counted_bar
    from mtpx_cli.bench_view import time_left
    from mtpx_cli.draw import clean
    from mtpx_cli.terminal import is_terminal, note

    left = TimeLeft()

    def told(done: int, total: int) -> str:
        seconds = left(done, total)
        return f"{done} of {total}" + ("" if seconds is None else f", {time_left(seconds)}")

    if quiet:
        yield lambda done, total, now: None
    elif not is_terminal(sys.stderr):
        last = (-1, -1)

        def line(done: int, total: int, now: str) -> None:
            nonlocal last
            said = told(done, total)
            at = (total, 10 * done // max(1, total))
            if at != last:
                last = at
                note(f"{clean(now)}: {said}")

        yield line
    else:
        bar = counted_bar("told")
        task = bar.add_task("loading", total=None, told="")
        with bar:
            yield lambda done, total, now: bar.update(
                task, description=clean(now), completed=done, total=total, told=told(done, total)
            )
