"""The sizes of a trunk that a head has to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mtpx.errors import PackError

Size = Annotated[int, Meta(ge=1, le=2**24)]


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: how many, and the inner sizes of one of them and of the shared one."""

    count: int
    ffn: int
    shared_ffn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkSizes:
    """What a head's tensors are held against. `ffn` is the inner size of a dense MLP; `experts` is
    `None` unless a block of this trunk routes to experts."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    layers: int = 0
    experts: Experts | None = None


class _Config(msgspec.Struct, kw_only=True):
    hidden_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    vocab_size: Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1024)]
    head_dim: Size | None = None
    intermediate_size: Size | None = None
    num_experts: Annotated[int, Meta(ge=0, le=2**16)] = 0
    moe_intermediate_size: Size | None = None
    shared_expert_intermediate_size: Size | None = None


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json: the whole, or its `text_config`."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def sizes_from_config(config: Mapping[str, Any], where: str) -> TrunkSizes:
    """The sizes a config.json tells, of the Qwen3-Next and MiMo kinds.

    Raises `PackError` when a field is absent or out of range.
    """
    told = text_config(config)
    try:
        raw = msgspec.convert(dict(told), _Config)
    except (msgspec.ValidationError, TypeError) as error:
        raise PackError(f"{where} cannot be used: {error}") from None
    experts = None
    if raw.num_experts:
        if raw.moe_intermediate_size is None or raw.shared_expert_intermediate_size is None:
            raise PackError(
                f"{where} announces {raw.num_experts} experts but not their sizes "
                "(moe_intermediate_size, shared_expert_intermediate_size)"
            )
        experts = Experts(
            raw.num_experts, raw.moe_intermediate_size, raw.shared_expert_intermediate_size
        )
    elif raw.intermediate_size is None:
        raise PackError(f"{where}: intermediate_size is absent")
    return TrunkSizes(
        hidden=raw.hidden_size,
        heads=raw.num_attention_heads,
        kv_heads=raw.num_key_value_heads,
        head_dim=raw.head_dim or raw.hidden_size // raw.num_attention_heads,
        ffn=raw.intermediate_size or 0,
        vocab=raw.vocab_size,
        layers=raw.num_hidden_layers,
        experts=experts,
    )
