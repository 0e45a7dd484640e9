"""The target over padded batches: what generating and reading hidden states by the hundred needs.

The engine's trunk decodes a few rows as fast as can be; this one decodes hundreds of sequences that
stand side by side, left-padded so that they all end in the same column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from mtpx_torch.trunk import Rotary
from mtpx_torch.weights import WeightReader, output_name

if TYPE_CHECKING:
    from mtpx.checkpoint import Checkpoint, TargetConfig
    from mtpx_torch.block import Rotation


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's weights, (out, in); q, k, v and gate, up fused. Absent ones are `None`."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


class Cache:
    """Keys and values of a batch, one pair of (B, kv_heads, room, head_dim) a layer."""

    def __init__(
        self,
        config: TargetConfig,
        batch: int,
        room: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (batch, config.kv_heads, room, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]

    def spread(self, columns: int) -> None:
        """Give every sequence the first one's first `columns`."""
        for buffer in (*self.keys, *self.values):
            buffer[1:, :, :columns] = buffer[:1, :, :columns]

    def first(self) -> Cache:
        """The first sequence, sharing memory."""
        one = object.__new__(Cache)
        one.keys = [buffer[:1] for buffer in self.keys]
        one.values = [buffer[:1] for buffer in self.values]
        return one

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all sequences but `rows`."""
        for buffers in (self.keys, self.values):
            for i, buffer in enumerate(buffers):
                buffers[i] = buffer[rows]


class BatchTrunk:
    """The target's weights in `dtype`, computing without gradients."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, context: int
    ) -> None:
        self.config = config = checkpoint.config
        self.dtype, self.device = dtype, device
        reader = WeightReader(checkpoint.tensors, config, dtype, device)
        self.embedding = reader.take("model.embed_tokens.weight")
        self.output = self.embedding if config.tied else reader.take(output_name(config))
        self.output_bias = reader.take_if("lm_head.bias")
        self.norm = reader.take("model.norm.weight")
        self.layers = [read_layer(reader, f"model.layers.{i}.") for i in range(config.layers)]
        self.rotary = Rotary(config, context, dtype, device)

    def cache(self, batch: int, room: int) -> Cache:
        return Cache(self.config, batch, room, self.dtype, self.device)

    def forward(
        self, ids: torch.Tensor, cache: Cache, column: int, pads: torch.Tensor, prefix: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run ids (B, T) whose first stands in `column`. After the first `prefix` columns come `pads`
        (B,) columns of padding.

        → (residual before the last layer, hidden state after the final norm), each (B, T, H).
        """
        T = ids.shape[1]
        end = column + T
        columns = torch.arange(column, end, device=self.device)
        after = (columns - pads[:, None]).clamp_min(0)
        rotation = self.rotary.at(torch.where(columns < prefix, columns, after))
        seen = torch.arange(end, device=self.device)
        # A padding row may look at itself: a row that sees nothing would be NaN.
        real = (seen < prefix) | (seen >= prefix + pads[:, None, None])
        mask = (seen <= columns[:, None]) & real
        mask = (mask | (seen == columns[:, None])).unsqueeze(1)
        x = before = F.embedding(ids, self.embedding)
        for i, layer in enumerate(self.layers):
            before = x
            x = self._block(layer, x, rotation, cache.keys[i], cache.values[i], column, mask)
        return before, F.rms_norm(x, self.norm.shape, self.norm, self.config.rms_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden (..., H) → (..., vocab)."""
        return F.linear(hidden, self.output, self.output_bias)

    def _block(
        self,
        layer: Layer,
        x: torch.Tensor,
        rotation: Rotation,
        keys: torch.Tensor,
        values: torch.Tensor,
        column: int,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        c = self.config
        B, T, H = x.shape
        normed = F.rms_norm(x, (H,), layer.attention_norm, c.rms_eps)
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(B, T, -1, c.head_dim)
        q, k, v = qkv.transpose(1, 2).split([c.heads, c.kv_heads, c.kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(q, (c.head_dim,), layer.q_norm, c.rms_eps)
            k = F.rms_norm(k, (c.head_dim,), layer.k_norm, c.rms_eps)
        q, k = rotation(q), rotation(k)
        end = column + T
        keys[:, :, column:end], values[:, :, column:end] = k, v
        group = c.heads // c.kv_heads
        if T == 1:
            # The query heads of one KV head become rows of it: no copy of keys and values.
            stacked = q.reshape(B, c.kv_heads, group, c.head_dim)
            seen = F.scaled_dot_product_attention(
                stacked, keys[:, :, :end], values[:, :, :end], attn_mask=mask
            )
            mixed = seen.reshape(B, 1, -1)
        else:
            seen = F.scaled_dot_product_attention(
                q,
                keys[:, :, :end].repeat_interleave(group, 1),
                values[:, :, :end].repeat_interleave(group, 1),
                attn_mask=mask,
            )
            mixed = seen.transpose(1, 2).reshape(B, T, -1)
        x = x + F.linear(mixed, layer.out, layer.out_bias)
        normed = F.rms_norm(x, (H,), layer.ffn_norm, c.rms_eps)
        gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)


def read_layer(reader: WeightReader, prefix: str) -> Layer:
    """A block named `prefix` + Hugging Face's Llama names."""

    def fused(*parts: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        names = [f"{prefix}{part}.weight" for part in parts]
        return torch.cat([reader.take(name) for name in names]), reader.biases(names)

    qkv, qkv_bias = fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out, out_bias = fused("self_attn.o_proj")
    gate_up, gate_up_bias = fused("mlp.gate_proj", "mlp.up_proj")
    down, down_bias = fused("mlp.down_proj")
    return Layer(
        attention_norm=reader.take(f"{prefix}input_layernorm.weight"),
        qkv=qkv,
        qkv_bias=qkv_bias,
        out=out,
        out_bias=out_bias,
        ffn_norm=reader.take(f"{prefix}post_attention_layernorm.weight"),
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=down,
        down_bias=down_bias,
        q_norm=reader.take_if(f"{prefix}self_attn.q_norm.weight"),
        k_norm=reader.take_if(f"{prefix}self_attn.k_norm.weight"),
    )
