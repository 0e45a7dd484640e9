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
        self._index = -1
        self._requests: Any = None
        self._verified: Any = -1
        self._drafted: Any = -1
        self._route: Any = None

    def excluded(self, round: Round) -> str:
        slots, index, route = round.slots, round.index, round.route
        requests: Any
        verified: Any
        drafted: Any
        if len(slots) == 1:
            slot = slots[0]
            requests, verified, drafted = slot.request, slot.verified, slot.drafted
        else:
            requests = [slot.request for slot in slots]
            verified = [slot.verified for slot in slots]
            drafted = [slot.drafted for slot in slots]
        resumed = index != self._index + 1 or requests != self._requests
        same = (
            verified == self._verified
            and drafted == self._drafted
            and (route is self._route or route == self._route)
        )
        self._index, self._requests = index, requests
        self._verified, self._drafted, self._route = verified, drafted, route
        if not usable_ms(round.round_ms):
            return "clock"
        if resumed:
            return "resume"
        if round.compiled_now:
            return "compile"
        return "" if same else "transition"

    def forget(self) -> None:
        """The next round is the first of a stretch."""
        self._verified = None
        self._index = -1
