"""What other depths would have delivered on a trace: the best fixed one, and a seer's.

A recorded round tells what shallower depths would have delivered from the same place (the drafts are the
same) and, if a draft fell, what deeper ones would have. Where every draft stood, what lies beyond is
expected from the acceptances of the run. Costs are the run's own; those of depths it never ran are
interpolated between their neighbours. All of it is an estimate: it takes the places where rounds
began for a fair sample of the text.

The *seer* knows before each round how many drafts will stand and drafts just as many as pay: no policy
can know that, and none can do better.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec


class StaticDepth(msgspec.Struct, frozen=True):
    """A fixed depth on this trace: what a round costs, what it delivers a sequence, and the rate.
    `interpolated`: the run held no full round at this depth."""

    depth: int
    cost_ms: float
    interpolated: bool
    tokens_per_round: float
    tokens_per_s: float


class ArmRegret(msgspec.Struct, frozen=True):
    """What an arm delivered in its rounds (those that compiled something apart), and its `regret`: the
    share of the best fixed depth's rate it missed (negative: it was faster than any fixed depth)."""

    arm: str
    rounds: int
    tokens_per_s: float
    regret: float | None


class Hindsight(msgspec.Struct, frozen=True):
    """Estimates for the MTP rounds at `width`. `best_depth` is the fixed depth with the highest rate,
    `oracle_tokens_per_s` the seer's rate. Absent for the `reason` given."""

    width: int
    rounds: int
    depths: list[StaticDepth]
    best_depth: int | None
    best_tokens_per_s: float | None
    oracle_tokens_per_s: float | None
    arms: list[ArmRegret]
    reason: str


class HindsightTally:
    """What the arms delivered, by width; `estimate` sets it beside what other depths would have."""

    def __init__(self) -> None:
        self._arms: dict[tuple[int, str], list[float]] = {}

    def arm(self, width: int, arm: str, tokens: int, ms: float) -> None:
        entry = self._arms.get((width, arm))
        if entry is None:
            entry = self._arms[width, arm] = [0, 0, 0.0]
        entry[0] += 1
        entry[1] += tokens
        entry[2] += ms

    def estimate(
        self,
        width: int,
        seen: Mapping[tuple[int, int, int], int],
        costs: Mapping[int, float],
        rates: Sequence[float | None],
    ) -> Hindsight:
        """`seen`: how often each (verified, judged, accepted) was met at this width; `costs`: ms a round
        by depth; `rates`: conditional acceptance by position, `None` where nothing was judged."""
        outcomes: dict[tuple[int, int, int], int] = {}
        for (_, judged, accepted), n in seen.items():
            # An end among the accepted drafts hides what would have followed, as a depth that was too
            # small does; both leave the rest to expectation.
            key = (judged, accepted, accepted >= judged)
            outcomes[key] = outcomes.get(key, 0) + n
        rounds = sum(outcomes.values())
        deepest = 0
        for rate in rates:
            if rate is None:
                break
            deepest += 1
        depths = [d for d in range(min(max(costs, default=-1), deepest) + 1) if d >= min(costs)]
        static = [self._static(d, width, costs, rates, outcomes, rounds) for d in depths if rounds]
        best = max(static, key=lambda s: (s.tokens_per_s, -s.depth), default=None)
        reason = ""
        if not rounds:
            reason = "no draft was verified"
        elif best is None:
            reason = "no depth has both a measured cost and a measured acceptance"
        elif len(costs) < 2:
            reason = "only one depth was run, so there is nothing to compare it with"
        return Hindsight(
            width=width,
            rounds=rounds,
            depths=static,
            best_depth=best.depth if best and not reason else None,
            best_tokens_per_s=best.tokens_per_s if best and not reason else None,
            oracle_tokens_per_s=(
                _seer(width, {s.depth: s.cost_ms for s in static}, rates, outcomes)
                if best and not reason
                else None
            ),
            arms=[
                ArmRegret(
                    arm,
                    int(n),
                    1e3 * tokens / ms,
                    1.0 - 1e3 * tokens / ms / best.tokens_per_s if best and not reason else None,
                )
                for (at, arm), (n, tokens, ms) in sorted(self._arms.items())
                if at == width and ms
            ],
            reason=reason,
        )

    @staticmethod
    def _static(
        depth: int,
        width: int,
        costs: Mapping[int, float],
        rates: Sequence[float | None],
        outcomes: Mapping[tuple[int, int, int], int],
        rounds: int,
    ) -> StaticDepth:
        cost, interpolated = cost_at(costs, depth)
        tokens = (
            math.fsum(n * delivered(depth, outcome, rates) for outcome, n in outcomes.items())
            / rounds
        )
        return StaticDepth(depth, cost, interpolated, tokens, 1e3 * width * tokens / cost)


def delivered(depth: int, outcome: tuple[int, int, int], rates: Sequence[float | None]) -> float:
    """Tokens a round at `depth` delivers where one was seen that judged, accepted, and hid the rest (as
    `HindsightTally.estimate` counts them); expected where the round did not show it."""
    _, accepted, hidden = outcome
    if depth <= accepted or not hidden:
        return min(depth, accepted) + 1.0
    total, reach = accepted + 1.0, 1.0
    for rate in rates[accepted:depth]:
        reach *= rate or 0.0
        total += reach
    return total


def cost_at(costs: Mapping[int, float], depth: int) -> tuple[float, bool]:
    """ms of a round at `depth`, and whether that is an estimate: linear between the depths on either
    side; beyond the deepest one the last slope goes on, never downwards. `costs` holds at least one."""
    if depth in costs:
        return costs[depth], False
    known = sorted(costs)
    i = bisect_left(known, depth)
    if i == 0:
        return costs[known[0]], True
    if i < len(known):
        low, high = known[i - 1], known[i]
        share = (depth - low) / (high - low)
        return costs[low] + share * (costs[high] - costs[low]), True
    last = known[-1]
    slope = (costs[last] - costs[known[-2]]) / (last - known[-2]) if len(known) > 1 else 0.0
    return costs[last] + max(0.0, slope) * (depth - last), True


def _seer(
    width: int,
    costs: Mapping[int, float],
    rates: Sequence[float | None],
    outcomes: Mapping[tuple[int, int, int], int],
) -> float:
    """The highest Σ tokens / Σ ms over one depth for each outcome (Dinkelbach 1967: the best ratio r is
    the root of Σ max(tokens - r · ms) = 0, and each step raises r)."""
    table = [
        (n, [(delivered(depth, outcome, rates), ms) for depth, ms in costs.items()])
        for outcome, n in outcomes.items()
    ]
    rate = 0.0
    while True:
        picks = [(n, max(options, key=lambda o: o[0] - rate * o[1])) for n, options in table]
        tokens = math.fsum(n * pick[0] for n, pick in picks)
        ms = math.fsum(n * pick[1] for n, pick in picks)
        if tokens / ms <= rate * (1 + 1e-12):
            return 1e3 * width * rate
        rate = tokens / ms
