"""The simulated machine: how long everything takes, and which shapes are compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mtpx.round import Route
from mtpx.simulate.clock import VirtualClock
from mtpx.simulate.regime import Regime


class Machine:
    """Advances `clock` as `regime` says; noise and stalls come from `seed`.

    `rounds` counts target forwards: the round at which `regime.changes` are read.
    """

    def __init__(self, regime: Regime, clock: VirtualClock, seed: int) -> None:
        self.regime = regime
        self.clock = clock
        self.rounds = 0
        self._random = np.random.default_rng(seed)
        self._uses: Counter[tuple[int, ...]] = Counter()
        self._compiled: set[tuple[int, ...]] = set()
        self._last: tuple[int, ...] | None = None

    def spend(self, ms: float) -> float:
        """Let `ms` pass, with noise; returns what passed."""
        if ms > 0.0 and self.regime.noise > 0.0:
            # Lognormal: a time is never negative, and its logarithm is what varies evenly.
            sigma = self.regime.noise
            ms *= float(np.exp(sigma * self._random.standard_normal() - sigma * sigma / 2))
        self.clock.advance(ms)
        return ms

    def draft(self, steps: int) -> float:
        """Head steps for the whole batch; ms."""
        return self.spend(self.regime.draft_total_ms(steps, round=self.rounds))

    def forward(self, rows: Sequence[int], context: int) -> tuple[Route, bool, float]:
        """One target forward: (route, compiled in this round, ms)."""
        shape = tuple(rows)
        compiled_now = False
        extra = 0.0
        if self.regime.compile_after and shape not in self._compiled:
            self._uses[shape] += 1
            if self._uses[shape] > self.regime.compile_after:
                self._compiled.add(shape)
                compiled_now, extra = True, self.regime.compile_ms
        route = self.route(shape)
        depth = sum(shape) / len(shape) - 1
        ms = self.regime.forward_ms(len(shape), depth, round=self.rounds, context=context)
        if route.kind == "eager":
            ms *= self.regime.eager_factor
        if self._last is not None and shape != self._last:
            ms *= self.regime.transition
        if self.regime.stall and self._random.random() < self.regime.stall:
            ms *= float(self._random.uniform(*self.regime.stall_factor))
        self._last = shape
        self.rounds += 1
        return route, compiled_now, self.spend(ms + extra)

    def route(self, rows: Sequence[int]) -> Route:
        bucket = "x".join(str(n) for n in rows)
        return Route("compiled" if tuple(rows) in self._compiled else "eager", bucket)

    def compile(self, rows: Sequence[int]) -> None:
        """Compile this shape now, if this machine compiles at all."""
        if self.regime.compile_after and tuple(rows) not in self._compiled:
            self._compiled.add(tuple(rows))
            self.spend(self.regime.compile_ms)
