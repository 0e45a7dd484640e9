"""Why rounds ran at the depth they did, and what asking cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from mtpx.round import Decision


class Choice(msgspec.Struct, frozen=True):
    """The rounds a policy ran for one `reason` ("selected", "probe", "seed", "park", "resume", "fixed",
    "cap", or "" where it did not say).

    `extra_ms` is what they took beyond what the depth then selected would have taken for the same tokens,
    at this run's own costs and acceptances (negative: they were faster); absent for rounds that ran
    at the selected depth anyway, and where a cost or an acceptance is not known.
    """

    reason: str
    rounds: int
    tokens: int
    ms: float
    extra_ms: float | None


class Unsampled(msgspec.Struct, frozen=True):
    """Rounds whose time became no cost sample, by why ("transition", "compile", "stall", "resume", ...)."""

    excluded: str
    rounds: int
    ms: float


class ChoicesTally:
    """MTP rounds with a valid time."""

    def __init__(self) -> None:
        self._chosen: dict[tuple[str, int, int | None], list[float]] = {}
        self._excluded: Counter[str] = Counter()
        self._excluded_ms: Counter[str] = Counter()

    def add(
        self, decision: Decision | None, width: int, depth: int, tokens: int, ms: float
    ) -> None:
        reason = decision.reason if decision else ""
        selected = decision.selected if decision else None
        if selected == depth:
            selected = None
        key = (reason, width, selected)
        entry = self._chosen.get(key)
        if entry is None:
            entry = self._chosen[key] = [0, 0, 0.0]
        entry[0] += 1
        entry[1] += tokens
        entry[2] += ms
        if decision and decision.excluded:
            self._excluded[decision.excluded] += 1
            self._excluded_ms[decision.excluded] += ms  # type: ignore[assignment]

    def choices(self, rate: Callable[[int, int], float | None]) -> list[Choice]:
        """By time, longest first. `rate(width, depth)`: expected tokens per ms, if it is known."""
        found: dict[str, list[float]] = {}
        extra: dict[str, float | None] = {}
        for (reason, width, selected), (rounds, tokens, ms) in self._chosen.items():
            entry = found.setdefault(reason, [0, 0, 0.0])
            entry[0] += rounds
            entry[1] += tokens
            entry[2] += ms
            if selected is None:
                continue
            expected = rate(width, selected)
            before = extra.get(reason, 0.0)
            known = expected is not None and before is not None
            extra[reason] = before + ms - tokens / expected if known else None  # type: ignore[operator]
        return [
            Choice(reason, int(rounds), int(tokens), ms, extra.get(reason))
            for reason, (rounds, tokens, ms) in sorted(
                found.items(), key=lambda item: (-item[1][2], item[0])
            )
        ]

    def unsampled(self) -> list[Unsampled]:
        return [
            Unsampled(why, n, float(self._excluded_ms[why]))
            for why, n in sorted(self._excluded.items())
        ]
