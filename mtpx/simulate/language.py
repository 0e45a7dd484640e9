"""The simulated text: a language that is a function, and a head that knows it as well as told.

Everything is a counter-based hash (splitmix64, Steele, Lea & Flood 2014): the next token's logits
depend on the whole prefix through a rolling hash, so that one stale or missing row changes all that
follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mtpx.sampling import Array

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def mix(state: int, value: int) -> int:
    """The 64-bit state after `value`: one row of simulated KV."""
    z = (state * _M1 + (value + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _M1) & _MASK
    z = ((z ^ (z >> 27)) * _M2) & _MASK
    return z ^ (z >> 31)


def unit(state: int, use: int) -> float:
    """A number in [0, 1) for this state and use."""
    return (mix(state, use) >> 11) * 2.0**-53


@dataclass(frozen=True)
class Language:
    """The target: `logits(state)` over `vocab` tokens, Gumbel-distributed with scale `sharpness`
    (larger: more peaked text). `bias` shifts a token's logit, e.g. to make an end id rare."""

    vocab: int = 32
    sharpness: float = 1.5
    seed: int = 0
    bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """The state before the first token."""
        return mix(self.seed, 0)

    def logits(self, state: int) -> Array:
        """(V,) raw logits of the token after this state."""
        z = np.arange(1, self.vocab + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(state)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
        z = z ^ (z >> np.uint64(31))
        u = ((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        x: Array = -self.sharpness * np.log(-np.log(u))
        for token, shift in self.bias.items():
            x[token] += shift
        return x


def certainty(rate: float, spread: float, head_state: int) -> float:
    """This draft's own acceptance probability: `rate` on average, moved by up to `spread` of the
    room it has on the nearer side."""
    if spread == 0.0:
        return rate
    room = min(rate, 1.0 - rate)
    return rate + spread * room * (2.0 * unit(head_state, 1) - 1.0)


def greedy_draft(p: Array, accepted: float, head_state: int) -> int:
    """The target's own argmax with probability `accepted`, else any other token."""
    best = int(np.argmax(p))
    if unit(head_state, 2) < accepted or p.size == 1:
        return best
    return (best + 1 + int(unit(head_state, 3) * (p.size - 1))) % p.size


def draft_distribution(p: Array, accepted: float) -> Array:
    """(V,) q with Σ min(p, q) = `accepted`, so that a draft drawn from it stands that often.

    A mixture of p and the target's least likely token; where p alone gives that token more than
    `accepted`, q is that token. (Σ min(p, q) is 1 - the total variation distance: Leviathan et
    al. 2023, theorem 3.5.)
    """
    worst = int(np.argmin(p))
    room = 1.0 - float(p[worst])
    share = min(1.0, (1.0 - accepted) / room) if room > 0.0 else 0.0
    q: Array = (1.0 - share) * p
    q[worst] += share
    return q


def log_softmax(logits: npt.NDArray[Any]) -> Array:
    """(V,) log-probabilities."""
    x = np.asarray(logits, dtype=np.float64)
    x = x - x.max()
    out: Array = x - np.log(np.exp(x).sum())
    return out
