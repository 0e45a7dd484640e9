"""Small checkpoints for the torch backend: random weights in Hugging Face's own files, and a head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from checkpoint_makers import CONFIG, hf_tensors, write_gguf
from safetensors.torch import save_file

from mtpx.heads import HeadContract, TrunkSizes, declared, expected_tensors
from mtpx.packs import Pack

SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Wide enough that the logits have a shape: with the usual 0.02 every token is as likely.
    "initializer_range": 0.25,
}


def save_model(folder: Path, family: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """A random model of this family as a folder of config.json and safetensors."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norm weights of exactly 1 and biases of 0 would hide a missing factor or term.
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif ".layers." in name:
                # The token itself says most about the next one, so that a head can guess it.
                parameter.mul_(0.4)
    model.save_pretrained(folder)
    return folder


def contract(**changes: Any) -> HeadContract:
    return declared({"family": "llama-mtp", **changes})


def save_head(
    path: Path, wiring: HeadContract, config: dict[str, Any], *, draft_vocab: int = 0, seed: int = 1
) -> Path:
    """A head for a model with this config.json, random but for what lets it agree with the target
    more often than chance."""
    generator = torch.Generator().manual_seed(seed)
    heads = config["num_attention_heads"]
    shapes = expected_tensors(
        wiring,
        TrunkSizes(
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            ffn=config["intermediate_size"],
            vocab=config["vocab_size"],
            layers=config["num_hidden_layers"],
        ),
    )
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith("draft_vocab"):
            ids = np.sort(
                np.random.default_rng(seed).permutation(config["vocab_size"])[:draft_vocab]
            )
            tensors[name] = torch.from_numpy(ids.astype(np.int32))
            continue
        sizes = [n or 1 for n in shape]
        tensor = torch.randn(sizes, generator=generator) * 0.1
        if name.endswith("fc.weight"):
            # Its embedding half passes the token on, which is what the trunk mostly goes by.
            half = (
                slice(0, sizes[0]) if wiring.order == "embedding-hidden" else slice(sizes[0], None)
            )
            tensor[:, half] += torch.eye(sizes[0])
        tensors[name] = tensor if len(sizes) > 1 else tensor + 1.0 - wiring.norm_offset
    save_file(tensors, path)
    return path


def make_pack(
    folder: Path,
    family: str = "llama",
    *,
    head: bool = True,
    draft_vocab: int = 0,
    wiring: dict[str, Any] | None = None,
    **changes: Any,
) -> Pack:
    """A random model with a random head, as `mtpx.packs.resolve` would give it."""
    save_model(folder, family, **changes)
    config = json.loads((folder / "config.json").read_text())
    tensors = {} if draft_vocab else {"draft_vocab": ""}
    made = contract(tensors=tensors, **(wiring or {})) if head else None
    path = folder / "head" / "head.safetensors"
    if made is not None:
        path.parent.mkdir(exist_ok=True)
        save_head(path, made, config, draft_vocab=draft_vocab)
    return Pack(
        name=f"tiny-{family}",
        manifest=None,
        folder=folder,
        weights=folder,
        head=path if head else None,
        contract=made,
        weights_digest="",
        head_digest="",
        verified=False,
        context=None,
    )


def make_gguf_pack(folder: Path) -> Pack:
    """A random model in blocks of four bits (Q4_1) with a random head."""
    tensors = hf_tensors(dtype=np.float32)
    for name, tensor in tensors.items():
        if "norm" in name:
            tensors[name] = 1 + 0.1 * tensor
        else:
            # The token itself says most about the next one, so that a head can guess it.
            tensors[name] = tensor * (0.25 if "embed" in name else 0.1)
    weights = write_gguf(folder / "tiny.gguf", kind=gguf.GGMLQuantizationType.Q4_1, tensors=tensors)
    wiring = contract(tensors={"draft_vocab": ""})
    return Pack(
        name="tiny-q4",
        manifest=None,
        folder=folder,
        weights=weights,
        head=save_head(folder / "head.safetensors", wiring, CONFIG),
        contract=wiring,
        weights_digest="",
        head_digest="",
        verified=False,
        context=None,
    )
