"""Small checkpoints on disk, made with the libraries mtpx does not read them with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from mtpx.checkpoint import open_checkpoint
from mtpx.errors import PackError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def hf_tensors(config: dict[str, Any] = CONFIG, dtype: Any = np.float16) -> dict[str, np.ndarray]:
    """Random weights of a llama-like target, under Hugging Face names, written out by hand."""
    rng = np.random.default_rng(7)
    h, f = config["hidden_size"], config["intermediate_size"]
    d = config.get("head_dim") or h // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], h),
        "model.norm.weight": (h,),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "input_layernorm.weight": (h,),
            layer + "self_attn.q_proj.weight": (q, h),
            layer + "self_attn.k_proj.weight": (kv, h),
            layer + "self_attn.v_proj.weight": (kv, h),
            layer + "self_attn.o_proj.weight": (h, q),
            layer + "post_attention_layernorm.weight": (h,),
            layer + "mlp.gate_proj.weight": (f, h),
            layer + "mlp.up_proj.weight": (f, h),
            layer + "mlp.down_proj.weight": (h, f),
        }
        if config["model_type"] == "qwen2":
            shapes |= {
                layer + "self_attn.q_proj.bias": (q,),
                layer + "self_attn.k_proj.bias": (kv,),
                layer + "self_attn.v_proj.bias": (kv,),
            }
        if config["model_type"] == "qwen3":
            shapes |= {
                layer + "self_attn.q_norm.weight": (d,),
                layer + "self_attn.k_norm.weight": (d,),
            }
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (config["vocab_size"], h)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def write_folder(
    folder: Path, config: dict[str, Any] = CONFIG, tensors: dict[str, np.ndarray] | None = None
) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(hf_tensors(config) if tensors is None else tensors, folder / "model.safetensors")
    return folder


def opened_or_refused(path: Path) -> bool:
    """Whether opening `path` gives a checkpoint, or one sentence; anything else escapes."""
    try:
        with open_checkpoint(path) as checkpoint:
            return len(checkpoint.tensors) > 0
    except PackError as error:
        said = str(error)
    return bool(said) and "\n" not in said


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in top:
        return f"{top[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0,
    tensors: dict[str, np.ndarray] | None = None,
    fields: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """A GGUF file of the same target: matrices quantised as `kind`, vectors in F32. `fields` adds
    metadata (whole keys; ints, floats, strings, booleans, lists), `without` leaves some out;
    `extra` tensors keep the names they have here."""
    writer = gguf.GGUFWriter(path, arch)
    told: dict[str, Any] = {
        f"{arch}.block_count": 2,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": 64,
        f"{arch}.feed_forward_length": 96,
        f"{arch}.attention.head_count": 4,
        f"{arch}.attention.head_count_kv": 2,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **(fields or {}),
    }
    for key, value in told.items():
        if key in without:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, value in (tensors or hf_tensors()).items():
        stored = value.astype(np.float32)
        if stored.ndim > 1:
            data = gguf.quantize(stored, kind)
            writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), stored)
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
