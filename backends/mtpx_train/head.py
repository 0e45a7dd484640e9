"""The head while it is trained: one Llama block over pairs, and chains of its own hidden states.

Pair k joins the embedding of token k + 1 with the target's hidden state k, sits at RoPE k + 1 and
foresees token k + 2. Step s of the chain from pair k joins token k + s with the head's own output of
step s - 1, sits at RoPE k + s, and sees pairs 0..k and the chain's own steps: what the engine's head
sees when it drafts, with the drafts taken to be right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from mtpx_torch.block import Rotation
from mtpx_torch.trunk import Rotary
from mtpx_train.trunk import Layer

if TYPE_CHECKING:
    from mtpx.checkpoint import TargetConfig
    from mtpx_train.batches import Batch


@dataclass(frozen=True, slots=True)
class Start:
    """What the head begins as. The block is the trunk's `layer`, made for a residual stream of RMS
    `scale` where the head's is about 1; `fc` (H, 2H) and `norm_hidden` (H,) join the pair; `norm` (H,)
    is the trunk's final one."""

    layer: Layer
    norm: torch.Tensor
    norm_hidden: torch.Tensor
    fc: torch.Tensor
    scale: float


class DraftHead(nn.Module):
    """Weights in float32, (out, in); q, k, v and gate, up fused."""

    def __init__(self, config: TargetConfig, start: Start) -> None:
        super().__init__()
        self.config = config
        H, layer = config.hidden, start.layer
        self.norm_embedding = nn.Parameter(torch.ones(H))
        self.norm_hidden = nn.Parameter(start.norm_hidden.float().clone())
        self.fc = nn.Parameter(start.fc.float().clone())
        self.attention_norm = nn.Parameter(layer.attention_norm.float().clone())
        self.qkv = nn.Parameter(layer.qkv.float().clone())
        self.out = nn.Parameter(layer.out.float() / start.scale)
        self.ffn_norm = nn.Parameter(layer.ffn_norm.float().clone())
        self.gate_up = nn.Parameter(layer.gate_up.float().clone())
        self.down = nn.Parameter(layer.down.float() / start.scale)
        self.norm = nn.Parameter(start.norm.float().clone())

    def forward(
        self, batch: Batch, embedding: torch.Tensor, rotary: Rotary, steps: int
    ) -> list[torch.Tensor]:
        """→ for every step the head's hidden states (B, A, H) at the batch's answer columns, in the
        dtype of the batch's hidden states."""
        dtype = batch.hidden.dtype
        w = {name: p.to(dtype) for name, p in self.named_parameters()}
        P, A = batch.prompt_columns, batch.answer_columns
        embedded = F.embedding(batch.tokens, embedding).to(dtype)
        x = self._join(w, embedded[:, 1 : P + A + 1], batch.hidden)
        q, k, v = self._project(w, x, rotary.at((batch.positions + 1).clamp_min(0)))
        keys, values = [k], [v]
        mask = batch.mask
        x = self._finish(w, x[:, P:], q[:, :, P:], keys, values, mask)
        states = [F.rms_norm(x, (x.shape[-1],), w["norm"], self.config.rms_eps)]
        own = torch.eye(A, dtype=torch.bool, device=mask.device).expand(mask.shape[0], 1, A, A)
        for step in range(2, steps + 1):
            x = self._join(w, embedded[:, P + step :][:, :A], states[-1])
            q, k, v = self._project(w, x, rotary.at(batch.positions[:, P:] + step))
            keys.append(k)
            values.append(v)
            mask = torch.cat([mask, own], dim=-1)
            x = self._finish(w, x, q, keys, values, mask)
            states.append(F.rms_norm(x, (x.shape[-1],), w["norm"], self.config.rms_eps))
        return states

    def _join(
        self, w: dict[str, torch.Tensor], embedded: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        H, eps = (hidden.shape[-1],), self.config.rms_eps
        e = F.rms_norm(embedded, H, w["norm_embedding"], eps)
        h = F.rms_norm(hidden, H, w["norm_hidden"], eps)
        return F.linear(torch.cat([e, h], dim=-1), w["fc"])

    def _project(
        self,
        w: dict[str, torch.Tensor],
        x: torch.Tensor,
        rotation: Rotation,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x (B, T, H) → q (B, heads, T, D), rotated; k, v (B, heads, T, D), repeated over groups."""
        c = self.config
        B, T, H = x.shape
        normed = F.rms_norm(x, (H,), w["attention_norm"], c.rms_eps)
        qkv = F.linear(normed, w["qkv"]).view(B, T, -1, c.head_dim).transpose(1, 2)
        q, k, v = qkv.split([c.heads, c.kv_heads, c.kv_heads], dim=1)
        group = c.heads // c.kv_heads
        k = rotation(k).repeat_interleave(group, 1)
        return rotation(q), k, v.repeat_interleave(group, 1)

    def _finish(
        self,
        w: dict[str, torch.Tensor],
        x: torch.Tensor,
        q: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        B, T, H = x.shape
        seen = F.scaled_dot_product_attention(
            q, torch.cat(keys, dim=2), torch.cat(values, dim=2), attn_mask=mask
        )
        x = x + F.linear(seen.transpose(1, 2).reshape(B, T, -1), w["out"])
        normed = F.rms_norm(x, (H,), w["ffn_norm"], self.config.rms_eps)
        gate, up = F.linear(normed, w["gate_up"]).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, w["down"])

    def export(self) -> dict[str, torch.Tensor]:
        """Weights by their place in a llama-mtp head's contract, in bfloat16."""
        c = self.config
        q, k, v = self.qkv.split([n * c.head_dim for n in (c.heads, c.kv_heads, c.kv_heads)])
        gate, up = self.gate_up.chunk(2)
        block = {
            "input_layernorm": self.attention_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": self.out,
            "post_attention_layernorm": self.ffn_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": self.down,
        }
        named = {
            "pre_fc_norm_embedding.weight": self.norm_embedding,
            "pre_fc_norm_hidden.weight": self.norm_hidden,
            "fc.weight": self.fc,
            "norm.weight": self.norm,
            **{f"layers.0.{name}.weight": tensor for name, tensor in block.items()},
        }
        return {
            f"mtp.{name}": tensor.detach().to(torch.bfloat16).contiguous().cpu()
            for name, tensor in named.items()
        }
