"""A weight as it lies in its file: raw bytes, their block layout, and the shape they stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Kind = Literal["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "I32", "I64"]
"""How numbers are stored. The last two are for index tables of a head, never for weights."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Block:
    """`elements` consecutive numbers of a row stand in `bytes` consecutive bytes."""

    elements: int
    bytes: int


# The quantised layouts are ggml's block_q4_0, block_q4_1 and block_q8_0 (ggml-common.h).
BLOCKS: dict[Kind, Block] = {
    "F32": Block(1, 4),
    "F16": Block(1, 2),
    "BF16": Block(1, 2),
    "Q4_0": Block(32, 18),
    "Q4_1": Block(32, 20),
    "Q8_0": Block(32, 34),
    "I32": Block(1, 4),
    "I64": Block(1, 8),
}

assert set(BLOCKS) == set(get_args(Kind))


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One tensor of a checkpoint.

    `shape` is row-major, output rows first: (rows, columns) of a matrix. `data` holds the raw bytes,
    (nbytes,) uint8, read-only, a view of the mapped file; a row's bytes are consecutive.
    `permuted`: the rows of this q or k projection are ordered for interleaved rotary embedding, as
    GGUF stores them for the llama architecture; `unpermute_rows` undoes it.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    data: Bytes
    permuted: bool = False

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def rows(self) -> Bytes:
        """(shape[0], bytes a row) view of `data`, of a tensor with at least one dimension."""
        return self.data.reshape(self.shape[0], -1)


def stored_bytes(shape: tuple[int, ...], kind: Kind) -> int:
    """Bytes a tensor of this shape takes; its last dimension is a multiple of the block."""
    block = BLOCKS[kind]
    return math.prod(shape) // block.elements * block.bytes


def unpermute_rows(n_heads: int, rows: int) -> npt.NDArray[np.intp]:
    """(rows,) indices that put the rows of a permuted q or k projection back: `w[index]`.

    GGUF stores, per head, row pairs (j, j + head_dim / 2) side by side; Hugging Face checkpoints,
    and rotary embedding by halves, want the first halves together. `n_heads` counts the heads of
    this projection: query heads for q, key-value heads for k. It divides `rows` evenly in pairs.
    """
    index = np.arange(rows, dtype=np.intp).reshape(n_heads, rows // n_heads // 2, 2)
    return np.ascontiguousarray(index.swapaxes(1, 2)).reshape(rows)
