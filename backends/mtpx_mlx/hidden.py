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
        lo, hi = merge_interval(self.lo, self.hi, start, values.shape[0])
        if lo < self._base or lo != self.lo or self.rows is None:
            self.rows, self._base = None, lo
        at = start - self._base
        end = at + values.shape[0]
        held = 0 if self.rows is None else self.rows.shape[0]
        if end > held:
            more = mx.zeros(((end - held + STEP - 1) // STEP * STEP, values.shape[1]), values.dtype)
            self.rows = more if self.rows is None else mx.concatenate([self.rows, more])
        assert self.rows is not None
        self.rows[at:end] = values
        self.lo, self.hi = lo, hi

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
