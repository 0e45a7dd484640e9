"""The simulated text: a language that is a function.

Everything is a counter-based hash (splitmix64, Steele, Lea & Flood 2014): the next token's logits
depend on the whole prefix through a rolling hash, so that one stale or missing row changes all that
follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mtpx.backend import TokenLogprob
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


def token_logprob(logits: Array, token: int, top: int) -> TokenLogprob:
    """The log-probability of `token` under softmax(logits), and the `top` likeliest."""
    x = logits - logits.max()
    x = x - np.log(np.exp(x).sum())
    best = np.argsort(-x, kind="stable")[:top]
    return TokenLogprob(token, float(x[token]), [(int(i), float(x[i])) for i in best])
