"""Weights packed in MLX's quantised form: recognised by their shapes, checked before they are loaded.

A packed matrix (out, in) is `weight` (out, in · bits / 32) uint32 with `scales` (out, in / group).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtpx.errors import PackError

# The modes whose scales are bytes, by (bits, group); affine scales are floating numbers.
_BYTE_SCALED = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}
_BITS = (2, 3, 4, 5, 6, 8)
_GROUPS = (16, 32, 64, 128)


def quantise_where_packed(model: Any, weights: Mapping[str, mx.array], where: str) -> None:
    """Make quantised layers of those whose weights are packed, bits and group read off the shapes.

    Raises `PackError` when a packed weight cannot belong to the layer of its name.
    """

    def parameters(path: str, module: Any) -> dict[str, Any] | bool:
        if f"{path}.scales" not in weights or not hasattr(module, "to_quantized"):
            return False
        return packing(path, module.weight.shape, weights, where)

    nn.quantize(model, group_size=32, bits=4, class_predicate=parameters)


def packing(
    path: str, shape: tuple[int, ...], weights: Mapping[str, mx.array], where: str
) -> dict[str, Any]:
    """How the matrix `path`, of this unpacked shape, is packed: bits, group_size, mode."""
    weight, scales = weights.get(f"{path}.weight"), weights[f"{path}.scales"]
    if weight is None:
        raise PackError(f"{where}: {path} has scales but no weight")
    columns = shape[-1]
    if scales.ndim == len(shape) and scales.shape[-1] and columns % scales.shape[-1] == 0:
        group = columns // scales.shape[-1]
        bits, rest = divmod(weight.shape[-1] * 32, columns)
        fits = weight.shape[:-1] == scales.shape[:-1] == tuple(shape[:-1]) and rest == 0
        if fits and weight.dtype == mx.uint32 and bits in _BITS and group in _GROUPS:
            mode = "affine"
            if scales.dtype == mx.uint8:
                mode = _BYTE_SCALED.get((bits, group), "")
            if mode:
                return {"bits": bits, "group_size": group, "mode": mode}
    raise PackError(
        f"{where}: {path} should be a matrix of {'×'.join(map(str, shape))}, and its packed weight "
        f"({'×'.join(map(str, weight.shape))}) with scales ({'×'.join(map(str, scales.shape))}) is "
        "none: the quantisation does not match the configuration"
    )
