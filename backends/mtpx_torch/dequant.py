"""Checkpoint tensors to torch tensors. Block layouts are ggml's: 32 weights a block.

Q4_0: f16 d, 16 bytes; w = (q - 8)·d. Q4_1: f16 d, f16 m, 16 bytes; w = q·d + m. Q8_0: f16 d, 32
int8; w = q·d. In the 4-bit blocks the low nibbles are weights 0..15, the high ones 16..31.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mtpx.errors import PackError

if TYPE_CHECKING:
    from mtpx.checkpoint import Tensor

_PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "I64": torch.int64,
}


def to_torch(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`tensor` as a `dtype` tensor of its shape on `device` (integers keep their type).

    Raises `PackError` for a kind of block that is not read.
    """
    raw = torch.from_numpy(np.array(tensor.data, copy=True).reshape(-1)).to(device)
    shape = tuple(int(n) for n in tensor.shape)
    if tensor.kind in _PLAIN:
        plain = raw.view(_PLAIN[tensor.kind]).reshape(shape)
        return plain if not plain.is_floating_point() else plain.to(dtype)
    if tensor.kind == "Q8_0":
        blocks = raw.view(-1, 34)
        d = blocks[:, :2].contiguous().view(torch.float16).float()
        w = blocks[:, 2:].contiguous().view(torch.int8).float() * d
    elif tensor.kind == "Q4_1":
        blocks = raw.view(-1, 20)
        d = blocks[:, :2].contiguous().view(torch.float16).float()
        m = blocks[:, 2:4].contiguous().view(torch.float16).float()
        w = _nibbles(blocks[:, 4:]).mul_(d).add_(m)
    elif tensor.kind == "Q4_0":
        blocks = raw.view(-1, 18)
        d = blocks[:, :2].contiguous().view(torch.float16).float()
        w = _nibbles(blocks[:, 2:]).sub_(8).mul_(d)
    else:
        raise PackError(f"tensor {tensor.name} is stored as {tensor.kind}, which is not read")
    return w.reshape(shape).to(dtype)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """(blocks, 16) bytes → (blocks, 32) float32 in 0..15."""
    return torch.cat([packed & 0x0F, packed >> 4], dim=1).float()
