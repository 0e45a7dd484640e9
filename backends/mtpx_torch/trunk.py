"""The Llama-family target: embedding, blocks, final norm, output product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mtpx.checkpoint import unpermute_rows
from mtpx_torch.block import Block, BlockShape, Norm, Rotation
from mtpx_torch.cache import KVCache, Span
from mtpx_torch.dequant import to_torch
from mtpx_torch.embedding import Embedding
from mtpx_torch.product import ROW_BUCKET, Product, make_product

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtpx.checkpoint import Checkpoint, TargetConfig, Tensor


class Rotary:
    """RoPE tables for every position of the context, (context, head_dim)."""

    def __init__(
        self, config: TargetConfig, context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        frequency = torch.from_numpy(config.rope_frequencies())
        angle = torch.outer(torch.arange(context, dtype=torch.float64), frequency)
        self.cos = torch.cat([angle.cos(), angle.cos()], dim=-1).to(device, dtype)
        self.sin = torch.cat([-angle.sin(), angle.sin()], dim=-1).to(device, dtype)

    def at(self, positions: torch.Tensor) -> Rotation:
        """positions (rows,) → their factors."""
        return Rotation(self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1))


class Trunk:
    """The target on its device."""

    def __init__(
        self,
        config: TargetConfig,
        embedding: Embedding,
        blocks: list[Block],
        norm: Norm,
        output: Product,
        rotary: Rotary,
        bucket: int,
    ) -> None:
        self.config = config
        self.embedding = embedding
        self.blocks = blocks
        self.norm = norm
        self.output = output
        self.rotary = rotary
        self.bucket = bucket

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def padding(self, rows: int) -> int:
        """Rows to add so that the products run over at least a bucket of them."""
        return max(0, self.bucket - rows)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, spans: list[Span], cache: KVCache
    ) -> torch.Tensor:
        """ids, positions (rows,) → the residual before the final norm, (rows + padding, hidden)."""
        extra = self.padding(ids.shape[0])
        if extra:
            zeros = ids.new_zeros(extra)
            ids, positions = torch.cat([ids, zeros]), torch.cat([positions, zeros])
        rotation = self.rotary.at(positions)
        x = self.embedding[ids]
        for block, keys, values in zip(self.blocks, cache.keys, cache.values, strict=True):
            x = block(x, rotation, keys, values, spans)
        return x


def load_trunk(
    checkpoint: Checkpoint,
    *,
    product: str,
    context: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Trunk:
    """The target's weights, dequantised one tensor at a time and laid out as `product` wants."""
    config = checkpoint.config
    reader = WeightReader(checkpoint.tensors, config, dtype, device)
    # The largest product first: what packing it needs beside it is gone before the rest comes.
    output = make_product(product, output_rows(reader), reader.take_if("lm_head.bias"))
    return Trunk(
        config,
        Embedding(checkpoint.tensors["model.embed_tokens.weight"], dtype, device),
        [load_block(reader, f"model.layers.{i}.", product) for i in range(config.layers)],
        reader.norm("model.norm.weight"),
        output,
        Rotary(config, context, dtype, device),
        ROW_BUCKET if product == "packed" else 1,
    )


class WeightReader:
    """Takes checked tensors by name and puts them on the device, rows in Hugging Face's order."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        config: TargetConfig,
        dtype: torch.dtype,
        device: torch.device,
        norm_offset: int = 0,
    ) -> None:
        self.tensors, self.config = tensors, config
        self.dtype, self.device, self.norm_offset = dtype, device, norm_offset

    def take(self, name: str) -> torch.Tensor:
        found = self.tensors[name]
        weight = to_torch(found, self.dtype, self.device)
        if found.permuted:
            rows = weight.shape[0]
            order = unpermute_rows(rows // self.config.head_dim, rows)
            weight = weight[torch.from_numpy(order).to(self.device)]
        return weight

    def take_if(self, name: str) -> torch.Tensor | None:
        return self.take(name) if name in self.tensors else None

    def norm(self, name: str) -> Norm:
        return Norm(self.take(name) + self.norm_offset, self.config.rms_eps)


def output_rows(reader: WeightReader) -> torch.Tensor:
    """(vocab, hidden) the target's output matrix."""
    tied = reader.config.tied
    return reader.take("model.embed_tokens.weight" if tied else "lm_head.weight")


def load_block(reader: WeightReader, prefix: str, product: str) -> Block:
    """A block whose tensors are named `prefix` + Hugging Face's Llama names."""
    config = reader.config

    def fused(*parts: str) -> Product:
        weights = [reader.take(f"{prefix}{part}.weight") for part in parts]
        biases = [reader.take_if(f"{prefix}{part}.bias") for part in parts]
        bias = None
        if any(b is not None for b in biases):
            filled = zip(biases, weights, strict=True)
            bias = torch.cat([w.new_zeros(w.shape[0]) if b is None else b for b, w in filled])
        return make_product(product, torch.cat(weights) if weights[1:] else weights[0], bias)

    def norm_if(part: str) -> Norm | None:
        name = f"{prefix}{part}.weight"
        return reader.norm(name) if name in reader.tensors else None

    return Block(
        shape=BlockShape(config.heads, config.kv_heads, config.head_dim),
        attention_norm=reader.norm(f"{prefix}input_layernorm.weight"),
        qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=fused("self_attn.o_proj"),
        ffn_norm=reader.norm(f"{prefix}post_attention_layernorm.weight"),
        gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
        down=fused("mlp.down_proj"),
        q_norm=norm_if("self_attn.q_norm"),
        k_norm=norm_if("self_attn.k_norm"),
    )
