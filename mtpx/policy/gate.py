"""Which rounds' times may become cost samples.

A round counts only if its shape is that of the round before: a changed batch shape costs extra. So
does compiling, and the first round after a pause has a past that nobody timed.
"""

from __future__ import annotations

from typing import Any

from mtpx.policy.cost import usable_ms
from mtpx.round import Round


class Gate:
    """Remembers the round before. `excluded(round)` is "" for a clean sample, else the reason:
    "resume", "compile", "transition", "clock" (the time is none)."""

    def __init__(self) -> None:
        self._last: Any = None
        self._index = -1
        self._requests: list[int] = []

    def excluded(self, round: Round) -> str:
        slots = round.slots
        if len(slots) == 1:
            slot = slots[0]
            shape: Any = (round.depth, slot.verified, slot.drafted, round.route)
        else:
            shape = (round.depth, [(s.verified, s.drafted) for s in slots], round.route)
        requests = [slot.request for slot in slots]
        resumed = round.index != self._index + 1 or requests != self._requests
        same = shape == self._last
        self._last, self._index, self._requests = shape, round.index, requests
        if not usable_ms(round.round_ms):
            return "clock"
        if resumed:
            return "resume"
        if round.compiled_now:
            return "compile"
        return "" if same else "transition"

    def forget(self) -> None:
        """The next round is the first of a stretch."""
        self._last = None
        self._index = -1
