"""One Llama-family block over ragged rows: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Rows of several slots run through the products together, as one flat (rows, hidden) batch; only
attention looks at the slots one by one. Rows past the last span are padding: computed, never read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mtpx_torch.cache import Span
from mtpx_torch.product import Product


@dataclass(frozen=True, slots=True)
class BlockShape:
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """RoPE factors of the rows at hand, (rows, 1, head_dim): cos, and sin with the sign of
    Hugging Face's half-rotation folded in, so that x·cos + roll(x)·sin rotates."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, -1), self.sin)


class Norm:
    """RMSNorm with the weight as it multiplies."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(slots=True)
class Block:
    """`qkv` and `gate_up` are the fused products of q, k, v and of gate, up."""

    shape: BlockShape
    attention_norm: Norm
    qkv: Product
    out: Product
    ffn_norm: Norm
    gate_up: Product
    down: Product
    q_norm: Norm | None = None
    k_norm: Norm | None = None

    def __call__(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        keys: torch.Tensor,
        values: torch.Tensor,
        spans: list[Span],
    ) -> torch.Tensor:
        """x (rows, hidden) → (rows, hidden); writes the spans' keys and values to the cache."""
        x = x + self.out(self._attend(self.attention_norm(x), rotation, keys, values, spans))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def _attend(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        keys: torch.Tensor,
        values: torch.Tensor,
        spans: list[Span],
    ) -> torch.Tensor:
        s = self.shape
        rows = x.shape[0]
        qkv = self.qkv(x).view(rows, s.heads + 2 * s.kv_heads, s.head_dim)
        q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)
        else:
            qk = qkv[:, : s.heads + s.kv_heads]
        qk = rotation(qk)
        q, k = qk[:, : s.heads], qk[:, s.heads :]
        mixed = x.new_zeros(rows, s.heads, s.head_dim)
        for span in spans:
            here = slice(span.offset, span.offset + span.count)
            keys[span.slot, :, span.start : span.end] = k[here].transpose(0, 1)
            values[span.slot, :, span.start : span.end] = v[here].transpose(0, 1)
            # The query heads of one KV head become rows of it: no copy of keys and values.
            stacked = q[here].transpose(0, 1).reshape(1, s.kv_heads, -1, s.head_dim)
            seen = F.scaled_dot_product_attention(
                stacked,
                keys[span.slot : span.slot + 1, :, : span.end],
                values[span.slot : span.slot + 1, :, : span.end],
                attn_mask=span.mask,
            )
            mixed[here] = seen.view(s.heads, span.count, s.head_dim).transpose(0, 1)
        return mixed.view(rows, s.heads * s.head_dim)
