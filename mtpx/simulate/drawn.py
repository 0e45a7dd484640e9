"""Regimes nobody chose: machines and heads drawn at random, to find where a policy is weak.

The bar of none of them was known when the policy was made. The same seed draws the same regimes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mtpx.errors import PolicyError
from mtpx.simulate.scenario import Scenario

MOST = 10_000

PLAIN_MS = 10.0

Rng = np.random.Generator


def _flat(rng: Rng, k: int) -> list[float]:
    return [1.0 + 0.04 * j * rng.random() for j in range(k + 1)]


def _steep(rng: Rng, k: int) -> list[float]:
    slope = rng.uniform(0.08, 0.5)
    return [1.0 + slope * j for j in range(k + 1)]


def _steps(rng: Rng, k: int) -> list[float]:
    rows, height = int(rng.integers(2, 5)), rng.uniform(0.1, 0.6)
    return [1.0 + height * (j // rows) for j in range(k + 1)]


def _wall(rng: Rng, k: int) -> list[float]:
    dip, height = int(rng.integers(1, k + 1)), rng.uniform(1.5, 2.2)
    return [height if 0 < j < dip else 1.0 + 0.08 * j for j in range(k + 1)]


def _wild(rng: Rng, k: int) -> list[float]:
    return [1.0, *(rng.uniform(0.95, 2.5) for _ in range(k))]


CURVES: dict[str, Callable[[Rng, int], list[float]]] = {
    "flat": _flat,
    "steep": _steep,
    "steps": _steps,
    "wall": _wall,
    "wild": _wild,
}
"""Cost of a forward by depth, relative to plain decode."""


def drawn(count: int, seed: int = 0) -> Iterator[Scenario]:
    """`count` regimes: heads of 2 to 8 positions from nearly dead to nearly perfect, cost curves of every
    kind, confidences from useless to telling; noise, transitions and stalls as published.

    Raises `PolicyError` for a count outside 1..10,000."""
    if not 1 <= count <= MOST:
        raise PolicyError(f"1 to {MOST} regimes can be drawn, got {count}")
    rng = np.random.default_rng(seed)
    for number in range(count):
        limit = int(rng.integers(2, 9))
        first, fall = rng.uniform(0.1, 0.95), rng.uniform(0.8, 1.02)
        rates = first * fall ** np.arange(limit) + rng.normal(0.0, 0.03, limit)
        curve = str(rng.choice(list(CURVES)))
        yield Scenario(
            name=f"{number}: {curve}",
            kind="other",
            acceptance=[float(rate) for rate in np.clip(rates, 0.02, 0.99)],
            cost_ms={1: [PLAIN_MS * float(ms) for ms in CURVES[curve](rng, limit)]},
            draft_ms=float(rng.uniform(0.05, 0.6)),
            spread=float(rng.uniform(0.0, 0.9)),
            noise=0.02,
            transition=1.15,
            stall=0.01,
        )
