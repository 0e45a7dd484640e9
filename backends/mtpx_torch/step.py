"""One forward of the target over rows of one sequence, from embeddings to logits, as a function of
tensors alone: what the compiled route compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from mtpx_torch.attention import PIECE, StepAttention, causal_mask, step_mask

if TYPE_CHECKING:
    from mtpx_torch.trunk import Trunk


class Step(NamedTuple):
    """residual and normed (rows, H): before and after the final norm; logits (rows, V)."""

    residual: torch.Tensor
    normed: torch.Tensor
    logits: torch.Tensor


def attention(
    spots: torch.Tensor, reached: torch.Tensor, group: int, dtype: torch.dtype, *, fixed: bool
) -> Callable[[torch.Tensor, torch.Tensor], StepAttention]:
    """(keys, values) of a layer, (kv_heads, room, d) → its attention over rows written at spots (rows,),
    which look at places reached (pieces, PIECE); `fixed`: in the row-invariant tier."""
    seen = reached.shape[0] * PIECE
    # On a GPU torch's kernels are the faster ones over one row, too.
    ordered = fixed or (spots.shape[0] == 1 and spots.device.type == "cpu")
    mask = (
        causal_mask(spots, reached.reshape(-1), dtype).view(-1, *reached.shape)
        if ordered
        else step_mask(spots, seen, group, dtype, fixed=False)
    )
    return lambda keys, values: StepAttention(keys, values, spots, seen, mask, ordered)


def step(
    trunk: Trunk,
    x: torch.Tensor,
    positions: torch.Tensor,
    reached: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    *,
    fixed: bool,
) -> Step:
    """x (rows, H) embeddings at positions (rows,); reached (pieces, PIECE) the positions attention reads;
    keys, values (kv_heads, room, d) a layer, written at the rows' positions."""
    rotation = trunk.rotary.at(positions)
    attend = attention(positions, reached, trunk.group, x.dtype, fixed=fixed)
    for block, k, v in zip(trunk.blocks, keys, values, strict=True):
        x = block(x, rotation, attend(k, v))
    normed = trunk.norm(x)
    return Step(x, normed, trunk.output(normed))
