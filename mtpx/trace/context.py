"""Speed by length of context: attention reads more of it, so later rounds may cost more."""

from __future__ import annotations

import msgspec


class ContextRow(msgspec.Struct, frozen=True):
    """Rounds that began with `low` to `high` tokens in the sequence (the longest one, where several are
    decoded together). `round_ms` is the mean."""

    mode: str
    low: int
    high: int
    rounds: int
    round_ms: float
    tokens_per_s: float


class ContextTally:
    """Rounds by mode and by powers of two of the context."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], list[float]] = {}

    def add(self, mode: str, position: int, tokens: int, ms: float) -> None:
        """A round with a valid time that compiled nothing."""
        key = (mode, max(7, position.bit_length()))
        entry = self._found.get(key)
        if entry is None:
            entry = self._found[key] = [0.0, 0.0, 0.0]
        entry[0] += 1.0
        entry[1] += tokens
        entry[2] += ms

    def rows(self) -> list[ContextRow]:
        """Plain rounds first, then by length."""
        return [
            ContextRow(
                mode=mode,
                low=0 if bits == 7 else 1 << (bits - 1),
                high=(1 << bits) - 1,
                rounds=int(n),
                round_ms=ms / n,
                tokens_per_s=1e3 * tokens / ms,
            )
            for (mode, bits), (n, tokens, ms) in sorted(
                self._found.items(), key=lambda item: (not item[0][0].startswith("plain"), item[0])
            )
        ]
