"""A clock that moves when told."""

from __future__ import annotations


class VirtualClock:
    """Monotonic nanoseconds that only `advance` moves; callable as `mtpx.backend.Clock`."""

    def __init__(self, start_ns: int = 0) -> None:
        self._ns = start_ns

    def __call__(self) -> int:
        return self._ns

    def now(self) -> int:
        return self._ns

    def advance(self, ms: float) -> None:
        """Let `ms` milliseconds pass."""
        self._ns += round(ms * 1e6)
