"""A target out of a GGUF file, its quantised blocks kept as they are.

`mx.load` gives Q4_0, Q4_1 and Q8_0 tensors in MLX's own quantised form (`weight` packed along a row,
`scales` and `biases` one a group of 32), so nothing is ever dequantised here. The rows of q and k,
which GGUF orders for interleaved rotary embedding in the llama architecture, are put back in their
packed form: a row is whole.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtpx.checkpoint import (
    Checkpoint,
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    TargetConfig,
    unpermute_rows,
)
from mtpx.checkpoint.layout import canonical_name, is_permuted
from mtpx.errors import PackError
from mtpx_mlx.folder import fill
from mtpx_mlx.models import model_class
from mtpx_mlx.quantised import quantise_where_packed


def gguf_model(checkpoint: Checkpoint) -> Any:
    """mlx-lm's model of a checkpoint that is a GGUF file, weights in it, nothing computed yet."""
    config = checkpoint.config
    weights = _weights(checkpoint)
    model_type, arguments = model_class({"model_type": config.family})
    model = model_type(arguments.from_dict(_config_json(config)))
    quantise_where_packed(model, weights, str(checkpoint.files[0]))
    if isinstance(config.rope_scaling, FactorScaling):
        rope = FactorRoPE(config)
        for layer in model.layers:
            layer.self_attn.rope = rope
    fill(model, weights, str(checkpoint.files[0]))
    return model


def _weights(checkpoint: Checkpoint) -> dict[str, mx.array]:
    config, (path,) = checkpoint.config, checkpoint.files
    architecture = str(checkpoint.metadata.get("general.architecture", ""))
    try:
        stored = mx.load(str(path))
    except (RuntimeError, ValueError) as error:
        raise PackError(f"{path} cannot be read by MLX: {error}") from None
    assert isinstance(stored, dict)
    weights: dict[str, mx.array] = {}
    for name, value in stored.items():
        stem, _, part = canonical_name(f"{name.rpartition('.')[0]}.weight").rpartition(".")
        kind = name.rpartition(".")[2]
        if f"{stem}.{part}" not in checkpoint.tensors or stem == "rope_freqs":
            continue
        if is_permuted(architecture, f"{stem}.weight"):
            rows = value.shape[0]
            value = value[mx.array(unpermute_rows(rows // config.head_dim, rows))]
        weights[f"{stem}.{kind}"] = value
    if config.tied:
        weights = {name: w for name, w in weights.items() if not name.startswith("lm_head.")}
    return weights


def _config_json(config: TargetConfig) -> dict[str, Any]:
    """The target's configuration as config.json has it."""
    told: dict[str, Any] = {
        "model_type": config.family,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "intermediate_size": config.ffn,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_eps,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
    }
    scaling = config.rope_scaling
    if isinstance(scaling, LinearScaling):
        told["rope_scaling"] = {"type": "linear", "factor": scaling.factor}
    elif isinstance(scaling, Llama3Scaling):
        told["rope_scaling"] = {
            "type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
            "original_max_position_embeddings": scaling.original_context,
        }
    return told


class FactorRoPE(nn.Module):
    """Rotary embedding with a factor of its own for every frequency (GGUF's `rope_freqs.weight`)."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.dims = config.rope_dim
        self._freqs = mx.array(1.0 / config.rope_frequencies(), dtype=mx.float32)

    def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
        return mx.fast.rope(
            x,
            self.dims,
            traditional=False,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self._freqs,
        )
