"""The target's hidden states of a slot by position: what head pairs are made of."""

from __future__ import annotations

import mlx.core as mx

from mtpx.carry import merge_interval

STEP = 256
"""Positions the store grows by, as mlx-lm's caches do: a write in place per round, a copy per step."""


class HiddenRows:
    """The states (hi - lo, H) of positions lo..hi-1, one run without gaps."""

    def __init__(self) -> None:
        self.lo = self.hi = 0
        self._base = 0
        self.rows: mx.array | None = None

    def write(self, start: int, values: mx.array) -> None:
        """Put values (n, H) at positions start..start+n-1. A write that leaves a gap starts anew."""
        rows, base, end = self.rows, self._base, start + values.shape[0]
        joined = self.lo < self.hi and start <= self.hi and end >= self.lo
        if rows is None or not joined:
            rows, base = _room(values, values.shape[0]), start
        elif start < base:
            rows, base = mx.concatenate([_room(values, base - start, step=1), rows]), start
        short = end - base - rows.shape[0]
        if short > 0:
            rows = mx.concatenate([rows, _room(values, short)])
        lo, hi = merge_interval(self.lo, self.hi, start, values.shape[0])
        rows[start - base : end - base] = values
        # All at once: a write that is broken off before this claims nothing.
        self.rows, self._base, self.lo, self.hi = rows, base, lo, hi

    def read(self, start: int, end: int) -> mx.array:
        """(end - start, H); lo ≤ start, end ≤ hi."""
        assert self.rows is not None
        return self.rows[start - self._base : end - self._base]

    def forget(self, position: int) -> None:
        """The states from `position` on are no longer those of the slot's tokens."""
        self.hi = min(self.hi, position)

    def copy(self, upto: int) -> HiddenRows:
        """The states before `upto`, in a store of their own that shares today's values."""
        twin = HiddenRows()
        hi = min(self.hi, upto)
        if self.lo < hi:
            twin.lo, twin.hi, twin._base = self.lo, hi, self.lo
            twin.rows = self.read(self.lo, hi)
        return twin


def _room(like: mx.array, rows: int, step: int = STEP) -> mx.array:
    """At least `rows` further rows, in whole steps."""
    return mx.zeros(((rows + step - 1) // step * step, like.shape[1]), like.dtype)
