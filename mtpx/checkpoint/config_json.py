"""A target's config from a Hugging Face folder: config.json and generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from mtpx.checkpoint.config import (
    FAMILIES,
    RopeScaling,
    TargetConfig,
    check_config,
    refuse_architecture,
    refuse_window,
    scaling_from,
)
from mtpx.checkpoint.mapped import read_small
from mtpx.errors import PackError

SIDE_FILE_LIMIT = 16 * 2**20
"""Bytes; real configs are a few kilobytes."""

Size = Annotated[int, Meta(ge=1, le=2**24)]
Layers = Annotated[int, Meta(ge=1, le=1024)]
TokenId = Annotated[int, Meta(ge=0, le=2**24)]
Positive = Annotated[float, Meta(gt=0, le=1e12)]


class _Config(msgspec.Struct, kw_only=True):
    model_type: str = ""
    architectures: list[str] | None = None
    num_hidden_layers: Layers
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size
    max_position_embeddings: Size
    rms_norm_eps: Positive
    hidden_act: str = "silu"
    rope_theta: Positive | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool | None = None
    mlp_bias: bool = False
    sliding_window: int | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    max_window_layers: int | None = None
    layer_types: list[str] | None = None
    quantization_config: dict[str, Any] | None = None
    bos_token_id: TokenId | list[TokenId] | None = None
    eos_token_id: TokenId | list[TokenId] | None = None


class _Architecture(msgspec.Struct):
    model_type: str = ""
    architectures: list[str] | None = None


class _Generation(msgspec.Struct):
    bos_token_id: TokenId | list[TokenId] | None = None
    eos_token_id: TokenId | list[TokenId] | None = None


T = TypeVar("T")


def config_from_folder(folder: Path) -> TargetConfig:
    """Read `folder`/config.json, and generation_config.json where there is one.

    Raises `PackError` when a file cannot be read, a field is absent or out of range, or the
    architecture or a feature of it is not supported.
    """
    path = folder / "config.json"
    text = read_small(path, SIDE_FILE_LIMIT)
    # The architecture is judged first: another one's config need not have our fields at all.
    named = _decode(text, _Architecture, path)
    if named.model_type not in FAMILIES:
        name = named.model_type or ", ".join(named.architectures or []) or "(not named)"
        raise refuse_architecture(name, str(path))
    raw = _decode(text, _Config, path)
    generation = folder / "generation_config.json"
    ends = _ids(raw.eos_token_id)
    if generation.exists():
        said = _decode(read_small(generation, SIDE_FILE_LIMIT), _Generation, generation)
        ends = [*_ids(said.eos_token_id), *ends]
    return _config(raw, tuple(dict.fromkeys(ends)), str(path))


def _config(raw: _Config, end_ids: tuple[int, ...], where: str) -> TargetConfig:
    family = raw.model_type
    if raw.hidden_act != "silu":
        raise PackError(f"{where}: activation {raw.hidden_act!r} is not supported; supported: silu")
    if raw.quantization_config is not None:
        method = raw.quantization_config.get("quant_method", "unnamed")
        raise PackError(
            f"{where}: weights quantised as {method!r} are not read here; use the 16-bit folder, "
            "or a GGUF file in Q4_0, Q4_1 or Q8_0"
        )
    _refuse_sliding(raw, where)
    kv_heads = raw.num_key_value_heads
    if kv_heads is None:
        if family != "llama":
            raise PackError(f"{where}: num_key_value_heads is absent")
        kv_heads = raw.num_attention_heads
    # Qwen3's own default is the one that is not hidden / heads.
    head_dim = raw.head_dim or (
        128 if family == "qwen3" else raw.hidden_size // raw.num_attention_heads
    )
    base, part, scaling = _rope(raw, where)
    # What each family's attention has by its definition, else by its flag.
    qkv_bias = {"llama": False, "mistral": False, "qwen2": True, "qwen3": False, "mimo": True}[
        family
    ]
    if raw.attention_bias is not None and family in ("llama", "qwen3", "mimo"):
        qkv_bias = raw.attention_bias
    return check_config(
        TargetConfig(
            family=family,
            layers=raw.num_hidden_layers,
            hidden=raw.hidden_size,
            ffn=raw.intermediate_size,
            heads=raw.num_attention_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab=raw.vocab_size,
            context=raw.max_position_embeddings,
            rope_base=base,
            rope_dim=int(head_dim * part),
            rope_scaling=scaling,
            rms_eps=raw.rms_norm_eps,
            tied=raw.tie_word_embeddings,
            attention_bias=qkv_bias,
            output_bias=qkv_bias and family in ("llama", "qwen3"),
            mlp_bias=raw.mlp_bias and family == "llama",
            qk_norm=family == "qwen3",
            bos_id=next(iter(_ids(raw.bos_token_id)), None),
            end_ids=end_ids,
        ),
        where,
    )


def _rope(raw: _Config, where: str) -> tuple[float, float, RopeScaling | None]:
    """Base, rotated part of a head, scaling. Newer configs keep all of it in rope_parameters."""
    told = {**(raw.rope_scaling or {}), **(raw.rope_parameters or {})}
    base = told.get("rope_theta", raw.rope_theta)
    part = told.get("partial_rotary_factor", raw.partial_rotary_factor)
    if base is None:
        base = 10_000.0
    if part is None:
        part = 1.0
    for name, value, high in (("rope_theta", base, 1e12), ("partial_rotary_factor", part, 1.0)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= high:
            raise PackError(f"{where}: {name} is {value!r}, outside its range")
    kind = told.get("rope_type", told.get("type", ""))
    if not isinstance(kind, str):
        raise PackError(f"{where}: the type of rope scaling is {kind!r}, not a name")
    return float(base), float(part), scaling_from(kind, told, where)


def _refuse_sliding(raw: _Config, where: str) -> None:
    window = raw.sliding_window
    if raw.model_type == "mistral":
        # An absent field means 4096 there (MistralConfig); null means none.
        window = 4096 if window is msgspec.UNSET else window
        windowed = True
    else:
        first = raw.max_window_layers
        windowed = raw.use_sliding_window and (first is None or first < raw.num_hidden_layers)
    if raw.layer_types is not None:
        others = sorted(set(raw.layer_types) - {"full_attention", "sliding_attention"})
        if others:
            raise PackError(f"{where}: layers of type {', '.join(others)} are not supported")
        windowed = "sliding_attention" in raw.layer_types
    if windowed and isinstance(window, int) and window < raw.max_position_embeddings:
        raise refuse_window(window, raw.max_position_embeddings, where)


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _decode(text: bytes, type: type[T], path: Path) -> T:
    try:
        return msgspec.json.decode(text, type=type)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PackError(f"{path} cannot be used: {error}") from error
