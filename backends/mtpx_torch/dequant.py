"""Checkpoint tensors to torch tensors. Block layouts are ggml's: 32 weights a block.

Q4_0: f16 d, 16 bytes; w = (q - 8)·d. Q4_1: f16 d, f16 m, 16 bytes; w = q·d + m. Q8_0: f16 d, 32
int8; w = q·d. In the 4-bit blocks the low nibbles are weights 0..15, the high ones 16..31.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mtpx.checkpoint import check_whole, forget
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
    return decode(raw(tensor, device), tensor.kind, tensor.name, dtype).reshape(tensor.shape)


def raw(tensor: Tensor, device: torch.device) -> torch.Tensor:
    """(nbytes,) uint8 on `device`: a copy, so that the file need not stay mapped. Raises `PackError` when
    the file was shortened meanwhile."""
    check_whole(tensor.data, tensor.name)
    copy = torch.from_numpy(np.array(tensor.data, copy=True).reshape(-1))
    forget(tensor.data)
    return copy.to(device)


def decode(data: torch.Tensor, kind: str, name: str, dtype: torch.dtype) -> torch.Tensor:
    """(bytes,) uint8 of whole blocks → the numbers they stand for, flat."""
    if kind in _PLAIN:
        plain = data.view(_PLAIN[kind])
        return plain.to(dtype) if plain.is_floating_point() else plain
    if kind == "Q8_0":
        blocks = data.view(-1, 34)
        return blocks[:, 2:].contiguous().view(torch.int8).float().mul_(_half(blocks, 0)).to(dtype)
    if kind == "Q4_1":
        blocks = data.view(-1, 20)
        return _nibbles(blocks[:, 4:]).mul_(_half(blocks, 0)).add_(_half(blocks, 2)).to(dtype)
    if kind == "Q4_0":
        blocks = data.view(-1, 18)
        return _nibbles(blocks[:, 2:]).sub_(8).mul_(_half(blocks, 0)).to(dtype)
    raise PackError(f"tensor {name} is stored as {kind}, which is not read")


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """(blocks, 1) the half-precision number at byte `at` of every block."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """(blocks, 16) bytes → (blocks, 32) float32 in 0..15."""
    return torch.cat([packed & 0x0F, packed >> 4], dim=1).float()
