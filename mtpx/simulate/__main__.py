"""`python -m mtpx.simulate --overhead`: host time of the loop, with and without a trace, and of the adaptive
policy alone, in µs a round."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtpx.backend import FloatArray
from mtpx.decode import Request, decode
from mtpx.policy import Batch, FixedDepth
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.simulate.engine import SimulatedEngine
from mtpx.simulate.light import play
from mtpx.simulate.regime import Regime
from mtpx.simulate.scenario import Scenario
from mtpx.trace.writer import TraceWriter

BAR_US = 100
"""What loop, policy and trace may cost a round: a round on a real device takes 10 ms and more."""


POLICY_BAR_US = 50
"""Of which the adaptive policy."""


class TimedPolicy(AdaptiveDepth):
    """The adaptive policy, its own time taken: `ns`."""

    def __init__(self) -> None:
        super().__init__()
        self.ns = 0

    def propose(self, batch: Batch) -> int:
        start = time.thread_time_ns()
        depth = super().propose(batch)
        self.ns += time.thread_time_ns() - start
        return depth

    def go_on(self, confidence: FloatArray) -> list[bool]:
        start = time.thread_time_ns()
        answer = super().go_on(confidence)
        self.ns += time.thread_time_ns() - start
        return answer

    def verify(self, confidence: FloatArray) -> list[int]:
        start = time.thread_time_ns()
        depths = super().verify(confidence)
        self.ns += time.thread_time_ns() - start
        return depths

    def observe(self, round: Round) -> None:
        start = time.thread_time_ns()
        super().observe(round)
        self.ns += time.thread_time_ns() - start


def policy_us(rounds: int, scenario: Scenario) -> float:
    """µs a round of the adaptive policy's own calls in this scenario."""
    policy = TimedPolicy()
    play(policy, scenario, rounds=rounds)
    return policy.ns / rounds / 1000


class Timed:
    """An engine whose calls are timed: `ns` is what was spent inside it."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self.info = engine.info
        self.ns = 0
        for name in ("route", "propose", "verify", "plain"):
            setattr(self, name, self._timed(getattr(engine, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return call(*arguments)
            finally:
                self.ns += time.perf_counter_ns() - start

        return timed


def overhead_us(rounds: int, *, depth: int, trace: Path | None = None) -> float:
    """µs a round of loop, policy and (with `trace`) trace writing, the engine's own time taken off."""
    engine = SimulatedEngine(Regime())
    slot = engine.open([1, 2, 3], Sampling(), seed=0)
    engine.prefill(slot, 16)
    timed: Any = Timed(engine)
    request = Request(0, slot, Sampling(), budget=rounds * (depth + 1))
    writer = TraceWriter(trace) if trace is not None else None
    done = 0
    start = time.perf_counter_ns()
    for round in decode(timed, FixedDepth(depth), [request]):
        if writer is not None:
            writer.write(round)
        done += 1
        if done == rounds:
            break
    total = time.perf_counter_ns() - start
    if writer is not None:
        writer.close()
    outside: int = total - timed.ns
    return outside / done / 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mtpx.simulate", description=__doc__)
    parser.add_argument("--overhead", action="store_true", help="print µs a round", required=True)
    parser.add_argument("--rounds", type=int, default=2000, help="rounds timed (default 2000)")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error("--rounds must be 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        for depth in (0, 1, 3):
            bare = overhead_us(rounds, depth=depth)
            traced = overhead_us(rounds, depth=depth, trace=Path(folder) / f"{depth}.jsonl")
            print(
                f"depth {depth}: {bare:.1f} µs a round, {traced:.1f} µs with a trace (bar {BAR_US} µs)"
            )
    cutting = Scenario(
        name="with cuts",
        acceptance=[0.5] * 4,
        cost_ms={1: [10.0, 13.0, 16.0, 19.0, 22.0]},
        spread=1.0,
    )
    stopping = Scenario(
        name="with chains that stop",
        acceptance=[0.5] * 4,
        cost_ms={1: [10.0, 10.2, 10.9, 11.6, 12.3]},
        draft_ms=1.5,
        spread=1.0,
        noise=0.02,
    )
    deep = Scenario(name="a head of eight", acceptance=[0.9] * 8, noise=0.02, transition=1.15)
    for scenario in (Scenario(name="a head of four", noise=0.02), deep, cutting, stopping):
        us = policy_us(rounds, scenario)
        print(f"adaptive policy, {scenario.name}: {us:.1f} µs a round (bar {POLICY_BAR_US} µs)")


if __name__ == "__main__":
    main()
