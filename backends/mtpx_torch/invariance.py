"""Do a row's bits depend on how many rows ran beside it? Asked of the machine, not assumed.

Every product and the attention of the loaded model is run over the same rows in groups of every size
that decoding uses. Which kernels a library picks for how many rows is its own affair and changes from
version to version and from processor to processor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mtpx_torch.attention import REACH, mix, step_mask
from mtpx_torch.product import Product

if TYPE_CHECKING:
    from mtpx_torch.trunk import Trunk

GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
"""Sizes tried: every depth a head is likely to draft, and several sequences together."""

REACHES = (REACH, 4 * REACH, 5 * REACH, 16 * REACH)
"""Numbers of keys tried: a library may cut long sums into pieces, of 256 terms for instance."""

BUCKETS = (4, 8)
"""Least numbers of rows to try where a lone row has bits of its own."""


def invariant_bucket(trunk: Trunk) -> int | None:
    """The least number of rows a forward must be padded to for its rows to keep their bits: the
    trunk's own bucket where that does, at most 8; `None` where no padding helps."""
    if not _attention_keeps(trunk):
        return None
    products = _products(trunk)
    for bucket in sorted({trunk.bucket, *(b for b in BUCKETS if b > trunk.bucket)}):
        if all(_keeps(product, rows, bucket) for product, rows in products):
            return bucket
    return None


def _products(trunk: Trunk) -> list[tuple[Product, torch.Tensor]]:
    """Each kind of product, and rows that fit it."""
    block, config = trunk.blocks[0], trunk.config
    wide = config.heads * config.head_dim
    pairs = [
        (block.qkv, config.hidden),
        (block.out, wide),
        (block.gate_up, config.hidden),
        (block.down, config.ffn),
        (trunk.output, config.hidden),
    ]
    made = torch.Generator().manual_seed(0)
    return [
        (product, torch.randn(max(GROUPS), n, generator=made).to(trunk.device, trunk.dtype))
        for product, n in pairs
    ]


def _keeps(product: Product, rows: torch.Tensor, bucket: int) -> bool:
    whole = product(rows)
    for size in GROUPS:
        # The last rows of the group, so that a row also changes its place in it.
        group = rows[max(0, rows.shape[0] - size) :]
        if size < bucket:
            group = torch.cat([group, rows[: bucket - size]])
        if not torch.equal(product(group)[:size], whole[-size:]):
            return False
    return True


def _attention_keeps(trunk: Trunk) -> bool:
    """Whether a row's attention keeps its bits in groups of 1 to 8 rows that read as many keys as it."""
    config = trunk.config
    made = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made).to(trunk.device, trunk.dtype)

    q = numbers(8, config.heads, config.head_dim)
    keys, values = (numbers(config.kv_heads, max(REACHES), config.head_dim) for _ in range(2))

    def at(rows: range, seen: int) -> torch.Tensor:
        positions = torch.arange(seen - 10, seen, device=trunk.device)[rows.start : rows.stop]
        mask = step_mask(positions, seen, trunk.group, trunk.dtype, fixed=True)
        return mix(q[rows.start : rows.stop], keys[:, :seen], values[:, :seen], mask)

    for seen in REACHES:
        whole = at(range(8), seen)
        for size in range(1, 8):
            for i in range(9 - size):
                if not torch.equal(at(range(i, i + size), seen), whole[i : i + size]):
                    return False
    return True
