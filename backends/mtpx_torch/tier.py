"""Which tier to run in. "auto" is the row-invariant one where it costs a plain round next to nothing.

What it costs is the shapes of its attention, and padding rows where products need them: a plain step of
either tier is timed in turns, once a machine, model, precision and version of torch.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import torch

from mtpx.errors import BackendError
from mtpx.precision import TIERS, Tier, choose_tier
from mtpx_torch.attention import REACH, make_spans
from mtpx_torch.cache import KVCache
from mtpx_torch.invariance import invariant_bucket
from mtpx_torch.measured import machine, remembered

if TYPE_CHECKING:
    from mtpx.backend import Clock
    from mtpx.packs import Pack
    from mtpx_torch.trunk import Trunk

MOST = 1 / 0.97
"""Most that a plain round of the row-invariant tier may take, in plain rounds of the standard one, for
"auto" to choose it."""

CONTEXT = 4 * REACH + REACH // 2
"""Tokens before the timed step: a short chat's, and half-way between two reaches, where the row-invariant
tier reads as many keys too many as it does on average."""

REPEATS = 9
"""Steps of each tier that are timed."""

BUDGET_NS = 1_000_000_000
"""No further pair is begun after this time: a large model's step shows its price at once."""


def tier_of(asked: str, trunk: Trunk, pack: Pack, *, compiling: bool) -> Tier:
    """The tier to run in. Sets the trunk's bucket to what the row-invariant one needs.

    Raises `BackendError` where that tier is asked for and cannot be had.
    """
    if asked == "standard":
        return choose_tier(asked, free=False)
    bucket = invariant_bucket(trunk)
    if bucket is None and asked == "row-invariant":
        raise BackendError(
            f"the row-invariant tier cannot be had for {pack.name} here: torch's kernels give a row "
            "other bits when other rows run beside it, however it is padded; use --tier standard"
        )
    free = asked == "auto" and bucket is not None and _free(trunk, bucket, pack, compiling)
    tier = choose_tier(asked, free=free)
    if tier == "row-invariant" and bucket is not None:
        trunk.bucket = bucket
    return tier


def _free(trunk: Trunk, bucket: int, pack: Pack, compiling: bool) -> bool:
    # A compiled plain step on a CPU is the same graph in either tier.
    if compiling and bucket == trunk.bucket and trunk.device.type == "cpu":
        return True
    ms = remembered(
        ["tier", pack.name, pack.weights_digest, *machine(trunk.device), str(trunk.dtype),
         str(trunk.nbytes), str(bucket)],
        TIERS,
        lambda: plain_ms(trunk, bucket),
    )  # fmt: skip
    return ms["row-invariant"] <= MOST * ms["standard"]


def plain_ms(trunk: Trunk, bucket: int, clock: Clock = time.perf_counter_ns) -> dict[Tier, float]:
    """Milliseconds of an eager plain step in each tier, the row-invariant one over `bucket` rows: medians
    of steps that take turns."""
    config = trunk.config
    place = min(CONTEXT, trunk.rotary.cos.shape[0] - 1)
    cache = KVCache(
        config.layers, 1, config.kv_heads, place + 1, config.head_dim, trunk.dtype, trunk.device
    )
    ids, at = (torch.tensor([n], device=trunk.device) for n in (0, place))
    like = torch.empty(0, dtype=trunk.dtype, device=trunk.device)

    def step(tier: Tier) -> float:
        fixed = tier == "row-invariant"
        own, trunk.bucket = trunk.bucket, bucket if fixed else trunk.bucket
        try:
            start = clock()
            spans = make_spans([(0, place, 1)], trunk.group, like, fixed=fixed)
            trunk.output(trunk.norm(trunk.forward(ids, at, spans, cache)))
            if trunk.device.type == "cuda":
                torch.cuda.synchronize(trunk.device)
            return (clock() - start) / 1e6
        finally:
            trunk.bucket = own

    for tier in TIERS:
        step(tier)
    took: dict[Tier, list[float]] = {tier: [] for tier in TIERS}
    began = clock()
    for repeat in range(REPEATS):
        if repeat and clock() - began > BUDGET_NS:
            break
        for tier in TIERS if repeat % 2 else TIERS[::-1]:
            took[tier].append(step(tier))
    return {tier: median(ms) for tier, ms in took.items()}
