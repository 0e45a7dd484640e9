"""Small Qwen3.5 checkpoints in Qwen's own files: a hybrid of GatedDeltaNet and gated attention with
random weights, and an MTP head among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mtpx.heads import FAMILIES, HeadContract, expected_tensors, sizes_from_config

CONTRACT = FAMILIES["qwen3-next"].contract

SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.25,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
}

EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}


def make_qwen(folder: Path, *, head: bool = True, seed: int = 0, **changes: Any) -> Path:
    """A folder as Qwen publishes them: nested config.json, `model.language_model.*`, `mtp.*`.

    `EXPERTS` among the changes make it a mixture.
    """
    import transformers

    torch.manual_seed(seed)
    sizes = {**SIZES, **changes}
    kind = "qwen3_5_moe" if sizes.get("num_experts") else "qwen3_5"
    config = transformers.AutoConfig.for_model(f"{kind}_text", **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shape_up(name, parameter)
    model.save_pretrained(folder)
    told = json.loads((folder / "config.json").read_text())
    told |= {
        "full_attention_interval": sizes["full_attention_interval"],
        "mtp_num_hidden_layers": 1,
    }
    nested = {
        "model_type": kind,
        "architectures": [f"{model.__class__.__name__.removesuffix('ForCausalLM')}"],
        "tie_word_embeddings": sizes["tie_word_embeddings"],
        "text_config": told,
    }
    (folder / "config.json").write_text(json.dumps(nested))
    tensors = {
        "model.language_model." + name.removeprefix("model.")
        if name.startswith("model.")
        else name: tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    tensors = _fused(tensors)
    if head:
        tensors |= random_head(nested, seed=seed + 1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The trunk's experts in two tensors a layer, as Qwen3.5's files have them (its head's lie one by
    one)."""
    gates = [name for name in tensors if name.endswith(".mlp.experts.0.gate_proj.weight")]
    for name in gates:
        stem = name.removesuffix("0.gate_proj.weight")
        count = sum(n.startswith(stem) for n in tensors) // 3
        gate, up, down = (
            torch.stack([tensors.pop(f"{stem}{i}.{part}_proj.weight") for i in range(count)])
            for part in ("gate", "up", "down")
        )
        tensors[f"{stem}gate_up_proj"] = torch.cat([gate, up], dim=1)
        tensors[f"{stem}down_proj"] = down
    return tensors


def shape_up(name: str, parameter: torch.Tensor) -> None:
    """Weights under which a slip shows: norms that differ from what they start as, and a token that
    says most about the next one, so that a head can guess it."""
    if "norm" in name:
        parameter.add_(torch.randn_like(parameter) * 0.1)
    elif "dt_bias" in name or "A_log" in name:
        parameter.mul_(0.3)
    elif ".layers." in name:
        parameter.mul_(0.4)
        if "linear_attn.out_proj" in name:
            parameter.mul_(
                0.2
            )  # normed before it, so that smaller weights elsewhere would not tell


def random_head(
    config: dict[str, Any], wiring: HeadContract = CONTRACT, seed: int = 1
) -> dict[str, torch.Tensor]:
    """A head's tensors for a trunk with this config.json, as Qwen stores them: norms as w."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_tensors(wiring, sizes_from_config(config, "config.json")).items():
        sizes = [n or 1 for n in shape]
        tensor = torch.randn(sizes, generator=generator) * 0.1
        if name == wiring.name("fc"):
            # Its embedding half passes the token on, which is what the trunk mostly goes by.
            half = slice(0, sizes[0])
            if wiring.order == "hidden-embedding":
                half = slice(sizes[0], None)
            tensor[:, half] += torch.eye(sizes[0])
        elif len(sizes) == 1 and name.endswith("weight"):
            tensor += 1 - wiring.norm_offset
            if "pre_fc_norm" in name:
                tensor -= 0.5  # as in Qwen's own heads, w is negative nearly everywhere here
        tensors[name] = tensor
    return tensors


def text_config(folder: Path) -> dict[str, Any]:
    told = json.loads((folder / "config.json").read_text())
    inner: dict[str, Any] = told.get("text_config", told)
    return inner


def reference_model(folder: Path) -> Any:
    """transformers' own model of the folder's weights, which knows nothing of the head."""
    import transformers

    told = text_config(folder)
    config = transformers.AutoConfig.for_model(told.pop("model_type"), **told)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    tensors = {
        name.replace("model.language_model.", "model."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if not name.startswith("mtp.")
    }
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if told.get("tie_word_embeddings") else set())
    return model
