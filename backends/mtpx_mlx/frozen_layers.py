"""One layer's state as named arrays and numbers for a file, and back.

mlx-lm's caches tell their whole state as a tree of arrays and numbers; a recurrent layer is told as one
state held whole and the rows to run on it. What comes from a file is compared with what the same layer
holds after one row, so that nothing of another width, precision, window or packing is taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path

from mtpx.checkpoint import Tensor
from mtpx.errors import BackendError
from mtpx_mlx.recurrent import DeltaLayer, Held, Ran
from mtpx_mlx.state import GroupLayer, KVLayer, LayerState, WindowLayer

if TYPE_CHECKING:
    from mtpx.checkpoint import Kind

# The file knows no unsigned words; packed values go through it as the signed ones of the same bits.
KINDS: dict[mx.Dtype, Kind] = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.int32: "I32",
    mx.uint32: "I32",
    mx.int64: "I64",
}


@dataclass
class Given:
    """Arrays and numbers by name, on their way into a file."""

    arrays: dict[str, mx.array] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def layer(self, name: str, layer: LayerState) -> None:
        """Everything this layer holds. Raises `BackendError` where it is of a kind no file keeps."""
        if isinstance(layer, GroupLayer):
            for i, part in enumerate(layer.parts):
                self.layer(f"{name}.{i}", part)
        elif isinstance(layer, DeltaLayer):
            self._recurrent(name, layer)
        else:
            for path, value in tree_flatten(layer.copy().cache.state):
                if isinstance(value, mx.array):
                    self.arrays[f"{name}.{path}"] = value
                elif isinstance(value, int):
                    self.numbers[f"{name}.{path}"] = value
                elif value is not None:
                    raise BackendError(
                        f"the state of this model's {type(layer.cache).__name__} layers is not kept in "
                        "files"
                    )

    def _recurrent(self, name: str, layer: DeltaLayer) -> None:
        held, rows = layer.standing()
        self.numbers[f"{name}.rows"] = 0 if rows is None else rows.inputs.shape[1]
        parts = [*held._asdict().items(), *(rows._asdict().items() if rows is not None else ())]
        self.arrays |= {f"{name}.{part}": array for part, array in parts if array is not None}

    def tensors(self) -> dict[str, Tensor]:
        """The arrays' bytes. Raises `BackendError` where their type is none a file keeps."""
        return {name: _bytes(name, array) for name, array in self.arrays.items()}


class Taken:
    """Tensors and numbers of a file, each checked when it is asked for. Whatever is missing or does not
    fit raises `BackendError`."""

    def __init__(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, int]) -> None:
        self._tensors, self._numbers = tensors, numbers

    def number(self, name: str, least: int, most: int) -> int:
        found = self._numbers.get(name)
        if found is None or not least <= found <= most:
            has = "is missing" if found is None else f"is {found:,}"
            raise unfit(f"{name} {has}, expected {least:,} to {most:,}")
        return found

    def array(self, name: str, like: mx.array, axis: int, size: int | None = None) -> mx.array:
        """The array of this name: `like`'s type and, but for `axis`, its shape; `size` along that."""
        found = self._tensors.get(name)
        expected = list(like.shape)
        if found is not None and len(found.shape) == like.ndim:
            expected[axis] = found.shape[axis] if size is None else size
        elif size is not None:
            expected[axis] = size
        kind = KINDS.get(like.dtype)
        if found is None or found.shape != tuple(expected) or found.kind != kind:
            has = "is missing" if found is None else f"is {found.kind} of shape {found.shape}"
            raise unfit(f"{name} {has}, expected {kind} of shape {tuple(expected)}")
        return mx.array(np.array(found.data)).view(like.dtype).reshape(found.shape)

    def layer(self, name: str, fresh: LayerState, like: LayerState, positions: int) -> LayerState:
        """`fresh`, which has computed nothing, as it was after `positions` ≥ 1; `like` is the same
        layer after one row."""
        if isinstance(fresh, GroupLayer) and isinstance(like, GroupLayer):
            pairs = zip(fresh.parts, like.parts, strict=True)
            for i, (part, one) in enumerate(pairs):
                self.layer(f"{name}.{i}", part, one, positions)
            return fresh
        if isinstance(like, DeltaLayer):
            return self._recurrent(name, like, positions)
        self._fill(name, fresh, like, positions)
        fresh.begin(positions, 0)
        return fresh

    def _fill(self, name: str, fresh: LayerState, like: LayerState, positions: int) -> None:
        before = dict(tree_flatten(fresh.cache.state))
        # Keys and values lie by position; other caches fix their own number of rows.
        rows = positions if isinstance(fresh, KVLayer) else None

        def leaf(path: str, value: Any) -> Any:
            at = f"{name}.{path}"
            if isinstance(value, mx.array):
                return self.array(at, value, value.ndim - 2, rows)
            if not isinstance(value, int):
                return value
            # A number that a row leaves as it was is a setting: a window, a number of bits.
            if value == before.get(path):
                return self.number(at, value, value)
            return self.number(at, 0, positions)

        fresh.cache.state = tree_map_with_path(leaf, like.cache.state)
        if isinstance(fresh, KVLayer | WindowLayer) and fresh.cache.offset != positions:
            raise unfit(f"{name} ends at {fresh.cache.offset:,}, expected {positions:,}")
        if isinstance(fresh, WindowLayer):
            cache = fresh.cache
            held = {cache.keys.shape[-2], cache.values.shape[-2]}
            if len(held) > 1 or min(held) < max(cache._idx, min(positions, cache.max_size)):
                raise unfit(f"{name} holds {min(held):,} rows of a window of {cache.max_size:,}")

    def _recurrent(self, name: str, like: DeltaLayer, positions: int) -> DeltaLayer:
        (one,) = like.cache.steps
        held, ran = one.after, one.rows
        assert held is not None
        assert ran is not None
        assert held.state is not None
        rows = self.number(f"{name}.rows", 0, positions)
        state = None  # before the first position there is none
        if rows < positions:
            state = self.array(f"{name}.state", held.state, 1, held.state.shape[1])
        window = self.array(f"{name}.window", held.window, 1, held.window.shape[1])
        parts = None
        if rows:
            parts = Ran(*(self.array(f"{name}.{p}", a, 1, rows) for p, a in ran._asdict().items()))
        return DeltaLayer.after(positions, Held(window, state), parts)


def unfit(what: str) -> BackendError:
    return BackendError(f"the kept state does not fit this model: {what}")


def _bytes(name: str, array: mx.array) -> Tensor:
    if array.dtype not in KINDS:
        raise BackendError(f"the state of this model holds {array.dtype}, which no file keeps")
    raw = np.array(mx.contiguous(array).reshape(-1).view(mx.uint8))
    return Tensor(name, tuple(array.shape), KINDS[array.dtype], raw)
