"""The blocks heads are made of, built from mlx-lm's own layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import mlx.core as mx

from mtpx.errors import PackError
from mtpx.heads import HeadContract, TrunkSizes
from mtpx_mlx.folder import fill
from mtpx_mlx.models import light
from mtpx_mlx.pair_cache import PairCache
from mtpx_mlx.quantised import quantise_where_packed


class Block(Protocol):
    """One layer of a head, with keys and values of its own."""

    def __call__(self, x: mx.array, cache: PairCache) -> mx.array:
        """x (n, H), after the rows the cache holds → the residual (n, H)."""
        ...


class LayerBlock:
    """One of mlx-lm's decoder layers."""

    def __init__(self, layer: Any, weights: Mapping[str, mx.array], where: str) -> None:
        fill_layer(layer, weights, where)
        self.layer = layer.eval()

    def __call__(self, x: mx.array, cache: PairCache) -> mx.array:
        mask = "causal" if x.shape[0] > 1 else None
        out: mx.array = self.layer(x[None], mask, cache)[0]
        return out


def make_block(
    contract: HeadContract,
    sizes: TrunkSizes,
    eps: float,
    weights: Mapping[str, mx.array],
    model: Any,
    where: str,
) -> Block:
    """The contract's block for mlx-lm's `model`, with these weights (by the names of a trunk's layer).

    Raises `PackError` for a kind that is not computed here.
    """
    if contract.block == "llama":
        layer = _llama_layer(sizes, eps, model)
    elif contract.block in ("qwen3-next", "mimo"):
        layer = _one_more_layer(model, where)
    else:
        raise PackError(f"{where}: a head of {contract.block!r} blocks is not computed on MLX")
    return LayerBlock(layer, weights, where)


def fill_layer(layer: Any, weights: Mapping[str, mx.array], where: str) -> None:
    """Put weights into a layer, packed where they are packed."""
    quantise_where_packed(layer, weights, where)
    fill(layer, dict(weights), where)


def _llama_layer(sizes: TrunkSizes, eps: float, model: Any) -> Any:
    """Attention and SwiGLU, pre-norm, no biases: mlx-lm's Llama layer, rotated as the trunk is."""
    llama = light("models.llama")
    layer = llama.TransformerBlock(
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
    layer.self_attn.rope = model.layers[0].self_attn.rope
    return layer


def _one_more_layer(model: Any, where: str) -> Any:
    """A layer of the class and with the arguments of the trunk's full-attention layers: Qwen3-Next's
    gated attention with its dense or routed MLP, MiMo's attention with its biases."""
    text = getattr(model, "language_model", model)
    full = next((i for i, layer in enumerate(text.layers) if "self_attn" in layer), None)
    if full is None:
        raise PackError(
            f"{where}: the trunk has no full-attention layer that the head could be like"
        )
    like = text.layers[full]
    # mlx-lm's hybrid layers are told their place, by which they choose what they are.
    hybrid = hasattr(like, "is_linear")
    return type(like)(text.args, full) if hybrid else type(like)(text.args)
