"""Grouped-query attention over static caches, for rows of several sequences or of one.

What it computes for a row must not depend on the rows beside it where the tier says so. torch's CPU
kernel keeps a row's bits from two rows of a KV head on and for a length of keys that is a multiple of
32, whatever stands behind the mask (`mtpx_torch.invariance` proves it on the machine at hand); so in
that tier a lone row is doubled, and keys are read to the next multiple of `REACH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

REACH = 64
"""Keys are read up to a multiple of this in the row-invariant tier and on the compiled route."""

LEAST_ROWS = 2
"""Query rows of a sequence in the row-invariant tier."""


def reach(end: int) -> int:
    """`end` positions, rounded up to whole `REACH`es."""
    return -(-end // REACH) * REACH


@dataclass(slots=True)
class Span:
    """Rows of one slot in a ragged forward: `count` rows from `offset` in the flat batch, written
    to cache rows start..start+count-1 of `slot`; keys 0..seen-1 are read. `mask` (group·rows, seen)
    is added to the scores, rows ≥ count of them; `None` for a single row that sees all it reads."""

    slot: int
    start: int
    count: int
    offset: int
    seen: int
    mask: torch.Tensor | None

    @property
    def end(self) -> int:
        return self.start + self.count


def make_spans(
    pieces: Sequence[tuple[int, int, int]], group: int, like: torch.Tensor, *, fixed: bool
) -> list[Span]:
    """Spans for (slot, first cache row, count) pieces laid out one after another.

    `group` query heads share a KV head; their rows are stacked. `like` tells the mask's type and
    device. `fixed`: shapes as the row-invariant tier wants them.
    """
    spans, offset = [], 0
    for slot, start, count in pieces:
        end = start + count
        seen = reach(end) if fixed else end
        rows = max(count, LEAST_ROWS) if fixed else count
        mask = None
        if fixed or count > 1:
            last = torch.arange(start, start + rows, device=like.device)
            mask = causal_mask(last, torch.arange(seen, device=like.device), group, like.dtype)
        spans.append(Span(slot, start, count, offset, seen, mask))
        offset += count
    return spans


def causal_mask(
    positions: torch.Tensor, keys: torch.Tensor, group: int, dtype: torch.dtype
) -> torch.Tensor:
    """positions (rows,), keys (seen,) → (group·rows, seen), 0 where a row may look, else -inf."""
    hidden = keys > positions.unsqueeze(1)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=keys.device)
    return mask.masked_fill(hidden, -torch.inf).repeat(group, 1)


def step_mask(
    positions: torch.Tensor, keys: torch.Tensor, group: int, dtype: torch.dtype
) -> torch.Tensor:
    """`causal_mask` of rows of one sequence, a lone one doubled."""
    if positions.shape[0] < LEAST_ROWS:
        positions = positions.repeat(LEAST_ROWS)
    return causal_mask(positions, keys, group, dtype)


def mix(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """q (rows, heads, d), keys and values (kv_heads, seen, d) → (rows, heads, d)."""
    rows, heads, d = q.shape
    # The query heads of one KV head become rows of it: no copy of keys and values.
    stacked = q.transpose(0, 1).reshape(1, keys.shape[0], -1, d)
    out = F.scaled_dot_product_attention(
        stacked, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask
    )
    return out.view(heads, rows, d).transpose(0, 1)


@dataclass(frozen=True, slots=True)
class SpanAttention:
    """Attention of one layer over rows of several slots. keys, values (width, kv_heads, room, d)."""

    keys: torch.Tensor
    values: torch.Tensor
    spans: list[Span]
    group: int

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q (rows, heads, d), k and v (rows, kv_heads, d) → (rows, heads, d); writes the caches.
        Rows past the last span are padding: their result is 0."""
        mixed = torch.zeros_like(q)
        for span in self.spans:
            here = slice(span.offset, span.offset + span.count)
            keys, values = self.keys[span.slot], self.values[span.slot]
            keys[:, span.start : span.end] = k[here].transpose(0, 1)
            values[:, span.start : span.end] = v[here].transpose(0, 1)
            rows = q[here]
            if span.mask is not None and span.mask.shape[0] > self.group * span.count:
                rows = rows.repeat(LEAST_ROWS, 1, 1)
            seen = mix(rows, keys[:, : span.seen], values[:, : span.seen], span.mask)
            mixed[here] = seen[: span.count]
        return mixed


@dataclass(frozen=True, slots=True)
class StepAttention:
    """Attention of one layer over rows of one sequence, in operations a compiler can fuse.

    keys, values (kv_heads, room, d); positions (rows,); mask (group·rows, seen) as `step_mask` makes it.
    """

    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    seen: int

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, self.positions, k.transpose(0, 1))
        self.values.index_copy_(1, self.positions, v.transpose(0, 1))
        rows = q.shape[0]
        doubled = q.repeat(LEAST_ROWS, 1, 1) if rows < LEAST_ROWS else q
        return mix(doubled, self.keys[:, : self.seen], self.values[:, : self.seen], self.mask)[
            :rows
        ]
