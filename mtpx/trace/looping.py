"""Does a text loop? Repetition is easy to draft, so a looping text inflates acceptance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST_PERIOD = 64
"""Longest cycle looked for, in tokens: a sentence or two. Longer repeats are rare and are still text."""

FEWEST_REPEATS = 4
"""Lists, tables and refrains repeat two or three times without being stuck."""

FEWEST_TOKENS = 16
"""Below this a repetition ("no no no no", "0, 0, 0, 0") is an answer."""


def looping(tokens: Sequence[int]) -> bool:
    """Whether the text ends in a loop.

    The rule: some suffix of `tokens` is a cycle of period p ≤ 64 (token i equals token i - p all along
    it), holds at least 4 periods and at least 16 tokens, and covers at least half of the text.
    The last period may be incomplete. Reads token ids only; costs O(64 · len(tokens)).
    """
    text = np.asarray(tokens, dtype=np.int64)
    n = text.size
    if n < FEWEST_TOKENS:
        return False
    for period in range(1, min(LONGEST_PERIOD, n // FEWEST_REPEATS) + 1):
        broken = np.flatnonzero(text[period:] != text[:-period])
        # text[s:] is periodic from one past the last mismatch's earlier partner.
        cycle = n - (int(broken[-1]) + 1 if broken.size else 0)
        if cycle >= max(FEWEST_REPEATS * period, FEWEST_TOKENS) and 2 * cycle >= n:
            return True
    return False
