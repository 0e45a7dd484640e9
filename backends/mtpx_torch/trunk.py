"""The Llama-family target: embedding, blocks, final norm, output product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mtpx_torch.attention import Span, SpanAttention
from mtpx_torch.block import Block, BlockShape, Rotation
from mtpx_torch.cache import SLACK, KVCache
from mtpx_torch.embedding import Embedding
from mtpx_torch.norm import Norm
from mtpx_torch.weights import WeightReader, output_name

if TYPE_CHECKING:
    from mtpx.checkpoint import Checkpoint, TargetConfig
    from mtpx_torch.product import Product
    from mtpx_torch.recipe import Recipe


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
        """positions (rows,) or (batch, columns) → their factors."""
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
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.config.heads // self.config.kv_heads

    @property
    def nbytes(self) -> int:
        """Bytes of weights that a forward reads."""
        products = [self.output]
        norms = [self.norm]
        for block in self.blocks:
            products += [block.qkv, block.out, block.gate_up, block.down]
            norms += [block.attention_norm, block.ffn_norm]
        return sum(p.nbytes for p in products) + sum(n.weight.nbytes for n in norms)

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, keys and values."""
        return self.embedding.dtype

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
            x = block(x, rotation, SpanAttention(keys, values, spans))
        return x


def load_trunk(
    checkpoint: Checkpoint, recipe: Recipe, *, context: int, device: torch.device
) -> Trunk:
    """The target's weights, one matrix at a time, laid out as `recipe` wants them."""
    config = checkpoint.config
    reader = WeightReader(checkpoint.tensors, config, recipe.dtype, device)
    # The largest product first: what packing it needs beside it is gone before the rest comes.
    output = recipe.linear(reader, [output_name(config)], output=True)
    return Trunk(
        config,
        Embedding(checkpoint.tensors["model.embed_tokens.weight"], recipe.dtype, device),
        [load_block(reader, f"model.layers.{i}.", recipe) for i in range(config.layers)],
        reader.norm("model.norm.weight"),
        output,
        Rotary(config, context + SLACK, recipe.dtype, device),
        recipe.bucket,
    )


def load_block(reader: WeightReader, prefix: str, recipe: Recipe) -> Block:
    """A block whose tensors are named `prefix` + Hugging Face's Llama names."""
    config = reader.config

    def fused(*parts: str) -> Product:
        return recipe.linear(reader, [f"{prefix}{part}.weight" for part in parts])

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
