"""The MLX backend computes what transformers computes on the same files, whatever the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from checkpoint_makers import CONFIG, hf_tensors, write_gguf
from torch_makers import make_pack

from mtpx import packs
from mtpx.backend import EngineOptions
from mtpx.checkpoint import dequantise, open_checkpoint, unpermute_rows
from mtpx.sampling import Sampling
from mtpx_mlx import MlxBackend
from mtpx_mlx.inspect import InspectableEngine

TINY: dict[str, Any] = {"head_dim": 8}

MODELS: dict[str, dict[str, Any]] = {
    "llama, tied": {"family": "llama", "tie_word_embeddings": True},
    "llama, biases, llama3 rope": {
        "family": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 10000.0,
        },
    },
    "mistral": {"family": "mistral", "sliding_window": None},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3", "head_dim": 16},
    "gemma2, soft-capped": {"family": "gemma2", "query_pre_attn_scalar": 8, **TINY},
    "gemma3, sliding": {
        "family": "gemma3_text",
        "sliding_window": 16,
        "num_hidden_layers": 6,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
        **TINY,
    },
    "olmo2": {"family": "olmo2"},
    "phi3": {"family": "phi3", "pad_token_id": 0},
}


def next_logits(engine: InspectableEngine, tokens: list[int], chunk: int = 7) -> np.ndarray:
    slot = engine.open(tokens, Sampling(), 0, head=False)
    while not engine.prefill(slot, chunk):
        pass
    logits = np.asarray(engine.logits(slot))
    slot.close()
    return logits


def relative_gap(mine: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(mine - reference).max() / np.abs(reference).max())


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    pack = make_pack(tmp_path, head=False, **MODELS[name])
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager"
    ).eval()
    engine = InspectableEngine.of(MlxBackend().load(pack, EngineOptions()))
    rng = np.random.default_rng(3)
    for length in (1, 17, 60):
        tokens = [int(t) for t in rng.integers(0, 48, length)]
        with torch.no_grad():
            expected = reference(torch.tensor([tokens])).logits[0, -1].double().numpy()
        assert relative_gap(next_logits(engine, tokens), expected) < 1e-3


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0", "F16"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_a_gguf_file_is_computed_with_its_own_blocks(kind: str, arch: str, tmp_path: Path) -> None:
    """Every matrix of the model is the file's, block for block, the rows of q and k put back."""
    config = {"model_type": arch} if arch == "qwen2" else {}
    file = write_gguf(
        tmp_path / "m.gguf",
        arch=arch,
        kind=gguf.GGMLQuantizationType[kind],
        tensors=hf_tensors({**CONFIG, **config}),
    )
    engine = MlxBackend().load(packs.resolve(file), EngineOptions(extra={"dtype": "float32"}))
    modules = dict(engine.target.model.named_modules())
    seen = 0
    with open_checkpoint(file) as checkpoint:
        for name, tensor in checkpoint.tensors.items():
            path, _, part = name.rpartition(".")
            module = modules[path]
            expected = dequantise(tensor)
            if tensor.permuted:
                rows = expected.shape[0]
                expected = expected[unpermute_rows(rows // checkpoint.config.head_dim, rows)]
            found = module[part]
            if "scales" in module and part == "weight":
                found = mx.dequantize(
                    module.weight, module.scales, module.biases, module.group_size, module.bits
                )
                seen += 1
            np.testing.assert_allclose(np.array(found), expected, rtol=1e-6, atol=1e-6)
    assert (seen > 0) == (kind != "F16")


def test_rotary_factors_of_a_gguf_file_are_applied(tmp_path: Path) -> None:
    factors = np.linspace(1.0, 4.0, 8).astype(np.float32)
    plain = write_gguf(tmp_path / "plain.gguf", kind=gguf.GGMLQuantizationType.F16)
    scaled = write_gguf(
        tmp_path / "scaled.gguf",
        kind=gguf.GGMLQuantizationType.F16,
        extra={"rope_freqs.weight": factors},
    )
    x = mx.random.normal((1, 2, 5, 16))
    ropes = [
        MlxBackend()
        .load(packs.resolve(path), EngineOptions())
        .target.model.layers[0]
        .self_attn.rope
        for path in (plain, scaled)
    ]
    with open_checkpoint(scaled) as checkpoint:
        frequency = checkpoint.config.rope_frequencies()
    angle = np.outer(np.arange(3, 8), frequency)
    first, second = np.array(x[..., :8]), np.array(x[..., 8:])
    expected = np.concatenate(
        [
            first * np.cos(angle) - second * np.sin(angle),
            second * np.cos(angle) + first * np.sin(angle),
        ],
        axis=-1,
    )
    np.testing.assert_allclose(np.array(ropes[1](x, offset=3)), expected, atol=1e-4)
    assert np.abs(np.array(ropes[0](x, offset=3)) - expected).max() > 1e-2
