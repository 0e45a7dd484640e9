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
        self._ms = array("d")
        self._where = array("q")
        self._bins: dict[int, tuple[int, int]] = {}
        self._folded = 0
        self._folded_ms = 0.0

    def add(self, ms: float, where: int = 0) -> None:
        self._ms.append(ms)
        self._where.append(where)
        if len(self._ms) > EXACT:
            self._fold()

    @property
    def count(self) -> int:
        return self._folded + len(self._ms)

    @property
    def total(self) -> float:
        return self._folded_ms + math.fsum(self._ms)

    @property
    def median(self) -> float | None:
        return percentiles([self], [50])[0] if self.count else None

    @property
    def exact(self) -> bool:
        return not self._bins

    def values(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Times, in no order, and how many there are of each."""
        keys = np.fromiter(self._bins, dtype=np.int64, count=len(self._bins))
        binned = np.fromiter((n for n, _ in self._bins.values()), dtype=np.int64, count=len(keys))
        return (
            np.concatenate([np.exp((keys + 0.5) * _WIDTH), np.array(self._ms)]),
            np.concatenate([binned, np.ones(len(self._ms), dtype=np.int64)]),
        )

    def above(self, ms: float) -> tuple[int, int | None]:
        """How many are above `ms`, and the lowest number one of them was met at."""
        found = [
            (n, where)
            for key, (n, where) in self._bins.items()
            if math.exp((key + 0.5) * _WIDTH) > ms
        ]
        found += [(1, self._where[int(i)]) for i in np.flatnonzero(np.array(self._ms) > ms)]
        return sum(n for n, _ in found), min((where for _, where in found), default=None)

    def _fold(self) -> None:
        """Move the exact times into bins."""
        self._folded += len(self._ms)
        self._folded_ms += math.fsum(self._ms)
        keys = np.floor(np.log(np.array(self._ms)) / _WIDTH).astype(np.int64)
        where = np.array(self._where)
        order = np.lexsort((where, keys))
        found, index, counts = np.unique(keys[order], return_index=True, return_counts=True)
        for key, first, count in zip(
            found.tolist(), where[order][index].tolist(), counts.tolist(), strict=True
        ):
            before, earlier = self._bins.get(key, (0, first))
            self._bins[key] = (before + count, min(earlier, first))
        del self._ms[:], self._where[:]


def percentiles(parts: Sequence[Durations], wanted: Sequence[float]) -> list[float]:
    """The percentiles in `wanted` (0 to 100, linear interpolation) of all times in `parts`, which hold
    at least one."""
    values, counts = (
        np.concatenate(found) for found in zip(*(p.values() for p in parts), strict=True)
    )
    if all(part.exact for part in parts):
        return [float(x) for x in np.percentile(values, wanted)]
    order = np.argsort(values)
    # Each time stands at its rank; between two ranks the value is interpolated, as numpy does.
    last = np.cumsum(counts[order]) - 1
    first = last - counts[order] + 1
    ranks = np.stack([first, last], axis=1).ravel()
    at = np.asarray(wanted) / 100.0 * (int(last[-1]))
    return [float(x) for x in np.interp(at, ranks, np.repeat(values[order], 2))]
