"""A target's config from GGUF metadata. Keys: llama.cpp's gguf-py/gguf/constants.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, field

from mtpx.checkpoint.config import (
    FactorScaling,
    RopeScaling,
    TargetConfig,
    check_config,
    refuse_architecture,
    refuse_window,
    scaling_from,
)
from mtpx.checkpoint.tensor import Tensor
from mtpx.errors import PackError

FAMILIES = ("llama", "qwen2", "qwen3")
"""Mistral's files call themselves llama."""

Size = Annotated[int, Meta(ge=1, le=2**24)]
Layers = Annotated[int, Meta(ge=1, le=1024)]
TokenId = Annotated[int, Meta(ge=0, le=2**24)]
Positive = Annotated[float, Meta(gt=0, le=1e12)]

# Each of these changes the arithmetic of a llama-like decoder; granite and others use them.
_UNSUPPORTED = {
    "expert_count": "mixture-of-experts layers",
    "logit_scale": "a logit scale",
    "embedding_scale": "an embedding scale",
    "residual_scale": "a residual scale",
    "attention.scale": "an attention scale of its own",
    "attn_logit_softcapping": "attention soft-capping",
    "final_logit_softcapping": "logit soft-capping",
}


class _Config(msgspec.Struct, kw_only=True):
    layers: Layers = field(name="block_count")
    hidden: Size = field(name="embedding_length")
    ffn: Size = field(name="feed_forward_length")
    heads: Size = field(name="attention.head_count")
    kv_heads: Size | None = field(name="attention.head_count_kv", default=None)
    key_length: Size | None = field(name="attention.key_length", default=None)
    value_length: Size | None = field(name="attention.value_length", default=None)
    context: Size = field(name="context_length")
    rms_eps: Positive = field(name="attention.layer_norm_rms_epsilon")
    rope_base: Positive = field(name="rope.freq_base", default=10_000.0)
    rope_dim: Size | None = field(name="rope.dimension_count", default=None)
    scaling: str = field(name="rope.scaling.type", default="")
    scaling_factor: float | None = field(name="rope.scaling.factor", default=None)
    scale_linear: float | None = field(name="rope.scale_linear", default=None)
    window: int = field(name="attention.sliding_window", default=0)


class _Tokens(msgspec.Struct, kw_only=True):
    bos: TokenId | None = field(name="bos_token_id", default=None)
    eos: TokenId | None = field(name="eos_token_id", default=None)
    eot: TokenId | None = field(name="eot_token_id", default=None)
    eom: TokenId | None = field(name="eom_token_id", default=None)


def check_architecture(metadata: Mapping[str, Any], where: str) -> None:
    """Raise `PackError` unless the architecture is one that is computed."""
    arch = metadata.get("general.architecture")
    if arch not in FAMILIES:
        raise refuse_architecture(str(arch) if arch else "(not named)", where)


def config_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
) -> TargetConfig:
    """The config that `metadata` tells; what it leaves out is read off the tensors' names and
    shapes (canonical names): tied embeddings, biases, the vocabulary, rotary factors.

    Raises `PackError` when a key is absent or out of range, or the architecture or a feature of it
    is not supported.
    """
    arch = metadata.get("general.architecture")
    check_architecture(metadata, where)
    for key, what in _UNSUPPORTED.items():
        if metadata.get(f"{arch}.{key}"):
            raise PackError(f"{where}: {what} ({arch}.{key}) is not supported")
    raw = _convert(metadata, f"{arch}.", _Config, where)
    tokens = _convert(metadata, "tokenizer.ggml.", _Tokens, where)
    head_dim = raw.key_length or raw.hidden // raw.heads
    if (raw.value_length or head_dim) != head_dim:
        raise PackError(
            f"{where}: keys of {head_dim} and values of {raw.value_length} dimensions are not "
            "supported; they must be of one size"
        )
    if 0 < raw.window < raw.context:
        raise refuse_window(raw.window, raw.context, where)
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise PackError(f"{where} has no token embedding (token_embd.weight)")
    layer = "model.layers.0."
    ends = [i for i in (tokens.eos, tokens.eot, tokens.eom) if i is not None]
    return check_config(
        TargetConfig(
            family=str(arch),
            layers=raw.layers,
            hidden=raw.hidden,
            ffn=raw.ffn,
            heads=raw.heads,
            kv_heads=raw.kv_heads or raw.heads,
            head_dim=head_dim,
            vocab=embedding.shape[0],
            context=raw.context,
            rope_base=raw.rope_base,
            rope_dim=raw.rope_dim or head_dim,
            rope_scaling=_scaling(raw, tensors, where),
            rms_eps=raw.rms_eps,
            tied="lm_head.weight" not in tensors,
            attention_bias=f"{layer}self_attn.q_proj.bias" in tensors,
            output_bias=f"{layer}self_attn.o_proj.bias" in tensors,
            mlp_bias=f"{layer}mlp.gate_proj.bias" in tensors,
            qk_norm=arch == "qwen3",
            bos_id=tokens.bos,
            end_ids=tuple(dict.fromkeys(ends)),
        ),
        where,
    )


def _scaling(raw: _Config, tensors: Mapping[str, Tensor], where: str) -> RopeScaling | None:
    factors = tensors.get("rope_freqs.weight")
    kind, factor = raw.scaling, raw.scaling_factor
    if raw.scale_linear is not None and not kind:
        kind, factor = "linear", raw.scale_linear
    told = scaling_from(kind, {"factor": factor}, where)
    if factors is None:
        return told
    if told is not None:
        raise PackError(f"{where}: two rotary scalings at once, {kind} and rope_freqs.weight")
    if factors.kind != "F32":
        raise PackError(f"{where}: rope_freqs.weight is {factors.kind}, F32 is expected")
    numbers = factors.data.view("<f4")
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise PackError(f"{where}: rope_freqs.weight must hold finite numbers above 0")
    return FactorScaling(tuple(map(float, numbers)))


def _convert(metadata: Mapping[str, Any], prefix: str, type: Any, where: str) -> Any:
    wanted = {f.encode_name for f in msgspec.structs.fields(type)}
    found = {
        key.removeprefix(prefix): value
        for key, value in metadata.items()
        if key.startswith(prefix) and key.removeprefix(prefix) in wanted
    }
    for key, value in found.items():
        if isinstance(value, np.ndarray | list):
            raise PackError(
                f"{where}: {prefix}{key} is a list; one value for all layers is supported"
            )
    try:
        return msgspec.convert(found, type)
    except msgspec.ValidationError as error:
        raise PackError(f"{where}: metadata under {prefix}*: {error}") from error
