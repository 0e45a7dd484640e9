"""Acceptance by draft position, and what it must be for a depth to pay.

Conditional: P(draft j accepted | drafts 1..j-1 accepted), over the drafts that were judged.
Unconditional: P(draft j accepted), over the drafts that were verified. Drafts after an accepted end of
sequence belong to neither. Intervals are Wilson's (1927) score intervals at 95 %.

Break-even (spec of the verdict): the uniform acceptance a with Σ_{j=0..d} a^j = cost(d) / cost(0).
Measured acceptance is compared with it on the same scale: the uniform a whose Σ_{j=0..d} a^j is the
expected number of committed tokens, 1 + Σ_{k=1..d} Π_{i≤k} conditional(i).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from mtpx.round import SlotRound

CONFIDENCE = 0.95


class Proportion(msgspec.Struct, frozen=True):
    """`successes` of `trials`, their rate, and its Wilson interval at 95 %."""

    rate: float
    low: float
    high: float
    successes: int
    trials: int


class PositionAcceptance(msgspec.Struct, frozen=True):
    """Acceptance at draft `position` (from 1); absent where nothing was judged or verified there."""

    position: int
    conditional: Proportion | None
    unconditional: Proportion | None


class OutcomesTally:
    """What became of drafts, one sequence's round at a time. There are few different outcomes and many
    rounds: they are counted here, and positions are gone through at the end."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int, int], int] = {}

    def add(self, width: int, slot: SlotRound) -> None:
        """Count one slot whose numbers are consistent (0 ≤ accepted ≤ verified)."""
        accepted, verified = slot.accepted, slot.verified
        judged = slot.judged if slot.ended else min(accepted + 1, verified)
        key = (width, verified, judged, accepted)
        self._seen[key] = self._seen.get(key, 0) + 1

    def at(self, width: int) -> dict[tuple[int, int, int], int]:
        """How often each (verified, judged, accepted) was met at this width."""
        return {key[1:]: n for key, n in self._seen.items() if key[0] == width}

    def positions(self) -> list[PositionAcceptance]:
        """Acceptance by position, over all widths."""
        deepest = max((verified for _, verified, _, _ in self._seen), default=0)
        known_at, judged_at, accepted_at = ([0] * deepest for _ in range(3))
        for (_, verified, judged, accepted), n in self._seen.items():
            # After an accepted end the fate of later drafts is unknown, after a rejection it is known.
            known = verified if judged > accepted else judged
            for counts, upto in ((known_at, known), (judged_at, judged), (accepted_at, accepted)):
                for j in range(upto):
                    counts[j] += n
        return [
            PositionAcceptance(j + 1, proportion(accepted, judged), proportion(accepted, verified))
            for j, (accepted, judged, verified) in enumerate(
                zip(accepted_at, judged_at, known_at, strict=True)
            )
        ]


def proportion(successes: int, trials: int) -> Proportion | None:
    """`successes` / `trials` with its Wilson interval; `None` without trials."""
    if not trials:
        return None
    from scipy.stats import binomtest

    interval = binomtest(successes, trials).proportion_ci(CONFIDENCE, method="wilson")
    return Proportion(
        successes / trials, float(interval.low), float(interval.high), successes, trials
    )


def committed_tokens(positions: Sequence[PositionAcceptance], depth: int) -> float | None:
    """Expected committed tokens of a round at `depth`: 1 + Σ_{k≤depth} Π_{i≤k} conditional(i).

    `None` when a position up to `depth` was never judged, unless one before it never passed.
    """
    total = reach = 1.0
    for j in range(depth):
        if reach == 0.0:
            break
        conditional = positions[j].conditional if j < len(positions) else None
        if conditional is None:
            return None
        reach *= conditional.rate
        total += reach
    return total


def uniform_acceptance(tokens: float, depth: int) -> float:
    """The a ≥ 0 with Σ_{j=0..depth} a^j = `tokens`; 0 where `tokens` ≤ 1. `depth` is at least 1.

    With `tokens` = cost(depth) / cost(0) it is the break-even acceptance; above 1 no acceptance is
    enough.
    """
    if not math.isfinite(tokens) or depth < 1:
        raise ValueError(f"needs finite tokens and a depth of at least 1, got {tokens}, {depth}")
    if tokens <= 1.0:
        return 0.0
    from scipy.optimize import brentq

    # Σ a^j ≥ 1 + a, so a = tokens is past the root. Horner's form may overflow there at great
    # depths: inf has the right sign, and is only made finite for brentq.
    def excess(a: float) -> float:
        value = 1.0
        for _ in range(depth):
            value = 1.0 + a * value
        return min(value - tokens, 1e300)

    return float(brentq(excess, 0.0, tokens, xtol=1e-12))
