"""`--precision auto`: which of the precisions that a pack declares good is the fastest here?

Measured once a machine, pack and version of torch, in a few hundred milliseconds: the products of a few
blocks, long enough not to sit in a cache. What a product costs decides a plain step; a precision whose
rows are cheaper still may draft deeper, which is for `mtpx bench` to say.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import torch

from mtpx.precision import Precision
from mtpx_torch.measured import machine, remembered
from mtpx_torch.recipe import make_recipe
from mtpx_torch.trunk import load_block
from mtpx_torch.weights import WeightReader

if TYPE_CHECKING:
    from mtpx.checkpoint import Checkpoint
    from mtpx.packs import Pack

WEIGHTS = 40_000_000
"""Weights to run through: 20 MB of them in 4 bits are beyond a core's own caches."""

REPEATS = 7


def fastest(
    pack: Pack, checkpoint: Checkpoint, device: torch.device, candidates: Sequence[Precision]
) -> Precision:
    """One of `candidates` (at least one); measured, or remembered from an earlier load."""
    if len(candidates) == 1:
        return candidates[0]
    ms = remembered(
        ["precision", pack.name, pack.weights_digest, *machine(device), *candidates],
        candidates,
        lambda: {name: _products_ms(checkpoint, device, name) for name in candidates},
    )
    return min(candidates, key=lambda name: ms[name])


def _products_ms(checkpoint: Checkpoint, device: torch.device, precision: Precision) -> float:
    """Milliseconds of a few blocks' products over the rows of a plain step."""
    config = checkpoint.config
    recipe = make_recipe(precision, device)
    reader = WeightReader(checkpoint.tensors, config, recipe.dtype, device)
    wide = config.heads * config.head_dim
    block = config.hidden * (2 * wide + 2 * config.kv_heads * config.head_dim + 3 * config.ffn)
    count = min(config.layers, -(-WEIGHTS // block))
    blocks = [load_block(reader, f"model.layers.{i}.", recipe) for i in range(count)]
    made = {
        n: torch.randn(recipe.bucket, n, device=device).to(recipe.dtype)
        for n in (config.hidden, wide, config.ffn)
    }

    def once() -> float:
        start = time.perf_counter()
        for b in blocks:
            b.qkv(made[config.hidden])
            b.out(made[wide])
            b.gate_up(made[config.hidden])
            b.down(made[config.ffn])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) * 1e3

    once()
    return median(once() for _ in range(REPEATS))
