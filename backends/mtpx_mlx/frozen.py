"""A snapshot as bytes for a file, and back: keys, values and hidden states by position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from mtpx.carry import CarriedHead
from mtpx.checkpoint import Tensor
from mtpx.errors import BackendError
from mtpx.frozen import Frozen
from mtpx_mlx.hidden import HiddenRows
from mtpx_mlx.pair_cache import PairCache
from mtpx_mlx.snapshot import Snapshot
from mtpx_mlx.state import KVLayer

if TYPE_CHECKING:
    from mtpx.checkpoint import Kind
    from mtpx_mlx.state import TargetState

KINDS: dict[mx.Dtype, Kind] = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}
TYPES = {kind: dtype for dtype, kind in KINDS.items()}


def freeze(saved: Snapshot) -> Frozen:
    """`target.I.keys` and `.values` (1, heads, filled, dim) of layer I, `head.keys` and `.values` of the
    head's rows, `hidden` (hi - lo, H).

    Raises `BackendError` where a layer holds something else than keys and values: such a state is not
    kept in files.
    """
    tensors: dict[str, mx.array] = {}
    for i, layer in enumerate(saved.state.layers):
        if saved.filled:
            _put(tensors, f"target.{i}", layer, saved.filled)
    facts = {"filled": saved.filled, "head_rows": 0, "head_key": -1}
    hidden = saved.hidden
    if saved.head is not None and hidden is not None and saved.head.rows:
        _put(tensors, "head", saved.head.handle.rows, saved.head.rows)
        tensors["hidden"] = hidden.read(hidden.lo, hidden.hi)
        facts |= {
            "head_rows": saved.head.rows,
            "head_key": saved.head.last_pair_key,
            "hidden_lo": hidden.lo,
            "hidden_hi": hidden.hi,
        }
    made = {name: _bytes(name, array) for name, array in tensors.items()}
    return Frozen(saved.tokens, saved.session, made, facts)


def thaw(frozen: Frozen, fresh: TargetState) -> Snapshot:
    """A snapshot that fills `fresh`. Raises `BackendError` where the bytes are not this model's."""
    facts, tensors = frozen.facts, frozen.tensors
    filled = facts.get("filled", -1)
    if not 0 <= filled <= len(frozen.tokens):
        raise _unfit(f"{filled} positions of {len(frozen.tokens)} tokens")
    for i, layer in enumerate(fresh.layers):
        if filled:
            _take(tensors, f"target.{i}", layer, filled)
    fresh.positions = filled
    saved = Snapshot(frozen.tokens, frozen.session, filled, fresh)
    rows, key = facts.get("head_rows", 0), facts.get("head_key", -1)
    if not rows:
        return saved
    lo, hi = facts.get("hidden_lo", -1), facts.get("hidden_hi", -1)
    held = tensors.get("hidden")
    if not (0 < rows <= key + 1 < len(frozen.tokens) and 0 <= lo <= hi <= filled) or held is None:
        raise _unfit(f"{rows} rows up to pair {key}, hidden states {lo} to {hi}")
    if held.shape[:1] != (hi - lo,):
        raise _unfit(f"hidden is of shape {held.shape} for positions {lo} to {hi}")
    cache = PairCache()
    _take(tensors, "head", cache.rows, rows)
    saved.head = CarriedHead(rows, key, saved.tokens, saved.session, cache)
    saved.hidden = HiddenRows()
    if lo < hi:
        saved.hidden.write(lo, _array(held))
    return saved


def _put(tensors: dict[str, mx.array], name: str, layer: object, count: int) -> None:
    cache = _keys_and_values(layer)
    for part in ("keys", "values"):
        tensors[f"{name}.{part}"] = getattr(cache, part)[..., :count, :]


def _take(tensors: dict[str, Tensor], name: str, layer: object, count: int) -> None:
    cache = _keys_and_values(layer)
    for part in ("keys", "values"):
        found = tensors.get(f"{name}.{part}")
        if found is None or len(found.shape) != 4 or found.shape[2] != count:
            has = "is missing" if found is None else f"is of shape {found.shape}"
            raise _unfit(f"{name}.{part} {has}, expected {count} rows")
        setattr(cache, part, _array(found))
    cache.offset = count


def _keys_and_values(layer: object) -> Any:
    cache = layer.cache if isinstance(layer, KVLayer) else None
    if type(cache).__name__ != "KVCache":
        raise BackendError(
            "the state of this model's recurrent, windowed or quantised layers is not kept in files"
        )
    return cache


def _unfit(what: str) -> BackendError:
    return BackendError(f"the kept state does not fit this model: {what}")


def _bytes(name: str, array: mx.array) -> Tensor:
    raw = np.array(mx.contiguous(array).reshape(-1).view(mx.uint8))
    return Tensor(name, tuple(array.shape), KINDS[array.dtype], raw)


def _array(tensor: Tensor) -> mx.array:
    if tensor.kind not in TYPES:
        raise _unfit(f"{tensor.name} is {tensor.kind}")
    return mx.array(np.array(tensor.data)).view(TYPES[tensor.kind]).reshape(tensor.shape)
