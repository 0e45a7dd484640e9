"""The blocks heads are made of, built from mlx-lm's own layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import mlx.core as mx

from mtpx.heads import TrunkSizes
from mtpx_mlx.models import light
from mtpx_mlx.pair_cache import PairCache


class Block(Protocol):
    """One layer of a head, with keys and values of its own."""

    def __call__(self, x: mx.array, cache: PairCache) -> mx.array:
        """x (n, H), after the rows the cache holds → the residual (n, H)."""
        ...


class LlamaBlock:
    """Attention and SwiGLU, pre-norm, no biases: mlx-lm's Llama layer, rotated as the trunk is."""

    def __init__(
        self, sizes: TrunkSizes, eps: float, weights: Mapping[str, mx.array], trunk: Any
    ) -> None:
        """`weights`: the block's tensors by Hugging Face's Llama names."""
        llama = light("models.llama")
        self.layer = llama.TransformerBlock(
            llama.ModelArgs(
                model_type="llama",
                hidden_size=sizes.hidden,
                num_hidden_layers=1,
                intermediate_size=sizes.ffn,
                num_attention_heads=sizes.heads,
                num_key_value_heads=sizes.kv_heads,
                head_dim=sizes.head_dim,
                rms_norm_eps=eps,
                vocab_size=sizes.vocab,
            )
        )
        self.layer.self_attn.rope = trunk.layers[0].self_attn.rope
        self.layer.load_weights(list(weights.items()))

    def __call__(self, x: mx.array, cache: PairCache) -> mx.array:
        mask = "causal" if x.shape[0] > 1 else None
        out: mx.array = self.layer(x[None], mask, cache)[0]
        return out
