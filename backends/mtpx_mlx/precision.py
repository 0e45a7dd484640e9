"""What a model's matrices are held in, and the type numbers are computed in."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mtpx.errors import BackendError
from mtpx.precision import PRECISIONS, Precision, choose_precision

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}

GROUP = 64
"""Weights that share a scale where a model is packed at load: mlx-lm's own default."""


def dtype_of(asked: str) -> mx.Dtype | None:
    """The type asked for; `None` for "auto". Raises `BackendError` for any other word."""
    if asked == "auto":
        return None
    if asked not in DTYPES:
        raise BackendError(f"dtype must be auto, {', '.join(DTYPES)}, got {asked!r}")
    return DTYPES[asked]


def prepare(model: Any, precision: str, dtype: mx.Dtype | None, what: str) -> str:
    """Bring a model's weights into the precision asked for ("auto": as they are stored), and what is
    not packed into `dtype`. → the precision it runs in.

    Packed weights stay packed: they are computed with as they are. Raises `BackendError` for what
    cannot be had.
    """
    packed = packed_bits(model)
    if precision != "auto":
        chosen = choose_precision(precision, _reasons(packed), what)
        if chosen in ("int8", "int4") and packed is None:
            nn.quantize(model, group_size=GROUP, bits=int(chosen[3:]), class_predicate=_packable)
            packed = packed_bits(model)
        elif packed is None:
            dtype = dtype or DTYPES[chosen]
    if dtype is not None:
        cast(model, dtype)
    return f"int{packed}" if packed is not None else said(computed_in(model))


def _reasons(packed: int | None) -> dict[Precision, str]:
    if packed is None:
        return dict.fromkeys(PRECISIONS, "")
    why = f"its weights are packed in {packed} bits and are computed with as they are"
    return {name: "" if name == f"int{packed}" else why for name in PRECISIONS}


def packed_bits(model: Any) -> int | None:
    """The bits most of the packed weights have; `None` where most weights are not packed."""
    sizes: dict[int | None, int] = {}
    for _, module in model.named_modules():
        weight = module.get("weight") if isinstance(module, dict) else None
        if isinstance(weight, mx.array) and weight.ndim > 1:
            bits = module.bits if "scales" in module else None
            sizes[bits] = sizes.get(bits, 0) + weight.size
    return max(sizes, key=lambda bits: sizes[bits], default=None)


def _packable(path: str, module: Any) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % GROUP == 0


def cast(model: Any, dtype: mx.Dtype) -> None:
    """Turn floating weights, scales and biases into `dtype`, except those that the model says must
    stay as they are (`cast_predicate`)."""
    may = getattr(model, "cast_predicate", None)

    def changed(path: str, value: mx.array) -> mx.array:
        if not mx.issubdtype(value.dtype, mx.floating) or (may is not None and not may(path)):
            return value
        return value.astype(dtype)

    model.load_weights([(p, changed(p, v)) for p, v in tree_flatten(model.parameters())])


def computed_in(model: Any) -> mx.Dtype:
    """The type of the residual stream: that of an embedded token."""
    for _, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.QuantizedEmbedding):
            return module(mx.array([0])).dtype
    raise BackendError(f"mlx-lm's {type(model).__module__} has no embedding; it is no text model")


def said(dtype: mx.Dtype) -> str:
    """A type's name."""
    return str(dtype).removeprefix("mlx.core.")
