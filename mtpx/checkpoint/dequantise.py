"""Stored bytes to float32: the numpy reference, and what a backend may use for small tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mtpx.checkpoint.mapped import check_whole
from mtpx.checkpoint.tensor import BLOCKS, Tensor
from mtpx.errors import PackError

Floats = npt.NDArray[np.float32]


def dequantise(tensor: Tensor) -> Floats:
    """The tensor's numbers, float32, in its shape, rows in stored order (a permuted one stays so).

    Block layouts after ggml: Q4_0 is half d, 16 bytes of nibbles, x = (q - 8) d; Q4_1 is half d,
    half m, 16 bytes of nibbles, x = q d + m; Q8_0 is half d, 32 signed bytes, x = q d. The low
    nibbles are a block's first 16 numbers, the high ones its last 16.

    Raises `PackError` for an integer tensor, and for a file that was shortened since it was opened.
    """
    check_whole(tensor.data, tensor.name)
    data = tensor.data
    flat: npt.NDArray[Any]
    match tensor.kind:
        case "F32":
            flat = data.view("<f4")
        case "F16":
            flat = data.view("<f2")
        case "BF16":
            # A bfloat16 is the upper half of a float32.
            flat = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case "Q4_0":
            blocks = data.reshape(-1, BLOCKS["Q4_0"].bytes)
            flat = _half(blocks, 0) * (_nibbles(blocks[:, 2:]) - np.float32(8))
        case "Q4_1":
            blocks = data.reshape(-1, BLOCKS["Q4_1"].bytes)
            flat = _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)
        case "Q8_0":
            blocks = data.reshape(-1, BLOCKS["Q8_0"].bytes)
            flat = _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)
        case "I32" | "I64":
            raise PackError(f"{tensor.name} holds integers ({tensor.kind}), not weights")
    return np.array(flat, dtype=np.float32).reshape(tensor.shape)


def integers(tensor: Tensor) -> npt.NDArray[np.int64]:
    """An index table (I32 or I64) as int64, in its shape. Raises `PackError` for anything else."""
    if tensor.kind not in ("I32", "I64"):
        raise PackError(f"{tensor.name} must hold integers (I32 or I64), it holds {tensor.kind}")
    stored = tensor.data.view("<i4" if tensor.kind == "I32" else "<i8")
    return stored.astype(np.int64).reshape(tensor.shape)


def _half(blocks: npt.NDArray[np.uint8], at: int) -> Floats:
    """(blocks, 1) the half-precision number at byte `at` of every block."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: npt.NDArray[np.uint8]) -> Floats:
    """(blocks, 16) bytes to (blocks, 32) numbers 0..15: low nibbles, then high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
