"""One Llama-family block over flat rows: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Rows of several slots run through the products together, as one (rows, hidden) batch; only attention
knows which rows belong together. There may be padding rows at the end: computed, never read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mtpx_torch.norm import Norm
from mtpx_torch.product import Product

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""q (rows, heads, d), k and v (rows, kv_heads, d), rotated → (rows, heads, d)."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """RoPE factors of the rows at hand, (rows, 1, head_dim), or of a batch, (batch, 1, columns,
    head_dim): cos, and sin with the sign of Hugging Face's half-rotation folded in, so that
    x·cos + roll(x)·sin rotates."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, -1), self.sin)


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

    def __call__(self, x: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        """x (rows, hidden) → (rows, hidden); `attend` writes the rows' keys and values."""
        x = x + self.out(self._attend(self.attention_norm(x), rotation, attend))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def _attend(self, x: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        s = self.shape
        rows = x.shape[0]
        qkv = self.qkv(x).view(rows, s.heads + 2 * s.kv_heads, s.head_dim)
        q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)
        else:
            qk = qkv[:, : s.heads + s.kv_heads]
        qk = rotation(qk)
        mixed = attend(qk[:, : s.heads], qk[:, s.heads :], v)
        return mixed.reshape(rows, s.heads * s.head_dim)
