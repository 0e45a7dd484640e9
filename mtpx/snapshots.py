"""Snapshots of a recurrent state: where they are taken, which are kept, when one is worth restoring.

A recurrent state cannot be trimmed to an earlier position as a key-value cache can. A sequence goes on
from a snapshot or from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtpx.config import Environment
from mtpx.errors import SettingsError

SNAPSHOT_MIN_TOKENS = 256
"""Default of `snapshot_min_tokens`: restoring a recurrent state, and computing on from it, is worth it
only where it saves more than a prefill chunk."""

SNAPSHOT_EVERY = 1024
"""Prompt tokens between two snapshots of a recurrent state, beside those at turn ends."""

SNAPSHOT_COUNT = 16
"""Most recurrent snapshots of one sequence: each holds a whole state, however few tokens it follows."""


def snapshot_due(tokens: int, before: int) -> int | None:
    """Where a prefill that goes from `before` to `tokens` tokens must stop for a snapshot of a
    recurrent state: the next multiple of `SNAPSHOT_EVERY`, if it lies on the way."""
    at = (before // SNAPSHOT_EVERY + 1) * SNAPSHOT_EVERY
    return at if at <= tokens else None


def kept_snapshots(
    positions: Sequence[int], sizes: Sequence[int], *, budget: int, count: int = SNAPSHOT_COUNT
) -> list[int]:
    """Which snapshots (indices, in order) stay within `count` and `budget` bytes.

    The deepest stays, it is the next turn's; of the others the one whose neighbours lie closest
    together goes first, so that those left are spread over the sequence.
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    while len(order) > 1 and (len(order) > count or sum(sizes[i] for i in order) > budget):
        gaps = [
            positions[order[j + 1]] - (positions[order[j - 1]] if j else 0)
            for j in range(len(order) - 1)
        ]
        del order[gaps.index(min(gaps))]
    return sorted(order)


class _Pinned:
    """One number for the process: what a restored state is worth must not change between two turns."""

    value: int | None = None


def snapshot_min_tokens() -> int:
    """Least matched tokens for which a snapshot of a recurrent state is restored; 0: no floor.

    What was set, else `MTPX_SNAPSHOT_MIN_TOKENS`, else 256. The first read or set holds for the
    process. Raises `SettingsError` where the variable is no such number.
    """
    if _Pinned.value is None:
        told = Environment.from_environ().settings.get("snapshot_min_tokens")
        if told is not None and not told.isdecimal():
            raise SettingsError(
                f"MTPX_SNAPSHOT_MIN_TOKENS cannot be {told!r}: a number of tokens, 0 or more"
            )
        _Pinned.value = SNAPSHOT_MIN_TOKENS if told is None else int(told)
    return _Pinned.value


def set_snapshot_min_tokens(tokens: int) -> bool:
    """Pin the floor for the process. False, and no effect, after an earlier read or set: the caller can
    say so. Raises `SettingsError` for a negative number."""
    if tokens < 0:
        raise SettingsError(f"snapshot-min-tokens must be 0 or more, got {tokens}")
    if _Pinned.value is not None:
        return False
    _Pinned.value = tokens
    return True
