"""Policies against scenarios: shares of what the best fixed depth is expected to deliver, and bars.

The reference is expected, computed from the scenario (`scenario.reference`), never the best of some noisy
runs: that would reward luck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from mtpx.policy import DepthPolicy
from mtpx.simulate.light import Played, play
from mtpx.simulate.scenario import Scenario, reference, tables

BARS = {"stationary": ("static", 0.985), "wall": ("static", 0.97)}
"""What the default policy must reach, mean over seeds: share of the best static depth."""

PLAIN_BAR = 0.97
"""Share of plain decode that everything else must reach."""

ORACLE_ROOM = 1.02
"""A scenario that moves must be won against the best static depth where the oracle is this far above."""

SETTLED, WINDOW = 0.95, 64
"""Settled: from here a window of rounds is expected to deliver this share of the best static depth."""

BUCKETS = 32
"""Characters of the picture of depth over rounds."""


class Score(msgspec.Struct, frozen=True):
    """One policy in one scenario. `static`, `plain`, `oracle`: mean share of the best static depth, of
    plain decode, of the per-round oracle; `worst`, `worst_seed`: the lowest share of the best static depth;
    `first`: that share in the first 200 rounds; `settle`: rounds until settled (median; absent if a
    seed never was); `bar`: what it is held to, `ok` whether it holds; `depths`: mean depth over time."""

    policy: str
    scenario: str
    kind: str
    best_depth: int
    static: float
    plain: float
    oracle: float
    worst: float
    worst_seed: int
    first: float
    settle: int | None
    bar: str
    ok: bool
    depths: list[float]


def score(
    make: Callable[[], DepthPolicy],
    scenario: Scenario,
    *,
    rounds: int = 4000,
    seeds: int = 5,
    estimate: bool = False,
) -> Score:
    """Play `seeds` runs from cold. Raises `PolicyError` when the policy raises or answers nonsense."""
    runs = [play(make(), scenario, rounds=rounds, seed=seed) for seed in range(seeds)]
    grows = scenario.context_ms > 0.0
    mean_tokens = float(np.mean([run.tokens.sum() for run in runs])) if grows else None
    ref = reference(scenario, rounds, mean_tokens)
    early = min(200, rounds)
    head = [float(run.tokens[:early].sum()) for run in runs]
    ref_early = reference(scenario, early, float(np.mean(head)) if grows else None)
    shares = [run.rate / ref.best for run in runs]
    static = float(np.mean(shares))
    worst = int(np.argmin(shares))
    first = [
        tokens / float(run.ms[:early].sum()) / ref_early.best
        for tokens, run in zip(head, runs, strict=True)
    ]
    plain = static * ref.best / ref.plain
    bar, ok = _judge(scenario, static, plain, ref.oracle / ref.best)
    settles = [_settle(scenario, run) for run in runs]
    known = [s for s in settles if s is not None]
    return Score(
        policy=make().name,
        scenario=scenario.name,
        kind=scenario.kind,
        best_depth=ref.best_depth,
        static=static,
        plain=plain,
        oracle=static * ref.best / ref.oracle,
        worst=shares[worst],
        worst_seed=worst,
        first=float(np.mean(first)),
        settle=int(np.median(known)) if len(known) == len(runs) else None,
        bar=bar,
        ok=ok,
        depths=_picture(runs[worst].depths),
    )


def _judge(scenario: Scenario, static: float, plain: float, room: float) -> tuple[str, bool]:
    if scenario.kind in BARS:
        _, bar = BARS[scenario.kind]
        return f"≥ {bar:g} static", static >= bar
    if scenario.kind == "moving" and room >= ORACLE_ROOM:
        return "> 1 static", static > 1.0
    return f"≥ {PLAIN_BAR:g} plain", plain >= PLAIN_BAR


def _settle(scenario: Scenario, run: Played) -> int | None:
    """The first round from which a window delivers `SETTLED` of the best static depth, in expectation."""
    rounds = len(run.depths)
    t = tables(scenario, rounds)
    rows = np.arange(rounds)
    before = np.concatenate([[0.0], np.cumsum(run.tokens)[:-1]]) / t.width
    ms = t.ms(scenario.context + before)
    tokens = np.cumsum(t.tokens[rows, run.depths])
    spent = np.cumsum(ms[rows, run.depths])
    width = min(WINDOW, rounds)
    got = tokens[width - 1 :] - np.concatenate([[0.0], tokens[:-width]])
    took = spent[width - 1 :] - np.concatenate([[0.0], spent[:-width]])
    best = int(np.argmax(t.tokens.sum(axis=0) / ms.sum(axis=0)))
    ideal = np.cumsum(t.tokens[:, best])
    ideal_ms = np.cumsum(ms[:, best])
    want = (ideal[width - 1 :] - np.concatenate([[0.0], ideal[:-width]])) / (
        ideal_ms[width - 1 :] - np.concatenate([[0.0], ideal_ms[:-width]])
    )
    good = np.flatnonzero(got / took >= SETTLED * want)
    return int(good[0]) if good.size else None


def _picture(depths: Sequence[int] | np.ndarray) -> list[float]:
    parts = np.array_split(np.asarray(depths, dtype=np.float64), min(BUCKETS, len(depths)))
    return [float(part.mean()) for part in parts]
