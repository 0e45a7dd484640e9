"""Key-value caches in static buffers: one pair of tensors per layer, one row of them per slot."""

from __future__ import annotations

import math
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch

from mtpx_torch.attention import REACH, reach

SLACK = 16
"""Positions past the context that padding rows may write to."""

assert SLACK <= REACH


class KVCache:
    """`keys[i]`, `values[i]`: (width, kv_heads, room, head_dim) for layer i; room is more than is ever
    read.

    Rows past what was written hold zeros or what a sequence before left, always finite: they are read
    behind a mask. Pages of memory are touched only as positions are written, so room for a long
    context costs nothing on a CPU until it is used.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        kv_heads: int,
        context: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (width, kv_heads, reach(context) + REACH, head_dim)
        self.keys = [zeros(shape, dtype, device) for _ in range(layers)]
        self.values = [zeros(shape, dtype, device) for _ in range(layers)]

    def of(self, slot: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """A slot's own keys and values, (kv_heads, room, head_dim) a layer."""
        return [b[slot] for b in self.keys], [b[slot] for b in self.values]

    def clear(self, slot: int, rows: int) -> None:
        """Zero a slot's first `rows` positions."""
        for buffer in (*self.keys, *self.values):
            buffer[slot, :, :rows] = 0

    def save_rows(self, slot: int, rows: int) -> list[torch.Tensor]:
        """Copies of a slot's first `rows` positions, one (kv_heads, rows, head_dim) a buffer."""
        return [b[slot, :, :rows].clone() for b in (*self.keys, *self.values)]

    def load_rows(self, slot: int, rows: int, saved: list[torch.Tensor]) -> None:
        """Put the first `rows` positions of what `save_rows` gave into a slot."""
        for buffer, rows_saved in zip((*self.keys, *self.values), saved, strict=True):
            buffer[slot, :, :rows] = rows_saved[:, :rows]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose pages the system hands out when they are first written, on a CPU."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Straight from the system: an allocator, numpy's too, may ask for huge pages, of which the first
    # positions of every head would touch one.
    pages = mmap(-1, dtype.itemsize * math.prod(shape), flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
