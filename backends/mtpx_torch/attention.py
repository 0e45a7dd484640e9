"""Grouped-query attention over static caches, for rows of several sequences or of one.

What it computes for a row must not depend on the rows beside it where the tier says so. So in that tier
keys are read to the next multiple of `REACH` past the row itself, not past those beside it, and in half
precision every row of a round is a sequence of its own to torch's kernel. In float32 the kernel's bits
follow the thread that a sequence falls to, but not the number of rows of one sequence from two on: there
a lone row is doubled. `mtpx_torch.invariance` tries on the machine at hand whether that keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

REACH = 64
"""Keys are read up to a multiple of this in the row-invariant tier and on the compiled route."""

PIECE = 16
"""Keys that `mix_in_order` sums before it sums the sums."""

assert REACH % PIECE == 0

MOST_APART = 16
"""Rows up to which they are computed each by itself in the row-invariant tier: those of a round. A prompt's
are computed together, much faster."""

LEAST_ROWS = 2
"""Query rows of a sequence that torch's kernel is given in that tier where they are computed together."""


def reach(end: int) -> int:
    """`end` positions, rounded up to whole `REACH`es."""
    return -(-end // REACH) * REACH


@dataclass(slots=True)
class Span:
    """Rows of one slot in a ragged forward: `count` rows from `offset` in the flat batch, written
    to cache rows start..start+count-1 of `slot`; keys 0..seen-1 are read. `mask` as `mix` wants it;
    `None` for a single row that sees all it reads."""

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
        at, end = start, start + count
        while at < end:
            # Where `fixed`, rows on both sides of a multiple of REACH read different numbers of keys.
            seen = reach(at + 1) if fixed else end
            upto = min(end, seen)
            mask = None
            if fixed or count > 1:
                last = torch.arange(at, upto, device=like.device)
                mask = step_mask(last, seen, group, like.dtype, fixed=fixed)
            spans.append(Span(slot, at, upto - at, offset, seen, mask))
            offset += upto - at
            at = upto
    return spans


def causal_mask(positions: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """positions (rows,), keys (seen,) → (rows, seen), 0 where a row may look, else -inf."""
    hidden = keys > positions.unsqueeze(1)
    return torch.zeros(hidden.shape, dtype=dtype, device=keys.device).masked_fill(
        hidden, -torch.inf
    )


def step_mask(
    positions: torch.Tensor, seen: int, group: int, dtype: torch.dtype, *, fixed: bool
) -> torch.Tensor:
    """What `mix` is given for rows of one sequence: `causal_mask` for each of `group` query heads,
    (group·rows, seen). Where `fixed`, in half precision for each row of a round by itself, (rows, 1, 1,
    seen), in float32 for at least `LEAST_ROWS` rows."""
    mask = causal_mask(positions, torch.arange(seen, device=positions.device), dtype)
    rows = positions.shape[0]
    if fixed and rows <= MOST_APART and dtype != torch.float32:
        return mask[:, None, None]
    doubled = fixed and rows < LEAST_ROWS
    return mask.repeat(group * LEAST_ROWS if doubled else group, 1)


def mix(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """q (rows, heads, d), keys and values (kv_heads, seen, d) → (rows, heads, d). A mask of four
    dimensions asks for every row to be computed by itself, one of more rows than there are for a lone row
    to be computed several times over (`step_mask`)."""
    rows, heads, d = q.shape
    # The query heads of one KV head become rows of it: no copy of keys and values.
    if mask is not None and mask.ndim == 4:
        shape = (rows, *keys.shape)
        out = F.scaled_dot_product_attention(
            q.reshape(rows, keys.shape[0], -1, d),
            keys.expand(shape),
            values.expand(shape),
            attn_mask=mask,
        )
        return out.reshape(rows, heads, d)
    stacked = q.transpose(0, 1).reshape(1, keys.shape[0], -1, d)
    own = stacked.shape[2]
    again = mask is not None and mask.shape[0] > own
    if mask is not None and again:
        stacked = torch.cat([stacked] * (mask.shape[0] // own), dim=2)
    out = F.scaled_dot_product_attention(
        stacked, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask
    )
    if again:
        out = out[:, :, :own]
    apart: torch.Tensor = out[0].unflatten(1, (heads // keys.shape[0], rows))
    return apart.permute(2, 0, 1, 3).reshape(rows, heads, d)


def mix_in_order(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """`mix` for mask (rows, pieces, PIECE), with every sum taken over one row in one order, so that neither
    the rows beside it nor the keys behind its mask change a bit. For a compiler to fuse: eagerly it makes
    tensors of rows × heads × seen × d. It beats the kernel over one row, and loses from a few rows on."""
    rows, heads, d = q.shape
    kv, pieces = keys.shape[0], mask.shape[1]
    stacked = q.view(rows, kv, -1, d).permute(1, 0, 2, 3).float() * d**-0.5
    stacked = stacked.reshape(kv, -1, 1, 1, d)
    hidden = mask.float().repeat_interleave(heads // kv, dim=0)
    scores = (stacked * keys.view(kv, 1, pieces, PIECE, d).float()).sum(-1) + hidden
    shares = (scores - scores.amax((-2, -1), keepdim=True)).exp()
    # Piece by piece: torch's compiler sums up to 4096 numbers in another way than more of them.
    whole = shares.sum(-1).sum(-1).unsqueeze(-1)
    out: torch.Tensor = (
        (shares.unsqueeze(-1) * values.view(kv, 1, pieces, PIECE, d).float()).sum(-2).sum(-2)
    )
    mixed: torch.Tensor = (out / whole).view(kv, rows, -1, d).permute(1, 0, 2, 3)
    return mixed.reshape(rows, heads, d).to(q.dtype)


@dataclass(frozen=True, slots=True)
class SpanAttention:
    """Attention of one layer over rows of several slots. keys, values (width, kv_heads, room, d)."""

    keys: torch.Tensor
    values: torch.Tensor
    spans: list[Span]

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q (rows, heads, d), k and v (rows, kv_heads, d) → (rows, heads, d); writes the caches.
        Rows past the last span are padding: their result is 0."""
        parts = [self._mixed(span, q, k, v) for span in self.spans]
        last = self.spans[-1]
        if extra := q.shape[0] - last.offset - last.count:
            parts.append(q.new_zeros(extra, *q.shape[1:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _mixed(self, span: Span, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        here = slice(span.offset, span.offset + span.count)
        keys, values = self.keys[span.slot], self.values[span.slot]
        keys[:, span.start : span.end] = k[here].transpose(0, 1)
        values[:, span.start : span.end] = v[here].transpose(0, 1)
        return mix(q[here], keys[:, : span.seen], values[:, : span.seen], span.mask)


@dataclass(frozen=True, slots=True)
class StepAttention:
    """Attention of one layer over rows of one sequence, in operations a compiler can fuse.

    keys, values (kv_heads, room, d); positions (rows,) the rows' places in them; seen keys are read; mask
    as `mix_in_order` wants it if `ordered`, else as `mix` does.
    """

    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    seen: int
    mask: torch.Tensor
    ordered: bool

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, self.positions, k.transpose(0, 1))
        self.values.index_copy_(1, self.positions, v.transpose(0, 1))
        mixing = mix_in_order if self.ordered else mix
        return mixing(q, self.keys[:, : self.seen], self.values[:, : self.seen], self.mask)
