"""The canonical names of a target's tensors (Hugging Face's), and the check that they are all there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mtpx.checkpoint.config import TargetConfig
from mtpx.checkpoint.tensor import Tensor
from mtpx.errors import PackError

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF = re.compile(r"(?:blk\.(?P<layer>\d{1,4})\.)?(?P<part>.+)\.(?P<kind>\w+)")
_HF_LAYER = re.compile(r"model\.layers\.(?P<layer>\d{1,4})\.(?P<part>.+)")
_HF_TOP = re.compile(r"(?:model\.embed_tokens|model\.norm|lm_head)\..+")
_ROTARY = "rope_freqs.weight"


def canonical_name(gguf_name: str) -> str:
    """A GGUF tensor's Hugging Face name. One without counterpart stays as it is, or keeps its layer:
    `model.layers.{i}.` and its own part."""
    match = _GGUF.fullmatch(gguf_name)
    if match is None:
        return gguf_name
    layer, part, kind = match["layer"], match["part"], match["kind"]
    if layer is None:
        return f"{_TOP[part]}.{kind}" if part in _TOP else gguf_name
    return f"model.layers.{int(layer)}.{_LAYER.get(part, part)}.{kind}"


def is_permuted(arch: str, name: str) -> bool:
    """Whether GGUF stores this tensor's rows for interleaved rotary embedding (llama only)."""
    return arch == "llama" and name.rpartition(".")[0].endswith(
        ("self_attn.q_proj", "self_attn.k_proj")
    )


def expected_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the target's arithmetic needs, with its shape (rows, columns)."""
    hidden, ffn, dim = config.hidden, config.ffn, config.head_dim
    q, kv = config.heads * dim, config.kv_heads * dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    if config.attention_bias:
        layer |= {f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", q), ("k", kv), ("v", kv))}
    if config.output_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if config.mlp_bias:
        layer |= {
            f"mlp.{p}_proj.bias": (n,) for p, n in (("gate", ffn), ("up", ffn), ("down", hidden))
        }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    for i in range(config.layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def check_tensors(config: TargetConfig, tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise `PackError` unless `tensors` are what `config` needs: all of them, in their shapes, and
    none in a layer of the target that its arithmetic would leave out. A head's own tensors (other
    prefixes, or layers after the last) may lie beside them.
    """
    shapes = expected_shapes(config)
    missing = [name for name in shapes if name not in tensors]
    if missing:
        raise PackError(
            f"{where}: {len(missing)} of {len(shapes)} tensors are missing, the first is "
            f"{missing[0]}"
        )
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise PackError(f"{where}: {name} has shape {tensor.shape}, {shape} is expected")
        if tensor.kind in ("I32", "I64"):
            raise PackError(f"{where}: {name} holds integers ({tensor.kind}), not weights")
        if len(shape) == 1 and tensor.kind not in ("F32", "F16", "BF16"):
            raise PackError(f"{where}: {name} is quantised ({tensor.kind}); vectors must not be")
    for name in tensors:
        if name not in shapes and _changes_arithmetic(name, config):
            raise PackError(
                f"{where}: {name} is not part of {config.family} as it is computed here; leaving "
                "it out would give wrong text"
            )
    _refuse_more_layers(config, tensors, where)


def _refuse_more_layers(config: TargetConfig, names: Iterable[str], where: str) -> None:
    """Layers after the last are a head's, which has parts of its own; one that has all of the target's
    parts and no other is a layer that a wrong count would leave out."""
    own = {name.removeprefix("model.layers.0.") for name in expected_shapes(config)}
    after: dict[int, set[str]] = {}
    for name in names:
        layer = _HF_LAYER.fullmatch(name)
        if layer is not None and int(layer["layer"]) >= config.layers:
            after.setdefault(int(layer["layer"]), set()).add(layer["part"])
    more = sorted(i for i, parts in after.items() if parts <= own)
    if more:
        several = len(more) > 1
        which = f"layers {more[0]} to {more[-1]} are" if several else f"layer {more[0]} is"
        raise PackError(
            f"{where}: {which} like the target's own, and its config counts {config.layers}, from 0 on; "
            "leaving it out would give wrong text"
        )


def check_gguf_names(names: Iterable[str], where: str) -> None:
    """Raise `PackError` for a GGUF tensor outside the layers that has no canonical name, such as an
    embedding's norm. (A Hugging Face folder may hold a head's tensors there; GGUF does not.)"""
    for name in names:
        if name != _ROTARY and not name.startswith(("model.", "lm_head.")):
            raise PackError(
                f"{where}: nothing here computes with {name}; leaving it out would give wrong text"
            )


def _changes_arithmetic(name: str, config: TargetConfig) -> bool:
    layer = _HF_LAYER.fullmatch(name)
    if layer is not None:
        # Old checkpoints store the rotary frequencies, which the config tells anyway.
        inside = int(layer["layer"]) < config.layers
        return inside and not layer["part"].endswith("rotary_emb.inv_freq")
    # A tied target's own copy of the embedding is ignored, as transformers does.
    return _HF_TOP.fullmatch(name) is not None and not (config.tied and name == "lm_head.weight")
