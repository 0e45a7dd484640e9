"""How a head's matrices lie in a folder: 16 or 32 bit, or in MLX's packed form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mtpx.checkpoint.headers import Announced
from mtpx.errors import PackError

_PARTS = ("scales", "biases")
"""What MLX keeps beside a packed matrix."""

_WORD = 32
"""Bits of the unsigned integers that MLX packs a row's numbers into."""


def logical_shapes(
    tensors: Mapping[str, Announced], names: Iterable[str], quantisation: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """The shapes of the matrices these tensors stand for, a packed one's under its own name and
    without the scales and biases beside it.

    `quantisation` is config.json's own table: `bits` and `group_size`, and such a table again under
    the name of a layer that differs. Raises `PackError` when it does not describe what is stored.
    """
    wanted = set(names)
    packed = {
        name.removesuffix(".weight")
        for name in wanted
        if name.endswith(".weight") and tensors[name].dtype == "U32"
    }
    beside = {f"{path}.{part}" for path in packed for part in _PARTS}
    shapes = {}
    for name in wanted - beside:
        stored, path = tensors[name], name.removesuffix(".weight")
        shapes[name] = (
            _unpacked(path, stored.shape, tensors, quantisation) if path in packed else stored.shape
        )
    return shapes


def _unpacked(
    path: str,
    shape: tuple[int, ...],
    tensors: Mapping[str, Announced],
    quantisation: Mapping[str, Any],
) -> tuple[int, ...]:
    scales = tensors.get(f"{path}.scales")
    if scales is None:
        raise PackError(f"{path}.weight is packed, but {path}.scales is not beside it")
    own = quantisation.get(path)
    told = own if isinstance(own, Mapping) else quantisation
    bits, group = told.get("bits"), told.get("group_size")
    if not isinstance(bits, int) or not isinstance(group, int) or bits < 1 or group < 1:
        raise PackError(
            f"{path}.weight is packed, but config.json has no `quantization` with bits and group_size"
        )
    if not shape or len(shape) != len(scales.shape):
        raise PackError(
            f"{path}.weight is packed, but its shape and its scales' do not go together"
        )
    columns = shape[-1] * _WORD // bits
    if columns != scales.shape[-1] * group:
        raise PackError(
            f"{path} does not match config.json's quantisation: {bits} bits make {columns} columns of "
            f"its rows, its scales in groups of {group} stand for {scales.shape[-1] * group}"
        )
    return (*shape[:-1], columns)
