"""Where the time went: reading prompts, drafting, verifying, the host, compiling."""

from __future__ import annotations

import msgspec

from mtpx.round import Round


class TimePart(msgspec.Struct, frozen=True):
    """Time of one kind in requests of one mode, in ms, and its share of all that mode's time.

    `part`: "prefill"; "draft", "verify", "host" where a round's parts were timed apart, "rest" what is
    left of such rounds; "rounds" those not timed apart; "compiling" whole rounds that compiled something.
    """

    mode: str
    part: str
    ms: float
    share: float


_PARTS = ("prefill", "draft", "verify", "host", "rest", "rounds", "compiling")


class SpentTally:
    def __init__(self) -> None:
        self._ms: dict[str, dict[str, float]] = {}

    def prefill(self, mode: str, ms: float) -> None:
        self._of(mode)["prefill"] += ms

    def add(self, mode: str, round: Round) -> None:
        """A round whose times are valid."""
        parts = self._ms.get(mode) or self._of(mode)
        if round.compiled_now:
            parts["compiling"] += round.round_ms
            return
        draft, verify = round.draft_ms, round.verify_ms
        if draft is None and verify is None:
            parts["rounds"] += round.round_ms
            return
        rest = round.round_ms
        for name, ms in (("draft", draft), ("verify", verify), ("host", round.host_ms)):
            if ms is not None:
                parts[name] += ms
                rest -= ms
        parts["rest"] += max(0.0, rest)

    def _of(self, mode: str) -> dict[str, float]:
        return self._ms.setdefault(mode, dict.fromkeys(_PARTS, 0.0))

    def parts(self) -> list[TimePart]:
        """By mode, plain first; parts that took no time are left out."""
        out: list[TimePart] = []
        for mode in sorted(self._ms, key=lambda mode: (mode != "plain", mode)):
            total = sum(self._ms[mode].values())
            out += [
                TimePart(mode, part, ms, ms / total) for part, ms in self._ms[mode].items() if ms
            ]
        return out
