"""A head's weights as its layers take them, whichever form the files hold them in.

Its tensors are checked against the trunk, experts are stacked as mlx-lm's layers have them, and norms
are shifted exactly once, so that from here on a norm multiplies by its weight. mlx-lm drops the head
of every checkpoint it loads; here it is read from the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mtpx.checkpoint import Announced, read_headers
from mtpx.checkpoint.safetensors import read_header
from mtpx.errors import PackError
from mtpx.heads import (
    HeadContract,
    TrunkSizes,
    check_tensors,
    expected_tensors,
    experts_layout,
    logical_shapes,
    stored_offset,
)

Gains = Callable[[], Mapping[str, float]]
"""The means of the trunk's norms as they are applied, by name; asked only where they are needed."""

_ONE_EXPERT = re.compile(r"(?P<mlp>.*mlp)\.experts\.(?P<i>\d+)\.(?P<part>.+)")


@dataclass(frozen=True, slots=True)
class Files:
    """Where a head lies: its tensors' headers, config.json's quantisation table, and whether the
    folder is in MLX's form rather than in the model's own."""

    tensors: Mapping[str, Announced]
    quantisation: Mapping[str, Any]
    converted: bool


def head_weights(
    contract: HeadContract, path: Path, sizes: TrunkSizes, gains: Gains, dtype: mx.Dtype
) -> dict[str, mx.array]:
    """A head's arrays by the names its contract gives them, matrices in `dtype` or packed.

    `path` is the head's own file, or the folder where it lies among the trunk's weights. Raises
    `PackError` listing what is missing, extra or of another shape.
    """
    files = _look(path)
    prefix = contract.full_prefix(0, sizes.layers)
    names = [name for name in files.tensors if name.startswith(prefix)]
    if not names:
        raise PackError(f"{path} holds no tensors of a {contract.family} head (under {prefix})")
    shapes = logical_shapes(files.tensors, names, files.quantisation)
    check_tensors(shapes, expected_tensors(contract, sizes, experts_layout(names)))
    weights: dict[str, mx.array] = {}
    for file in sorted({files.tensors[name].file for name in names}):
        loaded = mx.load(str(file))
        assert isinstance(loaded, dict)
        weights |= {name: loaded[name] for name in names if name in loaded}
    judged = contract.norm_offset == 1 and files.converted
    held = gains() if judged else {}
    for name, value in weights.items():
        if mx.issubdtype(value.dtype, mx.floating):
            weights[name] = value.astype(dtype)
        if value.ndim == 1 and _is_norm(name):
            offset = stored_offset(_host(value), held, name) if judged else contract.norm_offset
            # Shifted before rounding to `dtype`: w itself may need the digits that 1 + w has not.
            weights[name] = (value.astype(mx.float32) + offset).astype(dtype)
    return _stacked(weights)


def _look(path: Path) -> Files:
    if not path.is_dir():
        entries, _ = read_header(path)
        tensors = {n: Announced(e.dtype, tuple(e.shape), path) for n, e in entries.items()}
        return Files(tensors, {}, converted=False)
    headers = read_headers(path)
    told = headers.config.get("quantization")
    # mlx-lm's converter transposes the convolutions in the same pass that shifts the norms.
    converted = any(
        name.endswith("conv1d.weight") and tensor.shape[-1] == 1
        for name, tensor in headers.tensors.items()
    )
    return Files(headers.tensors, told if isinstance(told, dict) else {}, converted)


def trunk_gains(parameters: Mapping[str, mx.array]) -> dict[str, float]:
    """The means of the trunk's norms, which mlx-lm holds as they are applied. The norm inside a
    GatedDeltaNet is of another kind and shares a name with the final one."""
    return {
        name: float(_host(value).mean())
        for name, value in parameters.items()
        if value.ndim == 1 and _is_norm(name) and "linear_attn" not in name
    }


def _is_norm(name: str) -> bool:
    return name.endswith(("norm.weight", "layernorm.weight")) or ".pre_fc_norm_" in name


def _host(value: mx.array) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(value.astype(mx.float32))


def _stacked(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Experts in one tensor a projection, (experts, out, in), under mlx-lm's names."""
    out: dict[str, mx.array] = {}
    alone: dict[str, dict[int, mx.array]] = {}
    for name, value in weights.items():
        one = _ONE_EXPERT.fullmatch(name)
        if one is not None:
            alone.setdefault(f"{one['mlp']}.switch_mlp.{one['part']}", {})[int(one["i"])] = value
        elif name.endswith(".mlp.experts.gate_up_proj"):
            stem = name.removesuffix("experts.gate_up_proj") + "switch_mlp."
            gate, up = mx.split(value, 2, axis=1)
            out |= {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
        elif name.endswith(".mlp.experts.down_proj"):
            out[name.replace("experts.down_proj", "switch_mlp.down_proj.weight")] = value
        else:
            out[name] = value
    for name, each in alone.items():
        out[name] = mx.stack([each[i] for i in range(len(each))])
    return out
