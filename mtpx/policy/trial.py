"""Trying another depth: which one is worth asking about, and for how long.

A depth is worth a trial if its optimistic value beats the selected depth's: committed tokens `Z` deviations
up, and a cost that is the measured one `Z` deviations down, or, where none was measured, between the
straight line and the cheapest round seen anywhere, nearer to the latter with time. The two err
independently, so their deviations add in squares; a depth that takes luck in both is not tried.
Among those that are, the most gain for what it is expected to lose.

Credit limits what trials lose. A depth that was never timed may be tried without: one round tells its
cost for good. It pays if the expected improvement (Mockus 1975) over as many rounds as have passed is
more than the trial loses: what has gone on so long goes on, and a dip that is missed is missed all the while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mtpx.policy.acceptance import expected_tokens, optimistic_tokens
from mtpx.policy.cost import MeasuredCosts, interpolate
from mtpx.policy.drafting import TRANSITION

Z = 1.3
"""Standard deviations of optimism: one true value in ten lies further out."""

WORTHWHILE = 1.01
"""Optimistic value, relative to the selected depth's, below which nothing is tried."""

TRUST, TRUST_HALVES, LEAST_TRUST = 0.35, 500.0, 0.1
"""How much of the straight line over the cheapest round is believed of a depth that was never timed: so much,
and half of that every so many rounds, so that a dip between two timed depths is found in time."""

SHORTEST, LONGEST = 2, 32
"""Rounds of a trial: a change of shape and a sample at least."""

RECENT = 200
"""Rounds within which a depth that chains reach was timed lately enough not to be tried."""


class Trial:
    """A few rounds at another depth: `SHORTEST` and a clean sample, then as many as lose what going there
    and back lost (`moving`, in rounds), so that a near-tie is looked at long enough; on while they
    deliver.

    The length is fixed as soon as the cost is known: a trial that stopped when its luck was bad
    would leave every rate too low."""

    __slots__ = (
        "depth",
        "known",
        "length",
        "loss",
        "moving",
        "over",
        "reason",
        "rounds",
        "sampled",
        "value",
    )

    def __init__(self, depth: int, *, known: bool, loss: float, moving: float, value: float):
        self.depth = depth
        self.known = known
        self.reason = "probe" if known else "seed"
        self.loss = loss
        self.moving = moving
        self.value = value
        self.length = 0
        self.rounds = 0
        self.sampled = False
        self.over = False

    def plan(self, lost: float) -> None:
        """Fix the length: a round is believed to lose `lost` rounds of the selected depth."""
        self.length = min(LONGEST, max(SHORTEST, int(self.moving / max(lost, 1e-3))))

    def known_now(self, costs: MeasuredCosts, rates: Sequence[float], selected: int) -> None:
        """Its depth was timed: fix the length by what it costs and by `rates` (k,), of both depths."""
        ms, own_ms = costs.cost(self.depth), costs.cost(selected)
        if ms is not None and own_ms is not None:
            tokens = expected_tokens(rates)
            self.plan(max(0.0, ms / own_ms - tokens[self.depth] / tokens[selected]))

    def observe(self, clean: bool, value: float) -> None:
        """A round of it: whether its time was a sample, and the tokens per ms that it delivered."""
        self.rounds += 1
        self.sampled |= clean
        enough = self.rounds >= SHORTEST and (self.sampled or self.rounds > 3)
        self.over = self.rounds >= LONGEST or (
            enough and self.rounds >= self.length and value < self.value
        )


def choose(
    costs: MeasuredCosts,
    rates: Sequence[float],
    errors: Sequence[float],
    tokens: Sequence[float],
    selected: int,
    *,
    credit: float,
    measured_too: bool,
    hoped: Sequence[float] | None = None,
    explored: int = 0,
) -> Trial | None:
    """The trial with the most optimistic gain for its expected loss, if one is worthwhile and costs
    at most `credit` rounds, or pays without. Without `measured_too` only depths that were never timed are tried.

    `rates`, `errors` (k,): acceptance and its variance; `tokens` (k + 1,): expected tokens; `hoped` (k,):
    what acceptance may be just as well. `explored`: how deep chains are made by confidence, 0 where they are
    not; what they show of a depth, no drafts verified at all among them, is not asked for."""
    curve = [(d, ms) for d, ms in costs.curve() if costs.measured(d)]
    floor = min(ms for _, ms in curve)
    trust = max(LEAST_TRUST, TRUST * 0.5 ** (costs.rounds / TRUST_HALVES))
    own_ms = interpolate(curve, selected)
    value = tokens[selected] / own_ms
    high = optimistic_tokens(rates, errors, Z, known=selected)
    if hoped is not None:
        high = [max(two) for two in zip(high, expected_tokens(hoped), strict=True)]
    best: Trial | None = None
    best_score = 0.0
    for depth in range(len(tokens)):
        known = costs.measured(depth)
        shown = explored > 0 and depth <= explored
        if depth == selected or (
            known and (not measured_too or (shown and costs.age(depth) < RECENT))
        ):
            continue
        ms = interpolate(curve, depth)
        own = ms * max(0.6, 1.0 - Z * costs.deviation(depth)) if known else 0.0
        low = own or floor + (ms - floor) * trust
        mean = tokens[depth] / ms / value
        luck = math.hypot(math.log(high[depth] / tokens[depth]), math.log(ms / low))
        gain = mean * math.exp(luck)
        if gain < WORTHWHILE:
            continue
        a_round = ms / own_ms * max(0.0, 1.0 - tokens[depth] / ms / value)
        # Paid going there and coming back.
        moving = TRANSITION * (1.0 + ms / own_ms)
        loss = max(SHORTEST * a_round, moving) + moving
        score = (gain - 1.0) / loss
        pays = not known and _improvement(mean, (gain - mean) / Z) * costs.rounds > loss
        if (loss <= credit or pays) and score > best_score:
            best_score = score
            best = Trial(depth, known=known, loss=loss, moving=moving, value=value)
            if known:
                best.plan(a_round)
    return best


def _improvement(mean: float, deviation: float) -> float:
    """By how much what is normally distributed exceeds 1, in expectation."""
    if deviation <= 0.0:
        return max(0.0, mean - 1.0)
    u = (1.0 - mean) / deviation
    density = math.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)
    return deviation * (density - 0.5 * u * math.erfc(u / math.sqrt(2.0)))
