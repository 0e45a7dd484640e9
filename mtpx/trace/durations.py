"""Times in bounded memory: exact while there are few, then in bins a thousandth wide.

A trace of a gigabyte has millions of rounds; their median to within 0.05 % needs some thousand numbers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

EXACT = 8192
"""Times kept as they are; a run of an evening has fewer of a kind."""

_WIDTH = math.log(1.001)
"""Logarithmic width of a bin: its middle is within 0.05 % of what fell into it."""


class Durations:
    """Times above 0, each with where it was met (a number of the caller's, such as a round's index)."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._ms = array("d")
        self._where = array("q")
        self._bins: dict[int, tuple[int, int]] = {}

    def add(self, ms: float, where: int = 0) -> None:
        self.count += 1
        self.total += ms
        self._ms.append(ms)
        self._where.append(where if where < 1 << 63 else -1)
        if len(self._ms) > EXACT:
            self._fold()

    def percentiles(self, wanted: Sequence[float]) -> list[float]:
        """The percentiles in `wanted` (0 to 100, linear interpolation). Needs at least one time."""
        values, counts, _ = self._sorted()
        if not self._bins:
            return [float(x) for x in np.percentile(values, wanted)]
        # Each time stands at its rank; between two ranks the value is interpolated, as numpy does.
        last = np.cumsum(counts) - 1
        first = last - counts + 1
        ranks = np.stack([first, last], axis=1).ravel()
        at = np.asarray(wanted) / 100.0 * (self.count - 1)
        return [float(x) for x in np.interp(at, ranks, np.repeat(values, 2))]

    @property
    def median(self) -> float | None:
        return self.percentiles([50])[0] if self.count else None

    def above(self, ms: float) -> tuple[int, int]:
        """How many are above `ms`, and where the first of them was met (the lowest such number
        once times are in bins; 0 if there is none)."""
        if not self._bins:
            met = np.flatnonzero(np.array(self._ms) > ms)
            return len(met), self._where[int(met[0])] if len(met) else 0
        values, counts, where = self._sorted()
        over = values > ms
        return int(counts[over].sum()), int(where[over].min()) if over.any() else 0

    def _sorted(
        self,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(values ascending, how many of each, where first)."""
        if self._bins:
            self._fold()
            keys = np.array(sorted(self._bins), dtype=np.int64)
            pairs = np.array([self._bins[int(k)] for k in keys], dtype=np.int64).reshape(-1, 2)
            return np.exp((keys + 0.5) * _WIDTH), pairs[:, 0], pairs[:, 1]
        order = np.argsort(np.array(self._ms), kind="stable")
        values = np.array(self._ms, dtype=np.float64)[order]
        return values, np.ones(len(values), dtype=np.int64), np.array(self._where)[order]

    def _fold(self) -> None:
        """Move the exact times into bins."""
        if not self._ms:
            return
        keys = np.floor(np.log(np.array(self._ms)) / _WIDTH).astype(np.int64)
        where = np.array(self._where)
        found, index, counts = np.unique(keys, return_index=True, return_counts=True)
        for key, first, count in zip(
            found.tolist(), where[index].tolist(), counts.tolist(), strict=True
        ):
            before, earlier = self._bins.get(key, (0, first))
            self._bins[key] = (before + count, earlier)
        del self._ms[:], self._where[:]
