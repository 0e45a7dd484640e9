"""What a slot holds of the target's layers, and how rows of a forward are taken back.

mlx-lm's layers write into one cache object each. A `LayerState` owns such a cache and knows how to
make it hold fewer positions again; a `TargetState` is all layers of one slot. The engine calls
`begin` before every forward and `keep` once it knows how many of its rows stand.

MLX arrays are immutable values behind Python handles (`a[i] = x` gives the handle another value), so
remembering a state costs no copy: a new handle to the old value. The next write then makes a copy
instead of writing in place.

A forward may be broken off anywhere, by Ctrl-C or by an error: between two layers, or halfway through a
cache's own update. `keep` makes the state right again from whatever it finds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx
from mlx.utils import tree_map

from mtpx_mlx.recurrent import DeltaCache, DeltaLayer


class LayerState(Protocol):
    """One layer's state. `cache` is what mlx-lm's layer is given; `why_plain` is empty, or the reason
    why a multi-row forward of it cannot be taken back by rows (then nothing is drafted)."""

    cache: Any
    why_plain: str

    def begin(self, before: int, rows: int, ahead: int = 0) -> None:
        """A forward of `rows` rows follows on `before` positions, the last `ahead` of which may be taken
        back with it."""
        ...

    def keep(self, positions: int) -> None:
        """Hold the state after the first `positions` positions; `reach(positions) == positions`. Whether
        the last forward ran here, ran not, or was broken off makes no difference."""
        ...

    def reach(self, positions: int) -> int:
        """The most positions ≤ `positions` that `keep` can go back to; 0 is a fresh layer."""
        ...

    def copy(self) -> LayerState:
        """A state of its own that shares today's values."""
        ...


class KVLayer:
    """Keys and values by position, trimmed by moving an offset (mlx-lm's `KVCache`, and the
    quantised one)."""

    why_plain = ""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def begin(self, before: int, rows: int, ahead: int = 0) -> None:
        pass

    def keep(self, positions: int) -> None:
        self.cache.offset = positions
        _cut_where_uneven(self.cache, positions)

    def reach(self, positions: int) -> int:
        return min(positions, int(self.cache.offset))

    def copy(self) -> KVLayer:
        twin = copy.copy(self.cache)
        if twin.keys is not None:
            held = tree_map(lambda a: a[..., : twin.offset, :], (twin.keys, twin.values))
            twin.keys, twin.values = held
        return KVLayer(twin)


class WindowLayer:
    """The last positions only (mlx-lm's `RotatingKVCache`).

    Several rows are appended in order, so the rejected ones are cut off the end: what is left still
    covers the window. A single row may overwrite the oldest one in place, so from where the window is
    full on the values before a forward are remembered. Older positions are gone then.
    """

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.why_plain = (
            f"its rotating cache always keeps the first {cache.keep} positions, which several rows at "
            "once see differently from one at a time"
            if cache.keep
            else ""
        )
        self._first = 0
        self._before: Earlier = ()

    def begin(self, before: int, rows: int, ahead: int = 0) -> None:
        wraps = before + rows > self.cache.max_size
        self._before = _remembered(self._before, self.cache, before, ahead, still=wraps)
        # What may be cut off again: the rows of this forward, or all while nothing was overwritten.
        self._first = before - ahead if wraps else 0

    def keep(self, positions: int) -> None:
        cache = self.cache
        earlier = next((state for at, state in self._before if at >= positions), None)
        if earlier is not None:
            cache.state = earlier
        _cut_where_uneven(cache, positions)
        over = cache.offset - positions
        if over <= 0:
            return
        left = cache._idx - over
        # One row less than the window is left when a whole forward is taken back: the next single row
        # is written over the oldest, so there has to be one to overwrite.
        short = max(0, min(positions, cache.max_size) - left)
        keys, values = (
            mx.pad(a[..., :left, :], [(0, 0), (0, 0), (short, 0), (0, 0)])
            for a in (cache.keys, cache.values)
        )
        # Nothing is called from here on, so that a Ctrl-C finds all of it or nothing.
        cache.keys, cache.values = keys, values
        cache._idx = left + short
        cache.offset = positions

    def reach(self, positions: int) -> int:
        if positions >= self.cache.offset:
            return int(self.cache.offset)
        return positions if positions >= self._first else 0

    def copy(self) -> WindowLayer:
        twin = WindowLayer(copy.copy(self.cache))
        twin.cache.state = _handles(self.cache.state)
        twin._first = self.cache.offset if self.cache.offset > self.cache.max_size else 0
        return twin


class OpaqueLayer:
    """A cache nobody here knows from inside: a forward can be taken back as a whole."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.why_plain = f"its {type(cache).__name__} layers cannot be taken back by single rows after a rejection"
        self._now = 0
        self._before: Earlier = ()

    def begin(self, before: int, rows: int, ahead: int = 0) -> None:
        self._before = _remembered(self._before, self.cache, before, ahead)
        self._now = before + rows

    def keep(self, positions: int) -> None:
        earlier = next((state for at, state in self._before if at == positions), None)
        if earlier is not None:
            self.cache.state = earlier
        self._now = positions

    def reach(self, positions: int) -> int:
        if positions >= self._now:
            return self._now
        return max((at for at, _ in self._before if at <= positions), default=0)

    def copy(self) -> OpaqueLayer:
        twin = OpaqueLayer(copy.copy(self.cache))
        twin.cache.state = _handles(self.cache.state)
        twin._now = self._now
        return twin


class GroupLayer:
    """Several caches of one layer (mlx-lm's `CacheList`), taken back together."""

    def __init__(self, cache: Any, parts: list[LayerState]) -> None:
        self.cache, self.parts = cache, parts
        self.why_plain = next((p.why_plain for p in parts if p.why_plain), "")

    def begin(self, before: int, rows: int, ahead: int = 0) -> None:
        for part in self.parts:
            part.begin(before, rows, ahead)

    def keep(self, positions: int) -> None:
        for part in self.parts:
            part.keep(positions)

    def reach(self, positions: int) -> int:
        return _common_reach(self.parts, positions)

    def copy(self) -> GroupLayer:
        parts = [part.copy() for part in self.parts]
        twin = copy.copy(self.cache)
        twin.caches = type(self.cache.caches)(part.cache for part in parts)
        return GroupLayer(twin, parts)


class TargetState:
    """All layers of one slot. `positions` is how many positions they cover, rows of a forward whose
    outcome is not known yet included."""

    def __init__(self, layers: list[LayerState], fresh: Callable[[], list[LayerState]]) -> None:
        self.layers, self._fresh = layers, fresh
        self.positions = 0

    @property
    def caches(self) -> list[Any]:
        return [layer.cache for layer in self.layers]

    @property
    def recurrent(self) -> bool:
        """Whether a layer holds a state that every row changes."""
        return any(type(cache).__name__ in ("DeltaCache", "ArraysCache") for cache in self.caches)

    @property
    def why_plain(self) -> str:
        return next((layer.why_plain for layer in self.layers if layer.why_plain), "")

    def begin(self, rows: int, ahead: int = 0) -> None:
        """A forward of `rows` rows follows; the last `ahead` positions may be taken back with it."""
        before = self.positions
        # First of all: whatever is broken off after this is known to be, and taken back.
        self.positions = before + rows
        for layer in self.layers:
            layer.begin(before, rows, ahead)

    def keep(self, positions: int) -> None:
        """Take back everything after the first `positions` positions, which `reach` must reach."""
        if positions == 0 < self.positions:
            self.layers = self._fresh()
        else:
            for layer in self.layers:
                layer.keep(positions)
        self.positions = positions

    def reach(self, positions: int) -> int:
        """The most positions ≤ `positions` that `keep` can go back to."""
        return _common_reach(self.layers, min(positions, self.positions))

    def copy(self) -> TargetState:
        """A state of its own that shares today's values."""
        twin = TargetState([layer.copy() for layer in self.layers], self._fresh)
        twin.positions = self.positions
        return twin

    def evaluate(self) -> None:
        """Compute whatever of the state is still pending."""
        mx.eval([layer.cache.state for layer in self.layers])


def layer_states(caches: list[Any]) -> list[LayerState]:
    """The state that owns each of these mlx-lm caches, by its kind."""
    return [_layer_state(cache) for cache in caches]


def _layer_state(cache: Any) -> LayerState:
    kind = type(cache).__name__
    if isinstance(cache, DeltaCache):
        return DeltaLayer(cache)
    if kind in ("KVCache", "QuantizedKVCache"):
        return KVLayer(cache)
    if kind == "RotatingKVCache":
        return WindowLayer(cache)
    if kind == "CacheList":
        return GroupLayer(cache, layer_states(list(cache.caches)))
    return OpaqueLayer(cache)


def _common_reach(layers: list[LayerState], positions: int) -> int:
    """The most positions that every layer can go back to: one layer's limit may force another's."""
    while True:
        reached = min((layer.reach(positions) for layer in layers), default=positions)
        if reached == positions or reached == 0:
            return reached
        positions = reached


Earlier = tuple[tuple[int, Any], ...]
"""States of a cache after so many positions, oldest first."""


def _remembered(
    earlier: Earlier, cache: Any, before: int, ahead: int, *, still: bool = True
) -> Earlier:
    """The states that a forward on `before` positions may be taken back to: of those before it as far as
    `ahead` asks for, and the one it begins with, if that is `still` to be remembered."""
    kept = tuple((at, state) for at, state in earlier if before - ahead <= at < before)
    return (*kept, (before, _handles(cache.state))) if still else kept


def _cut_where_uneven(cache: Any, positions: int) -> None:
    """Cut keys and values to `positions` rows where one of them has grown and the other has not: mlx-lm's
    caches make room for the two one after the other (the quantised one for both at once)."""
    keys, values = cache.keys, cache.values
    if isinstance(keys, mx.array) and keys.shape[-2] != values.shape[-2]:
        cache.keys, cache.values = keys[..., :positions, :], values[..., :positions, :]


def _handles(state: Any) -> Any:
    """The same values behind handles of their own, which later writes do not touch."""
    return tree_map(lambda a: a[...] if isinstance(a, mx.array) else a, state)
