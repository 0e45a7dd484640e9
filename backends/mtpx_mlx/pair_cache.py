"""The head's keys and values: rows are compact, positions are the sequence's.

A pair that was skipped leaves no row, but its position stays empty, so a row's number and its
position may differ; mlx-lm's attention takes the position from `offset`.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mtpx_mlx.models import light
from mtpx_mlx.state import KVLayer


class PairCache:
    """What an mlx-lm attention layer is given for a head. `offset`: the position of the next row."""

    def __init__(self, rows: KVLayer | None = None) -> None:
        self._rows = KVLayer(light("models.cache").KVCache()) if rows is None else rows
        self.offset = 0

    @property
    def rows(self) -> KVLayer:
        """The rows themselves."""
        return self._rows

    def place(self, rows: int, position: int) -> None:
        """Hold the first `rows` rows; the next stands at `position`."""
        self._rows.keep(rows)
        self.offset = position

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.offset += keys.shape[2]
        return self._rows.cache.update_and_fetch(keys, values)

    @property
    def state(self) -> Any:
        return self._rows.cache.state

    def copy(self, rows: int) -> PairCache:
        """The first `rows` rows, in a cache of their own that shares today's values."""
        twin = PairCache(self._rows.copy())
        twin.place(rows, 0)
        return twin
