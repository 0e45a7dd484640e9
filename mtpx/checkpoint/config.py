"""What a target is, told by its checkpoint: sizes, rotary embedding, end ids."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtpx.errors import PackError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "mimo")
"""Decoders of the llama kind: RMS norm, rotary embedding by halves, gated SiLU, grouped queries."""

_KNOWN = {
    "qwen3_next": "recurrent (GatedDeltaNet) layers, which the mlx backend computes",
    "qwen3next": "recurrent (GatedDeltaNet) layers, which the mlx backend computes from a folder",
    "qwen3_5": "recurrent (GatedDeltaNet) layers, which the mlx backend computes",
    "qwen35": "recurrent (GatedDeltaNet) layers, which the mlx backend computes from a folder",
    "moe": "mixture-of-experts layers",
    "mixtral": "mixture-of-experts layers",
    "deepseek": "latent attention and mixture-of-experts layers",
    "glm4": "norms and partial rotary embedding of its own",
    "nemotron": "recurrent (Mamba) layers",
    "mamba": "recurrent (Mamba) layers",
    "gemma": "another activation, scaled embeddings and sliding windows",
    "gpt_oss": "mixture-of-experts layers and attention sinks",
    "gpt-oss": "mixture-of-experts layers and attention sinks",
    "phi": "fused projections",
    "smollm3": "layers without rotary embedding",
    "step3": "mixture-of-experts layers",
}


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation, Chen et al. 2023)."""

    factor: float

    def apply(self, frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: long wavelengths divided by `factor`, short ones kept, a ramp between.

    `original_context` / `low_frequency` and / `high_frequency` are the wavelengths (tokens) at
    the ramp's ends. Formula: llama-models' `apply_scaling`, also transformers'
    `_compute_llama3_parameters`.
    """

    factor: float
    low_frequency: float
    high_frequency: float
    original_context: int

    def apply(self, frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        turns = self.original_context * frequencies / (2 * math.pi)
        ramp = (turns - self.low_frequency) / (self.high_frequency - self.low_frequency)
        smooth = np.clip(ramp, 0.0, 1.0)
        scaled: npt.NDArray[np.float64] = frequencies / self.factor
        return scaled + smooth * (frequencies - scaled)


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Every frequency divided by its own factor, (head_dim / 2,): GGUF's `rope_freqs.weight`."""

    factors: tuple[float, ...]

    def apply(self, frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return frequencies / np.array(self.factors, dtype=np.float64)


RopeScaling = LinearScaling | Llama3Scaling | FactorScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """A target's architecture, whichever file it came from.

    `context` in tokens. `rope_dim` equals `head_dim`. `tied`: the output head is the embedding.
    `attention_bias` is on q, k and v, `output_bias` on o, `mlp_bias` on gate, up and down.
    `qk_norm`: RMS norm over head_dim of q and k before rotary embedding. `bos_id` is None where the
    checkpoint names none; any of `end_ids` ends a text. Norm weights apply as stored.
    """

    family: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_base: float
    rope_dim: int
    rope_scaling: RopeScaling | None
    rms_eps: float
    tied: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    bos_id: int | None
    end_ids: tuple[int, ...]

    def rope_frequencies(self) -> npt.NDArray[np.float64]:
        """(rope_dim / 2,) radians a token by which pair j = (j, j + rope_dim / 2) turns, scaling
        included: rope_base^(-2j / rope_dim) (Su et al. 2021)."""
        exponents = np.arange(0, self.rope_dim, 2, dtype=np.float64) / self.rope_dim
        plain: npt.NDArray[np.float64] = self.rope_base**-exponents
        return plain if self.rope_scaling is None else self.rope_scaling.apply(plain)


def check_config(config: TargetConfig, where: str) -> TargetConfig:
    """The config itself, if its numbers go together. Raises `PackError` otherwise."""
    if config.heads % config.kv_heads:
        raise PackError(
            f"{where}: {config.heads} heads cannot share {config.kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise PackError(
            f"{where}: a head of {config.head_dim} dimensions cannot be rotated in pairs"
        )
    if config.rope_dim != config.head_dim:
        raise PackError(
            f"{where}: partial rotary embedding ({config.rope_dim} of {config.head_dim} dimensions "
            "of a head) is not supported"
        )
    scaling = config.rope_scaling
    if isinstance(scaling, Llama3Scaling) and scaling.high_frequency <= scaling.low_frequency:
        raise PackError(f"{where}: llama3 rope scaling needs high_freq_factor > low_freq_factor")
    if isinstance(scaling, FactorScaling) and len(scaling.factors) != config.rope_dim // 2:
        raise PackError(
            f"{where}: {len(scaling.factors)} rotary factors for {config.rope_dim // 2} pairs"
        )
    outside = [i for i in (config.bos_id, *config.end_ids) if i is not None and i >= config.vocab]
    if outside:
        raise PackError(
            f"{where}: token id {outside[0]} is outside the vocabulary of {config.vocab}"
        )
    return config


def refuse_architecture(name: str, where: str) -> PackError:
    """The error for an architecture nobody here can compute, with what is known of it."""
    known = next((why for part, why in _KNOWN.items() if part in name.lower()), "")
    return PackError(
        f"{where}: architecture {name} is not supported"
        + (f" (it has {known})" if known else "")
        + f"; supported: {', '.join(FAMILIES)}"
    )


def refuse_window(window: int, context: int, where: str) -> PackError:
    return PackError(
        f"{where}: sliding-window attention over {window:,} of {context:,} tokens is not supported"
    )


def scaling_from(kind: str, values: dict[str, Any], where: str) -> RopeScaling | None:
    """Rotary scaling by its type's name and its parameters (named as in config.json).

    Raises `PackError` for a type without a formula here, or a parameter that is absent.
    """
    if kind in ("", "default", "none"):
        return None
    if kind not in ("linear", "llama3"):
        raise PackError(
            f"{where}: rope scaling {kind!r} is not supported; supported: linear, llama3"
        )
    names = {
        "linear": ("factor",),
        "llama3": (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ),
    }[kind]
    numbers = []
    for name in names:
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PackError(f"{where}: {kind} rope scaling needs {name}, found {value!r}")
        if not 0 < value < 1e9:
            raise PackError(f"{where}: {kind} rope scaling has {name} {value!r}, outside its range")
        numbers.append(float(value))
    if kind == "linear":
        return LinearScaling(numbers[0])
    return Llama3Scaling(numbers[0], numbers[1], numbers[2], int(numbers[3]))
