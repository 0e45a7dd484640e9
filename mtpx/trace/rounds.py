"""Rounds by depth and route: how many, how long, how much they delivered, what a full one costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mtpx.round import Round
from mtpx.trace.acceptance import PositionAcceptance, committed_tokens, uniform_acceptance
from mtpx.trace.anomalies import Anomalies
from mtpx.trace.durations import Durations, percentiles

STALL_FACTOR = 3.0
"""A round this many times the median of its kind is a stall: noise is a few per cent, a deeper
draft costs less than that, and published stalls are 2 to 6 times."""

LONGEST_ROUND_MS = 1e9
"""Eleven days. A larger time is a damaged number, and would overflow sums."""

SHORTEST_MS = 1e-6
"""A nanosecond, what clocks count in. A smaller time is a damaged number, and rates over it overflow."""

UNCLEAN = frozenset({"transition", "compile", "stall", "resume"})
"""Why a policy may refuse a round's time as a cost sample; such a round is no cost here either."""

MOVING = frozenset({"transition", "compile", "resume"})
"""Those of them that are the policy's own doing; a stall happens to any depth."""


MODES = ("plain", "mtp")
"""Of the run's own precision."""


class Spread(msgspec.Struct, frozen=True):
    """Median, 10th and 90th percentile (linear interpolation), in the unit of the field."""

    median: float
    p10: float
    p90: float


class RoundsRow(msgspec.Struct, frozen=True):
    """The rounds of one kind: same mode ("mtp", or "plain" with the head off; with the precision, where that
    is not the run's), width, depth, route.

    `round_ms` is over all of them that have a valid time. The shares are of the round time, over the
    rounds where the part was measured and nothing was compiled. `tokens_per_round` is committed
    tokens per sequence.
    `full_cost_ms` is the median over `full_rounds` clean full rounds: every sequence verified
    `depth` drafts, nothing was compiled, and the policy did not call the time a transition, stall or
    resume. `full_cost_plain` is that in plain rounds of the same width.
    """

    mode: str
    width: int
    depth: int
    route: str
    rounds: int
    compiled_now: int
    round_ms: Spread | None
    total_ms: float
    draft_share: float | None
    verify_share: float | None
    host_share: float | None
    tokens_per_round: float | None
    full_rounds: int
    full_cost_ms: float | None
    full_cost_plain: float | None


class RouteCounts(msgspec.Struct, frozen=True):
    """Target forwards over at least one draft: `compiled` and `eager` by route, and how many of all
    `compiled_now` something."""

    verify: int
    compiled: int
    eager: int
    compiled_now: int


class BreakEven(msgspec.Struct, frozen=True):
    """Whether a depth pays at the costs and acceptances of this run.

    `cost_plain`: a full round in plain rounds, `cost_from` says which depth-0 rounds those are.
    `break_even`: the uniform acceptance at which the depth delivers exactly plain speed (0: any
    acceptance will do; above 1: none will). `acceptance`: what was measured, on the same scale.
    `margin` is their difference, `tokens` the expected committed tokens of a round, `speed` the
    expected rate relative to plain. Fields are absent for the `reason` given.
    """

    depth: int
    width: int
    route: str
    cost_ms: float | None
    cost_plain: float | None
    cost_from: str
    break_even: float | None
    acceptance: float | None
    margin: float | None
    tokens: float | None
    speed: float | None
    reason: str


class _Key(NamedTuple):
    mode: str
    width: int
    depth: int
    route: str


class Kind:
    """What is kept of the rounds of one kind: numbers only, so a long trace stays small.

    Times are in three parts: of rounds that compiled something, of clean full rounds, of all others.
    """

    def __init__(self) -> None:
        self.count = self.compiled_now = self.tokens = self.slots = 0
        self.compiling, self.full, self.other = Durations(), Durations(), Durations()
        self.stalled = 0
        self.stalled_ms = 0.0
        self.draft_ms = self.verify_ms = self.host_ms = 0.0
        self.draft_of = self.verify_of = self.host_of = 0.0
        self.rest_ms = self.whole_ms = 0.0

    def add(self, round: Round, tokens: int, timed: bool) -> None:
        """Count a round that committed `tokens`; `timed` says whether its times can be."""
        self.count += 1
        self.tokens += tokens
        slots, compiled = round.slots, round.compiled_now
        self.slots += len(slots)
        if compiled:
            self.compiled_now += 1
        if not timed:
            return
        ms = round.round_ms
        if compiled:
            self.compiling.add(ms, round.index)
            return
        draft, verify, host = round.draft_ms, round.verify_ms, round.host_ms
        rest = ms
        if host is not None:
            self.host_ms += host
            self.host_of += ms
            rest -= host
        if draft is None and verify is None:
            self.whole_ms += max(0.0, rest)
        else:
            if draft is not None:
                self.draft_ms += draft
                self.draft_of += ms
                rest -= draft
            if verify is not None:
                self.verify_ms += verify
                self.verify_of += ms
                rest -= verify
            if rest > 0.0:
                self.rest_ms += rest
        decision = round.decision
        excluded = decision.excluded if decision is not None else ""
        depth = round.depth
        full = excluded not in MOVING
        for slot in slots:
            if slot.verified != depth or slot.drafted != depth:
                full = False
        if full and excluded not in UNCLEAN:
            self.full.add(ms, round.index)
            return
        self.other.add(ms, round.index)
        if full:
            self.stalled += 1
            self.stalled_ms += ms

    @property
    def full_cost(self) -> float | None:
        return self.full.median

    @property
    def settled(self) -> tuple[int, float]:
        """Full rounds at the depth the policy had settled on, stalls included, and their ms."""
        return self.full.count + self.stalled, self.full.total + self.stalled_ms


class RoundsTally:
    """Rounds of one run, warm-up left out by the caller."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int, int, str], Kind] = {}

    def kind(self, mode: str, round: Round) -> Kind:
        """Where rounds like this one, of requests of this mode, are counted."""
        key = (mode, len(round.slots), round.depth, round.route.kind)
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = Kind()
        return found

    def spent(self) -> dict[str, dict[str, float]]:
        """ms by mode and part of a round, as `mtpx.trace.spent` names them."""
        out: dict[str, dict[str, float]] = {}
        for key, kind in self.kinds():
            parts = out.setdefault(key.mode, {})
            for part, ms in (
                ("draft", kind.draft_ms),
                ("verify", kind.verify_ms),
                ("host", kind.host_ms),
                ("rest", kind.rest_ms),
                ("rounds", kind.whole_ms),
                ("compiling", kind.compiling.total),
            ):
                parts[part] = parts.get(part, 0.0) + ms
        return out

    def routes(self) -> RouteCounts:
        verify = {key: kind for key, kind in self.kinds() if key.depth > 0}
        return RouteCounts(
            verify=sum(kind.count for kind in verify.values()),
            compiled=sum(kind.count for key, kind in verify.items() if key.route == "compiled"),
            eager=sum(kind.count for key, kind in verify.items() if key.route == "eager"),
            compiled_now=sum(kind.compiled_now for kind in self._kinds.values()),
        )

    def rows(self) -> list[RoundsRow]:
        """Plain rounds first, then by width, depth and route."""
        return [
            self._row(key, kind)
            for key, kind in sorted(
                self.kinds(), key=lambda found: (not found[0].mode.startswith("plain"), *found[0])
            )
        ]

    def _row(self, key: _Key, kind: Kind) -> RoundsRow:
        cost = kind.full_cost
        times = [kind.compiling, kind.full, kind.other]
        plain, _ = self._plain(key.width)
        return RoundsRow(
            mode=key.mode,
            width=key.width,
            depth=key.depth,
            route=key.route,
            rounds=kind.count,
            compiled_now=kind.compiled_now,
            round_ms=spread(times),
            total_ms=sum(part.total for part in times),
            draft_share=_share(kind.draft_ms, kind.draft_of),
            verify_share=_share(kind.verify_ms, kind.verify_of),
            host_share=_share(kind.host_ms, kind.host_of),
            tokens_per_round=kind.tokens / kind.slots if kind.slots else None,
            full_rounds=kind.full.count,
            full_cost_ms=cost,
            full_cost_plain=cost / plain if cost is not None and plain else None,
        )

    def break_even(self, positions: list[PositionAcceptance]) -> list[BreakEven]:
        """One entry per width and depth that ran, on the route most of its full rounds took."""
        best: dict[tuple[int, int], tuple[_Key, Kind]] = {}
        for key, kind in sorted(self.kinds(), key=lambda found: found[0]):
            if key.depth == 0:
                continue
            there = best.get((key.width, key.depth))
            if there is None or kind.full.count > there[1].full.count:
                best[key.width, key.depth] = (key, kind)
        return [self._break_even(key, kind, positions) for _, (key, kind) in sorted(best.items())]

    def _break_even(self, key: _Key, kind: Kind, positions: list[PositionAcceptance]) -> BreakEven:
        cost = kind.full_cost
        plain, source = self._plain(key.width)
        tokens = committed_tokens(positions, key.depth)
        reasons = []
        if cost is None:
            reasons.append("no clean full round was run at this depth")
        if plain is None:
            reasons.append(f"no depth-0 round was run at width {key.width}")
        if tokens is None:
            reasons.append("a position up to this depth was never judged")
        ratio = cost / plain if cost is not None and plain else None
        needed = uniform_acceptance(ratio, key.depth) if ratio is not None else None
        measured = uniform_acceptance(tokens, key.depth) if tokens is not None else None
        return BreakEven(
            depth=key.depth,
            width=key.width,
            route=key.route,
            cost_ms=cost,
            cost_plain=ratio,
            cost_from=source,
            break_even=needed,
            acceptance=measured,
            margin=measured - needed if measured is not None and needed is not None else None,
            tokens=tokens,
            speed=tokens / ratio if tokens is not None and ratio else None,
            reason="; ".join(reasons),
        )

    def _plain(self, width: int) -> tuple[float | None, str]:
        """What a plain round of this width costs in ms, and which rounds say so: those with the head
        off, or else those of MTP requests that ran at depth 0 and kept the head level."""
        for mode, source in (("plain", "plain runs"), ("mtp", "parked rounds")):
            kinds = [
                kind
                for key, kind in self.kinds()
                if key.mode == mode and key.width == width and key.depth == 0 and kind.full.count
            ]
            if kinds:
                return max(kinds, key=lambda kind: kind.full.count).full_cost, source
        return None, ""

    def costs(self, width: int) -> dict[int, float]:
        """What a round at each depth takes at this width, in ms: the median clean full round on the
        route most of them took, times what stalls and noise add on average to the median. Depth 0 is a
        plain round where there were plain runs."""
        found: dict[int, tuple[int, float]] = {}
        plain, source = self._plain(width)
        typical = actual = 0.0
        for key, kind in self.kinds():
            median = kind.full.median
            if key.width != width or median is None or key.mode not in MODES:
                continue
            settled, ms = kind.settled
            typical += median * settled
            actual += ms
            if key.depth == 0 and (key.mode == "plain") != (source == "plain runs"):
                continue
            if kind.full.count > found.get(key.depth, (0, 0.0))[0]:
                found[key.depth] = (kind.full.count, median)
        if plain is not None:
            found[0] = (1, plain)
        added = actual / typical if typical else 1.0
        return {depth: ms * added for depth, (_, ms) in sorted(found.items())}

    def widths(self) -> list[int]:
        """Widths of MTP rounds, the most frequent first."""
        rounds: dict[int, int] = {}
        for key, kind in self.kinds():
            if key.mode == "mtp":
                rounds[key.width] = rounds.get(key.width, 0) + kind.count
        return sorted(rounds, key=lambda width: (-rounds[width], width))

    def kinds(self) -> list[tuple[_Key, Kind]]:
        return [(_Key(*key), kind) for key, kind in self._kinds.items()]

    def note_stalls(self, anomalies: Anomalies) -> None:
        """Report rounds over 3 times the median of their kind, those that compiled something apart."""
        count, places = 0, []
        for kind in self._kinds.values():
            steady = [part for part in (kind.full, kind.other) if part.count]
            if steady:
                (median,) = percentiles(steady, [50])
                slow = [part.above(STALL_FACTOR * median) for part in steady]
                count += sum(n for n, _ in slow)
                places += [where for _, where in slow if where is not None]
        anomalies.add("stall", min(places, default=None), count)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def spread(times: Sequence[Durations]) -> Spread | None:
    """Median, 10th and 90th percentile of them together; `None` without times."""
    known = [part for part in times if part.count]
    if not known:
        return None
    p10, median, p90 = percentiles(known, [10, 50, 90])
    return Spread(median=median, p10=p10, p90=p90)


def valid(round: Round) -> bool:
    """Whether a round's times can be: finite, not negative, the whole at least a nanosecond."""
    if not SHORTEST_MS <= round.round_ms <= LONGEST_ROUND_MS:
        return False
    for part in (round.draft_ms, round.verify_ms, round.host_ms):
        if part is not None and not 0.0 <= part <= LONGEST_ROUND_MS:
            return False
    return True
