"""`python -m mtpx.simulate --overhead`: host time of the loop, with and without a trace, in µs a round."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtpx.decode import Request, decode
from mtpx.policy import FixedDepth
from mtpx.sampling import Sampling
from mtpx.simulate.engine import SimulatedEngine
from mtpx.simulate.regime import Regime
from mtpx.trace.writer import TraceWriter

BAR_US = 100
"""What loop, policy and trace may cost a round: a round on a real device takes 10 ms and more."""


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


if __name__ == "__main__":
    main()
