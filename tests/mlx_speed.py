"""Plain decoding here against mlx-lm's own `generate_step`: the same model object, interleaved.

    python tests/mlx_speed.py [--pack NAME] [--tokens 32] [--blocks 8]

Prints the ratio of the two rates, block by block in ABBA order, and its median. What is compared is
everything between two tokens: the forward, the choice of the token, and each loop's own overhead. The
prompt is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import mlx.core as mx
from mlx_lm.generate import generate_step

from mtpx import packs
from mtpx.backend import EngineOptions
from mtpx.decode import Request, decode
from mtpx.policy import FixedDepth
from mtpx.sampling import Sampling
from mtpx_mlx import MlxBackend
from mtpx_mlx.engine import MlxEngine

PROMPT = [1, 5345, 314, 260, 6376, 4461, 47, 2]


def ours(engine: MlxEngine, tokens: int) -> tuple[list[int], float]:
    """(tokens, seconds from the first to the last)."""
    slot = engine.open(PROMPT, Sampling(), 0, head=False)
    while not engine.prefill(slot, 512):
        pass
    request = Request(0, slot, Sampling(), budget=tokens)
    rounds = decode(engine, FixedDepth(0), [request])
    next(rounds)
    start = time.perf_counter()
    for _ in rounds:
        pass
    seconds = time.perf_counter() - start
    slot.close()
    return request.delivered, seconds


def theirs(engine: MlxEngine, tokens: int) -> tuple[list[int], float]:
    steps = generate_step(mx.array(PROMPT), engine.target.model, max_tokens=tokens)
    found = [next(steps)[0]]
    start = time.perf_counter()
    found += [token for token, _ in steps]
    return found, time.perf_counter() - start


def compare(engine: MlxEngine, tokens: int, blocks: int) -> list[float]:
    """Our rate over theirs, one number a block."""
    ratios = []
    arms: list[Callable[[MlxEngine, int], tuple[list[int], float]]] = [ours, theirs]
    for block in range(blocks):
        order = arms if block % 2 == 0 else arms[::-1]
        seconds = {ours: 0.0, theirs: 0.0}
        texts = []
        for arm in [*order, *order[::-1]]:
            text, took = arm(engine, tokens)
            seconds[arm] += took
            texts.append(text)
        assert all(text == texts[0] for text in texts), "the two loops give different text"
        ratios.append(seconds[theirs] / seconds[ours])
        rate = 2 * (tokens - 1) / seconds[ours]
        print(f"block {block + 1}: {ratios[-1]:.3f} × generate_step ({rate:.1f} tok/s)", flush=True)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pack", default=packs.EMBEDDED)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=8)
    asked = parser.parse_args()
    engine = MlxBackend().load(packs.resolve(asked.pack), EngineOptions())
    for arm in (ours, theirs):
        arm(engine, 4)
    ratios = sorted(compare(engine, asked.tokens, asked.blocks))
    print(
        f"plain: {statistics.median(ratios):.3f} × mlx-lm's generate_step (median of {len(ratios)} "
        f"blocks, {ratios[0]:.3f} to {ratios[-1]:.3f}), {engine.info.device}"
    )


if __name__ == "__main__":
    main()
