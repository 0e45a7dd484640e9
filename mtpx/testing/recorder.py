"""Which uniforms an engine asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mtpx import sampling
from mtpx.sampling import Array


@contextmanager
def recorded_uniforms() -> Iterator[list[tuple[int, int, int]]]:
    """The (seed, request, round) of every call of `mtpx.sampling.uniforms` made inside the block,
    under whatever module it was imported into."""
    original = sampling.uniforms
    calls: list[tuple[int, int, int]] = []

    def recording(seed: int, request: int, round_index: int, depth: int) -> Array:
        calls.append((seed, request, round_index))
        return original(seed, request, round_index, depth)

    holders = [m for m in list(sys.modules.values()) if getattr(m, "uniforms", None) is original]
    for module in holders:
        module.uniforms = recording  # type: ignore[attr-defined]
    try:
        yield calls
    finally:
        for module in holders:
            module.uniforms = original  # type: ignore[attr-defined]
