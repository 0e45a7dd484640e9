"""How a request ended, in numbers: one definition for every run, timed or not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from mtpx.trace.looping import looping
from mtpx.trace.schema import EndRecord


def end_record(
    request: int,
    tokens: Sequence[int],
    arrivals: Sequence[tuple[int, int]],
    *,
    stop: str,
    error: str = "",
    ignored_ends: AbstractSet[int] = frozenset(),
) -> EndRecord:
    """The end of a request that was given `tokens`; `ttft_ms` and what else the caller knows is theirs
    to add.

    `arrivals`: (when a round's outcome arrived, in ns; tokens delivered by then), round by round.
    `ignored_ends`: end ids the request went on after; what lies past the first of them is the tail,
    which neither the rate nor `looped` counts.
    """
    counted = next((i + 1 for i, t in enumerate(tokens) if t in ignored_ends), len(tokens))
    end = EndRecord(
        request=request,
        tokens=len(tokens),
        stop=stop,
        error=error,
        sha256=token_digest(tokens),
        looped=looping(tokens[:counted]),
        tail_tokens=len(tokens) - counted,
    )
    if arrivals:
        # The first round that brings the last counted token closes the timed span; Ctrl-C may leave
        # tokens of a round whose arrival was never noted.
        brings = (i for i, (_, total) in enumerate(arrivals) if total >= counted)
        last = next(brings, len(arrivals) - 1)
        end.first_tokens = min(arrivals[0][1], counted)
        if last > 0:
            end.decode_s = (arrivals[last][0] - arrivals[0][0]) / 1e9
    return end


def token_digest(tokens: Sequence[int]) -> str:
    """SHA-256 of token ids as little-endian 64-bit integers: equal texts, equal digests."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i8").tobytes()).hexdigest()
