"""One forward of the target over rows of one sequence, from embeddings to logits, as a function of
tensors alone: what the compiled route compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from mtpx_torch.attention import StepAttention, step_mask

if TYPE_CHECKING:
    from mtpx_torch.trunk import Trunk


class Step(NamedTuple):
    """residual and normed (rows, H): before and after the final norm; logits (rows, V)."""

    residual: torch.Tensor
    normed: torch.Tensor
    logits: torch.Tensor


def step(
    trunk: Trunk,
    x: torch.Tensor,
    positions: torch.Tensor,
    reached: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
) -> Step:
    """x (rows, H) embeddings at positions (rows,); reached (seen,) the positions attention reads;
    keys, values (kv_heads, room, d) a layer, written at the rows' positions."""
    rotation = trunk.rotary.at(positions)
    mask = step_mask(positions, reached, trunk.group, x.dtype)
    for block, k, v in zip(trunk.blocks, keys, values, strict=True):
        x = block(x, rotation, StepAttention(k, v, positions, mask, reached.shape[0]))
    normed = trunk.norm(x)
    return Step(x, normed, trunk.output(normed))
