"""Regimes nobody chose: machines, heads and texts drawn at random, to find where a policy is weak.

The bar of none of them was known when the policy was made. The same seed draws the same regimes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from mtpx.errors import PolicyError
from mtpx.sampling import Array
from mtpx.simulate.regime import Change
from mtpx.simulate.scenario import Scenario, reference

MOST = 10_000

ROUNDS = 4000
"""Within which what changes, changes."""

WALL = 0.95
"""A depth before the best one that is worth less than this share of plain decode makes it a wall."""

Rng = np.random.Generator


def _flat(rng: Rng, d: Array) -> Array:
    return 1.0 + rng.uniform(0.0, 0.04) * d


def _steep(rng: Rng, d: Array) -> Array:
    return 1.0 + rng.uniform(0.05, 0.6) * d


def _flat_then_steep(rng: Rng, d: Array) -> Array:
    knee = int(rng.integers(1, len(d)))
    return 1.0 + rng.uniform(0.0, 0.05) * d + rng.uniform(0.15, 0.8) * np.maximum(0.0, d - knee)


def _levelling(rng: Rng, d: Array) -> Array:
    return 1.0 + rng.uniform(0.1, 0.8) * np.sqrt(d)


def _steps(rng: Rng, d: Array) -> Array:
    rows = int(rng.integers(2, 5))
    return 1.0 + rng.uniform(0.0, 0.03) * d + rng.uniform(0.1, 0.7) * (d // rows)


def _doubling(rng: Rng, d: Array) -> Array:
    return 1.0 + rng.uniform(0.0, 0.03) * d + rng.uniform(0.1, 0.6) * np.ceil(np.log2(d + 1.0))


def _wall(rng: Rng, d: Array) -> Array:
    dip, height = int(rng.integers(1, len(d))), rng.uniform(1.4, 2.4)
    dear = (d > 0) & (d < dip)
    if rng.random() < 0.5:
        dear |= d > dip
    return np.where(dear, height, 1.0) + rng.uniform(0.02, 0.1) * d


def _dips(rng: Rng, d: Array) -> Array:
    dear = (d > 0) & (rng.random(len(d)) < 0.5)
    return 1.0 + rng.uniform(0.02, 0.2) * d + np.where(dear, rng.uniform(0.3, 1.2), 0.0)


def _wild(rng: Rng, d: Array) -> Array:
    return np.where(d > 0, rng.uniform(0.95, 2.5, len(d)), 1.0)


CURVES: dict[str, Callable[[Rng, Array], Array]] = {
    "flat": _flat,
    "steep": _steep,
    "flat, then steep": _flat_then_steep,
    "levelling": _levelling,
    "steps": _steps,
    "doubling": _doubling,
    "wall": _wall,
    "dips": _dips,
    "wild": _wild,
}
"""Cost of a forward by depth, (k + 1,), relative to plain decode."""

MOVES = (*[""] * 6, "drift", "growth", "throttle", "drift and throttle")
"""What changes while it runs, as often as it stands here."""


def drawn(count: int, seed: int = 0) -> Iterator[Scenario]:
    """`count` regimes: heads of 1 to 8 positions from nearly dead to nearly perfect, cost curves of every
    kind, one sequence or several, confidences from useless to telling; noise and stalls as published,
    changes of shape as dear as that or less. Two in five move: texts, contexts, clocks.

    Raises `PolicyError` for a count outside 1..10,000."""
    if not 1 <= count <= MOST:
        raise PolicyError(f"1 to {MOST} regimes can be drawn, got {count}")
    rng = np.random.default_rng(seed)
    for number in range(count):
        yield _one(rng, number)


def _one(rng: Rng, number: int) -> Scenario:
    limit = int(rng.integers(1, 9))
    plain_ms = float(np.exp(rng.uniform(np.log(5.0), np.log(120.0))))
    width = 1 if rng.random() < 0.7 else int(rng.integers(2, 9))
    curve, move = str(rng.choice(list(CURVES))), str(rng.choice(MOVES))
    cost = plain_ms * CURVES[curve](rng, np.arange(limit + 1.0))
    scenario = Scenario(
        name=f"{number}: {curve}" + (f", {move}" if move else ""),
        kind="moving" if move else "stationary",
        width=width,
        acceptance=_acceptance(rng, limit),
        cost_ms={width: cost.tolist()},
        draft_ms=plain_ms * float(rng.uniform(0.005, 0.12)),
        read_ms=plain_ms * float(rng.choice([0.0, 0.0, 0.005, 0.02])),
        spread=0.0 if rng.random() < 0.4 else float(rng.uniform(0.1, 1.0)),
        context_ms=plain_ms * float(rng.uniform(0.03, 0.4)) if move == "growth" else 0.0,
        noise=0.02,
        transition=float(rng.choice([1.15, 1.15, 1.15, 1.05, 1.0])),
        stall=0.01,
        changes=_changes(rng, limit, move),
    )
    return scenario if move else msgspec.structs.replace(scenario, kind=_kind(scenario))


def _acceptance(rng: Rng, limit: int) -> list[float]:
    first, j = rng.uniform(0.1, 0.95), np.arange(limit)
    rates = {
        "falls": first * rng.uniform(0.75, 1.0) ** j,
        "breaks off": np.where(j < rng.integers(1, limit + 1), first, 0.4 * first),
        "rises": first + (0.97 - first) * (1.0 - rng.uniform(0.5, 1.0) ** j),
        "rough": first * rng.uniform(0.85, 1.0) ** j + rng.normal(0.0, 0.08, limit),
    }
    return [float(rate) for rate in np.clip(rates[str(rng.choice(list(rates)))], 0.02, 0.98)]


def _changes(rng: Rng, limit: int, move: str) -> Sequence[Change]:
    changes = []
    if "drift" in move:
        for at in rng.integers(100, ROUNDS, int(rng.integers(1, 9))):
            over = int(rng.choice([0, 0, 0, 200, 800]))
            changes.append(Change(at=int(at), over=over, acceptance=_acceptance(rng, limit)))
    if "throttle" in move:
        for at in rng.integers(100, ROUNDS, int(rng.integers(1, 4))):
            factor = float(np.exp(rng.uniform(np.log(0.6), np.log(1.8))))
            changes.append(Change(at=int(at), over=int(rng.choice([0, 300])), cost_factor=factor))
    return sorted(changes, key=lambda change: change.at)


def _kind(scenario: Scenario) -> str:
    """The bar that fits what was drawn."""
    found = reference(scenario, 1)
    before = found.static[1 : found.best_depth]
    if not found.best_depth:
        return "dead"
    return "wall" if any(rate < WALL * found.plain for rate in before) else "stationary"
