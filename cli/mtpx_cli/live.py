"""The status line under an answer that is being written, and the terminal while nobody may type.

The line is drawn below the cursor and erased before the next text, so that it never becomes part of
what scrolls away. The cursor is saved and restored by the terminal: how wide it takes a character to
be does not matter.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from mtpx_cli.flow import Flow
from mtpx_cli.terminal import say

if TYPE_CHECKING:
    from mtpx.round import Round

REDRAW_S = 0.1
"""Between two looks of the status line: faster than anyone reads, and a redraw costs some 50 µs."""

WINDOW_S = 2.0
"""What "now" is in tokens/s now."""

NARROWEST = 24
"""Columns below which a status line would be noise."""

# Make sure of a line below without leaving the column (IND, CUU), save the cursor, go there.
_BELOW = "\x1bD\x1b[A\x1b7\x1b[B\r\x1b[0;2m"
_BACK = "\x1b[0m\x1b[K\x1b8"
_ERASE = "\x1b[J"


def columns() -> int:
    """Width of the terminal now."""
    try:
        return max(1, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):
        return 80


class Writer:
    """Writes the text of one answer, and under it a status line if `live`.

    `styled`: whether bold and colours may be used. Off a terminal (`flowing` false) text goes out as
    it is.
    """

    def __init__(self, *, flowing: bool, styled: bool, live: bool) -> None:
        self._flow = Flow(columns, styled=styled) if flowing else None
        self._live = live and flowing
        self._drawn = False
        self._due = 0.0
        self._last = "\n"

    def text(self, piece: str) -> None:
        out = piece if self._flow is None else self._flow.push(piece)
        if out:
            self._write(out)

    def status(self, line: Callable[[], str]) -> None:
        """Show `line()`, unless it was shown a moment ago."""
        now = time.monotonic()
        if not self._live or now < self._due or (self._flow and self._flow.at_edge):
            return
        width = columns()
        if width < NARROWEST:
            return
        self._due, self._drawn = now + REDRAW_S, True
        say(_BELOW + line()[: width - 1] + _BACK, end="")

    def finish(self) -> None:
        """Write what was held back; the cursor is then at the start of a line."""
        rest = "" if self._flow is None else self._flow.finish()
        self._write(rest)
        if not self._last.endswith("\n"):
            self._write("\n")

    def _write(self, out: str) -> None:
        drawn, self._drawn = self._drawn, False
        if drawn:
            self._due = 0.0  # drawn again with the next round: it was erased for the text
        if out or drawn:
            say((_ERASE if drawn else "") + out, end="")
        self._last = out or self._last


class Speed:
    """Tokens/s over the last moments."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, tokens: int) -> None:
        now = time.monotonic()
        self._seen.append((now, tokens))
        while now - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    @property
    def now(self) -> float | None:
        """`None` until there are two rounds to measure between."""
        if len(self._seen) < 2:
            return None
        took = self._seen[-1][0] - self._seen[0][0]
        counted = sum(n for _, n in self._seen) - self._seen[0][1]
        return counted / took if took > 0 else None


class Status:
    """What the status line says, from the rounds it has seen."""

    def __init__(self, context: int) -> None:
        self._context = context
        self._speed = Speed()
        self._rounds = self._committed = self._position = self._depth = 0

    def see(self, round: Round) -> None:
        slot = round.slots[0]
        self._rounds += 1
        self._committed += slot.committed
        self._position = slot.position + slot.committed
        self._depth = round.depth
        self._speed.add(slot.committed)

    def line(self) -> str:
        speed = self._speed.now
        per_round = self._committed / self._rounds if self._rounds else 0.0
        parts = [
            "- tok/s" if speed is None else f"{speed:.1f} tok/s",
            f"depth {self._depth}",
            f"{per_round:.2f} tokens a round",
            f"context {self._position} of {self._context}",
        ]
        return ", ".join(parts)


class Stop:
    """Whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        # A second one is for a device that does not come back.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def ctrl_c_stops() -> Iterator[Stop]:
    """Ctrl-C sets a flag instead of raising wherever it comes; pressed twice it raises."""
    stop = Stop()
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def silent_keys() -> Iterator[None]:
    """Keys are not echoed into the answer; they wait for the next prompt, pastes as pastes."""
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (termios.error, OSError, ValueError, AttributeError):
        yield
        return
    quiet = termios.tcgetattr(fd)
    quiet[0] &= ~termios.ICRNL
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[3] |= termios.NOFLSH  # Ctrl-C stops the answer and leaves what was typed
    termios.tcsetattr(fd, termios.TCSANOW, quiet)
    say("\x1b[?2004h", end="")
    try:
        yield
    finally:
        say("\x1b[?2004l", end="")
        with suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSANOW, before)
