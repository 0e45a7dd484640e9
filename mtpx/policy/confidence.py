"""What the head's confidence is worth: P(draft stands | its confidence, all before it stood), learned
online.

Per position a count of drafts and of those that stood in buckets of the confidence (top-1 log-probability,
edges as published for GB10). A bucket starts at what the drafts of all positions say, held by `PRIOR`
pseudo-drafts (a confidence means much the same at each of them), and those start at the rate: a
cold calibration predicts it whatever the confidence, so nothing is decided by it. Pool
adjacent violators (Ayer et al. 1955) makes it monotone: a more confident draft is never
predicted less acceptable. Only drafts that were judged count; that a draft was verified *because of* its
confidence does no harm, since the prediction is conditional on it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from mtpx.errors import PolicyError

EDGES = (-4.0, -2.0, -1.0, -0.5, -0.25, -0.1, -0.05, -0.02, -0.005)
"""Upper edges of the buckets (lower, upper]; one more lies above the last."""

PRIOR = 16.0
"""Pseudo-drafts at the position's own rate in every bucket: a bucket says something once it
has seen about as many."""

KNOWN = 200
"""Judged drafts before a calibration is acted upon."""

MEMORY = 400.0
"""Drafts a bucket remembers; older ones fade."""

STEP, FADING = 0.2, 0.95
"""Of the offset in log-odds by which this text's drafts stand more or less often than their confidence says: what a
draft's surprise moves it by; what is left of it after a round without a verdict. On 80 recorded answers of the
embedded model, steps of 0.1 to 0.3 are worth half a per cent, 0.5 nothing."""

WARY = -0.2
"""That offset when an answer begins. Texts differ by as much (rewriting by twice that), and of what looks best the
estimate is too high on average; near the best choice that costs next to nothing where it is wrong."""

REFRESH = 32
"""Judged drafts of a position between two fits."""


class Calibration:
    """Confidence to acceptance, by position."""

    def __init__(self) -> None:
        self._seen: list[list[float]] = []
        self._stood: list[list[float]] = []
        self._fits: list[list[float] | None] = []
        self._fresh: list[int] = []
        self._judged = 0
        self.offset, self._odds = 0.0, 1.0

    def observe(self, confidences: Sequence[float], judged: int, accepted: int) -> None:
        """One sequence's round: the first `judged` drafts had a verdict, the first `accepted` stood."""
        offset = self.offset if judged else FADING * self.offset
        for i, confidence in enumerate(confidences[:judged]):
            if not confidence <= 0.0:
                continue
            fit = self._fits[i] if i < len(self._fits) else None
            if fit is not None:
                offset += STEP * ((1.0 if i < accepted else 0.0) - self._here(fit, confidence))
            if i == len(self._seen):
                self._grow()
            bucket = bisect_left(EDGES, confidence)
            seen, stood = self._seen[i], self._stood[i]
            fade = min(1.0, (MEMORY - 1.0) / max(seen[bucket], 1.0))
            seen[bucket] = seen[bucket] * fade + 1.0
            stood[bucket] = stood[bucket] * fade + (1.0 if i < accepted else 0.0)
            self._fresh[i] += 1
            self._judged += 1
            if self._fresh[i] >= REFRESH:
                self._fits[i] = None
        self._shift(offset)

    def begin(self) -> None:
        """Another text begins."""
        self._shift(WARY)

    def _shift(self, offset: float) -> None:
        self.offset = min(3.0, max(-3.0, offset))
        self._odds = math.exp(self.offset)

    def _here(self, fit: list[float], confidence: float) -> float:
        """P(a draft so sure stands) in this text."""
        p = fit[bisect_left(EDGES, confidence)]
        return p * self._odds / (1.0 - p + p * self._odds)

    def _grow(self) -> None:
        self._seen.append([0.0] * (len(EDGES) + 1))
        self._stood.append([0.0] * (len(EDGES) + 1))
        self._fits.append(None)
        self._fresh.append(0)

    def accepts(self, position: int, confidence: float, rate: float) -> float:
        """P(the draft at `position`, counted from 0, stands), `rate` being the position's own.

        A confidence that is none (NaN) says nothing: the rate comes back."""
        if position >= len(self._seen) or not confidence <= 0.0:
            return rate
        fit = self._fits[position]
        if fit is None:
            fit = self._fits[position] = self._fit(position, rate)
            self._fresh[position] = 0
        return self._here(fit, confidence)

    def table(self, position: int, rate: float) -> list[float]:
        """`accepts` by bucket of confidence."""
        if position >= len(self._seen):
            return [rate] * (len(EDGES) + 1)
        return [self.accepts(position, edge, rate) for edge in (*EDGES, 0.0)]

    def _fit(self, position: int, rate: float) -> list[float]:
        return _held(self._seen[position], self._stood[position], self._pooled(rate))

    def _pooled(self, rate: float) -> list[float]:
        """By bucket, over all positions."""
        seen, stood = ([sum(n) for n in zip(*of, strict=True)] for of in (self._seen, self._stood))
        return _held(seen, stood, [rate] * (len(EDGES) + 1))

    @property
    def ready(self) -> bool:
        """Whether enough was judged to act upon."""
        return self._judged >= KNOWN

    def state(self) -> dict[str, Any]:
        return {"seen": [list(r) for r in self._seen], "stood": [list(r) for r in self._stood]}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PolicyError` unless `state` came from `state()`."""
        try:
            seen = [[float(n) for n in row] for row in state["seen"]]
            stood = [[float(n) for n in row] for row in state["stood"]]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PolicyError("the stored calibration is not a policy's state") from error
        shape = [len(EDGES) + 1] * len(seen)
        if [len(r) for r in seen] != shape or [len(r) for r in stood] != shape or len(seen) > 64:
            raise PolicyError("the stored calibration has other buckets than this version's")
        pairs = [
            (s, n) for a, b in zip(stood, seen, strict=True) for s, n in zip(a, b, strict=True)
        ]
        if not all(0.0 <= s <= n < math.inf for s, n in pairs):
            raise PolicyError("the stored calibration counts more accepted than judged drafts")
        self.__init__()  # type: ignore[misc]
        for row, hits in zip(seen, stood, strict=True):
            self._grow()
            self._seen[-1], self._stood[-1] = row, hits
        self._judged = int(sum(map(sum, seen)))


def _held(seen: Sequence[float], stood: Sequence[float], prior: Sequence[float]) -> list[float]:
    """Rates by bucket, each held at its prior by `PRIOR` pseudo-drafts, made monotone."""
    weights = [n + PRIOR for n in seen]
    values = [(hits + PRIOR * p) / w for hits, w, p in zip(stood, weights, prior, strict=True)]
    return isotonic(values, weights)


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest non-decreasing sequence in weighted least squares: pool adjacent violators."""
    blocks: list[list[float]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append([value, weight, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            v, w, n = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + v * w) / (last[1] + w)
            last[1] += w
            last[2] += n
    return [value for value, _, n in blocks for _ in range(int(n))]
