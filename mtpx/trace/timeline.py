"""Depth over time: what was run, what the policy held best, how fast it was.

However long a run is, it is told in at most 512 stretches of equally many rounds.
"""

from __future__ import annotations

import math

import msgspec

from mtpx.round import Round

MOST = 512
"""Stretches: as many as a picture has room for."""


class Stretch(msgspec.Struct, frozen=True):
    """`rounds` consecutive MTP rounds from `first` (counted over the run, from 0). `depth` is the mean
    of what was proposed, `shallowest` and `deepest` its range, `selected` the mean of what the policy held
    best (absent where it did not say), `tokens_per_s` committed tokens over the rounds' time."""

    first: int
    rounds: int
    depth: float
    shallowest: int
    deepest: int
    selected: float | None
    tokens_per_s: float | None


class _Bucket:
    __slots__ = ("chosen", "deepest", "depth", "ms", "rounds", "said", "shallowest", "tokens")

    def __init__(self) -> None:
        self.rounds = self.depth = self.deepest = self.tokens = self.chosen = self.said = 0
        self.shallowest = 1 << 30
        self.ms = 0.0

    def absorb(self, other: _Bucket) -> None:
        self.rounds += other.rounds
        self.depth += other.depth
        self.shallowest = min(self.shallowest, other.shallowest)
        self.deepest = max(self.deepest, other.deepest)
        self.chosen += other.chosen
        self.said += other.said
        self.tokens += other.tokens
        self.ms += other.ms


class Timeline:
    """MTP rounds in the order they are added; `ms` is 0 for a round without a valid time."""

    def __init__(self) -> None:
        self._size = 1
        self._buckets: list[_Bucket] = []

    def add(self, round: Round, tokens: int, ms: float) -> None:
        buckets = self._buckets
        if not buckets or buckets[-1].rounds >= self._size:
            if len(buckets) >= MOST:
                self._halve()
            buckets.append(_Bucket())
        last = buckets[-1]
        depth = round.depth
        last.rounds += 1
        last.depth += depth
        if depth < last.shallowest:
            last.shallowest = depth
        if depth > last.deepest:
            last.deepest = depth
        decision = round.decision
        if decision is not None and decision.selected is not None:
            last.chosen += decision.selected
            last.said += 1
        if ms:
            last.tokens += tokens
            last.ms += ms

    def _halve(self) -> None:
        pairs = zip(self._buckets[::2], self._buckets[1::2], strict=True)
        for one, other in pairs:
            one.absorb(other)
        del self._buckets[1::2]
        self._size *= 2

    def stretches(self) -> list[Stretch]:
        out: list[Stretch] = []
        first = 0
        for bucket in self._buckets:
            out.append(
                Stretch(
                    first=first,
                    rounds=bucket.rounds,
                    depth=bucket.depth / bucket.rounds,
                    shallowest=bucket.shallowest,
                    deepest=bucket.deepest,
                    selected=bucket.chosen / bucket.said if bucket.said else None,
                    tokens_per_s=1e3 * bucket.tokens / bucket.ms if bucket.ms else None,
                )
            )
            first += bucket.rounds
        return out


class Drift(msgspec.Struct, frozen=True):
    """How much longer rounds took in the last quarter of a run than in the first, like compared with
    like (same mode, width, depth and route): 0.1 is 10 % longer. Over `rounds` rounds."""

    change: float
    rounds: int


DRIFT_ROUNDS = 128
"""Fewer rounds say nothing about a trend."""


class Pace:
    """Round times against the other rounds of their kind, quarter by quarter."""

    def __init__(self) -> None:
        self._size = 1
        self._buckets: list[dict[object, list[float]]] = []
        self._in_last = 0

    def add(self, kind: object, ms: float) -> None:
        """A round of `kind` that compiled nothing and took `ms` > 0."""
        if not self._buckets or self._in_last >= self._size:
            if len(self._buckets) >= 64:
                self._halve()
            self._buckets.append({})
            self._in_last = 0
        self._in_last += 1
        entry = self._buckets[-1].get(kind)
        if entry is None:
            entry = self._buckets[-1][kind] = [0.0, 0.0]
        entry[0] += 1.0
        entry[1] += math.log(ms)

    def _halve(self) -> None:
        for one, other in zip(self._buckets[::2], self._buckets[1::2], strict=True):
            _pour(other, one)
        del self._buckets[1::2]
        self._size *= 2

    def drift(self) -> Drift | None:
        """`None` under 128 rounds, or where the first and the last quarter share no kind."""
        quarter = len(self._buckets) // 4
        total = sum(entry[0] for bucket in self._buckets for entry in bucket.values())
        if total < DRIFT_ROUNDS or not quarter:
            return None
        early: dict[object, list[float]] = {}
        late: dict[object, list[float]] = {}
        for bucket in self._buckets[:quarter]:
            _pour(bucket, early)
        for bucket in self._buckets[-quarter:]:
            _pour(bucket, late)
        weight = change = 0.0
        for kind in early.keys() & late.keys():
            (n, a), (m, b) = early[kind], late[kind]
            w = n * m / (n + m)  # the inverse variance of a difference of two means
            weight += w
            change += w * (b / m - a / n)
        return Drift(math.expm1(change / weight), int(total)) if weight else None


def _pour(source: dict[object, list[float]], target: dict[object, list[float]]) -> None:
    for kind, (n, logs) in source.items():
        entry = target.setdefault(kind, [0.0, 0.0])
        entry[0] += n
        entry[1] += logs
