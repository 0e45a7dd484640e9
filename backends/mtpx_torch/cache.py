"""Key-value caches in static buffers: one pair of tensors per layer, one row of them per slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch


class KVCache:
    """`keys[i]`, `values[i]`: (width, kv_heads, context, head_dim) for layer i.

    Pages of memory are touched only as positions are written, so room for a long context costs
    nothing on a CPU until it is used.
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
        shape = (width, kv_heads, context, head_dim)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]

    def save_rows(self, slot: int, rows: int) -> list[torch.Tensor]:
        """Copies of a slot's first `rows` positions, one (kv_heads, rows, head_dim) a buffer."""
        return [b[slot, :, :rows].clone() for b in (*self.keys, *self.values)]

    def load_rows(self, slot: int, rows: int, saved: list[torch.Tensor]) -> None:
        """Put the first `rows` positions of what `save_rows` gave into a slot."""
        for buffer, rows_saved in zip((*self.keys, *self.values), saved, strict=True):
            buffer[slot, :, :rows] = rows_saved[:, :rows]


@dataclass(slots=True)
class Span:
    """Rows of one slot in a ragged forward: `count` rows from `offset` in the flat batch, written
    to cache rows start..start+count-1 of `slot`. `mask` (count, start + count) is True where a row
    may look; `None` for a single row, which sees everything."""

    slot: int
    start: int
    count: int
    offset: int
    mask: torch.Tensor | None

    @property
    def end(self) -> int:
        return self.start + self.count


def make_spans(pieces: list[tuple[int, int, int]], group: int, device: torch.device) -> list[Span]:
    """Spans for (slot, first cache row, count) pieces laid out one after another.

    `group` query heads share a KV head; their rows are stacked, so the mask is (group·count, end).
    """
    spans, offset = [], 0
    for slot, start, count in pieces:
        mask = None
        if count > 1:
            causal = torch.ones(count, start + count, dtype=torch.bool, device=device)
            mask = causal.tril_(diagonal=start).repeat(group, 1)
        spans.append(Span(slot, start, count, offset, mask))
        offset += count
    return spans
