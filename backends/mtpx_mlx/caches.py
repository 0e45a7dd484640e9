"""How a slot's caches are made: mlx-lm's own, over a window of the last positions, or quantised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mtpx.backend import EngineOptions
from mtpx.errors import BackendError
from mtpx_mlx.models import light
from mtpx_mlx.recurrent import make_replayable, replayable_caches

KV_BITS = (4, 8)
SHORTEST_WINDOW = 16
KV_GROUP = 32
"""Values of the quantised cache that share a scale: the least that MLX's kernels have."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of the keys and values of a layer that looks back on the whole context: the last
    `window` positions, or all of them in `bits` bits; both `None`: everything as it is."""

    window: int | None = None
    bits: int | None = None

    @classmethod
    def asked(cls, options: EngineOptions) -> Kept:
        """Raises `BackendError` for what is no window or no number of bits."""
        if {"window", "kv_bits"} <= options.extra.keys():
            raise BackendError("a cache is either windowed or quantised: give window or kv_bits")
        window, bits = _number(options, "window"), _number(options, "kv_bits")
        if bits is not None and bits not in KV_BITS:
            said = options.extra["kv_bits"]
            raise BackendError(f"kv_bits must be {' or '.join(map(str, KV_BITS))}, got {said!r}")
        if window is not None and window < SHORTEST_WINDOW:
            said = options.extra["window"]
            raise BackendError(f"window must be at least {SHORTEST_WINDOW} tokens, got {said!r}")
        return cls(window, bits)

    def __str__(self) -> str:
        return f"window={self.window}" if self.bits is None else f"kv_bits={self.bits}"

    def maker(self, model: Any) -> Callable[[], list[Any]]:
        """Makes a slot's caches, one of mlx-lm's a layer."""
        caches = light("models.cache")
        make_replayable(model)

        def make() -> list[Any]:
            made = replayable_caches(model, caches.make_prompt_cache(model))
            return [changed(c) if _whole(c) else c for c in made]

        def changed(cache: Any) -> Any:
            if self.window is not None:
                return caches.RotatingKVCache(max_size=self.window, keep=0)
            if self.bits is not None:
                return caches.QuantizedKVCache(group_size=KV_GROUP, bits=self.bits)
            return cache

        return make

    def check(self, model: Any, name: str) -> None:
        """Raises `BackendError` where the model `name` cannot be run so, or where it would change nothing.
        Nothing is computed: arrays know their shapes before they are."""
        if self == Kept():
            return
        plain = Kept().maker(model)()
        model(mx.array([[0]]), cache=plain)
        served = [cache for cache in plain if _whole(cache)]
        if not served:
            raise BackendError(
                f"{self} would change nothing: no layer of {name} keeps keys and values of the whole "
                "context in a cache of its own; leave it away"
            )
        widths = {a.shape[-1] for cache in served for a in (cache.keys, cache.values)}
        uneven = sorted(w for w in widths if w % KV_GROUP)
        if self.bits is not None and uneven:
            raise BackendError(
                f"{self} cannot be had with {name}: {KV_GROUP} values share a scale, and its keys or "
                f"values are {uneven[0]} wide, which is no multiple of that; leave it away"
            )
        try:
            for rows in (1, 2):
                model(mx.zeros((1, rows), dtype=mx.uint32), cache=self.maker(model)())
        except Exception as error:  # mlx-lm's layers find out each in its own way
            raise BackendError(
                f"{self} cannot be had with {name}: mlx-lm's {type(model).__module__.rpartition('.')[2]} "
                f"cannot be run so ({type(error).__name__}: {error}); leave it away"
            ) from None


def _whole(cache: Any) -> bool:
    return type(cache).__name__ == "KVCache"


def _number(options: EngineOptions, name: str) -> int | None:
    """The whole number asked for, -1 for what is none."""
    text = options.extra.get(name)
    if text is None:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
