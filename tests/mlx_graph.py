"""What a round costs the host on MLX: graph nodes and milliseconds, for a model of 64 layers.

    python tests/mlx_graph.py [--layers 64] [--rounds 20]

Weights are random and tiny, so that hardly any arithmetic is left: the graph has the shape of a 27B
model's (48 recurrent layers and 16 of attention, or 64 of attention), and what is timed is building it
and handing it to MLX. A GPU computes while the host does that for the next plain step, but not for the
next drafting round, which needs this one's tokens.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
from qwen_makers import make_qwen
from torch_makers import make_pack

from mtpx import packs
from mtpx.backend import EngineOptions
from mtpx.packs import Pack
from mtpx.sampling import Sampling
from mtpx_mlx import MlxBackend, engine
from mtpx_mlx.engine import MlxEngine

PROMPT = list(range(1, 17))


class Watch:
    """Looks at every round where the engine asks for its results: what was built, and since when."""

    def __init__(self) -> None:
        self.started, self.built, self.nodes = 0, 0.0, 0
        self.counting = False

    def read(self, parts: Sequence[Any], *also: Any) -> Any:
        self.built = (time.perf_counter_ns() - self.started) / 1e6
        if self.counting:
            text = io.StringIO()
            mx.export_to_dot(text, *(array for part in parts for array in part.values()))
            self.nodes = text.getvalue().count("shape=rectangle")
        return _read(parts, *also)


_read = engine.read


@contextmanager
def watched() -> Iterator[Watch]:
    watch = Watch()
    engine.read = watch.read
    try:
        yield watch
    finally:
        engine.read = _read


def one_round(on: MlxEngine, slot: Any, depth: int) -> None:
    if depth:
        drafts = on.propose([slot], [depth])
        on.verify([slot], drafts, drafts.counts)
    else:
        on.plain([slot])


def measure(on: MlxEngine, depth: int, rounds: int) -> tuple[int, float, float]:
    """(nodes, ms until the graph is handed over, ms of the whole round), medians."""
    slot = on.open(PROMPT, Sampling(), 0, head=depth > 0)
    while not on.prefill(slot, 512):
        pass
    built, whole = [], []
    with watched() as watch:
        for index in range(rounds + 2):
            watch.counting = index == 1
            watch.started = time.perf_counter_ns()
            one_round(on, slot, depth)
            if index >= 2:  # the first compiles, the second counts
                built.append(watch.built)
                whole.append((time.perf_counter_ns() - watch.started) / 1e6)
    slot.close()
    return watch.nodes, statistics.median(built), statistics.median(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    print("model                depth   nodes   ms to build   ms a round")
    with tempfile.TemporaryDirectory() as folder:
        for name, pack in made(Path(folder), asked.layers):
            on = MlxBackend().load(pack, EngineOptions(pipeline=False))
            for depth in (0, 1, 3):
                nodes, built, whole = measure(on, depth, asked.rounds)
                print(f"{name:20} {depth:5} {nodes:7,} {built:13.2f} {whole:12.2f}", flush=True)
            on.close()


def made(folder: Path, layers: int) -> Iterator[tuple[str, Pack]]:
    yield f"attention, {layers} layers", make_pack(folder / "attention", num_hidden_layers=layers)
    hybrid = make_qwen(folder / "hybrid", num_hidden_layers=layers, full_attention_interval=4)
    yield f"hybrid, {layers} layers", packs.resolve(hybrid)


if __name__ == "__main__":
    main()
