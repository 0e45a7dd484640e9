"""Sampling, its filters, and the exact acceptance rule of speculative decoding: the numpy reference.

Backends do the same on the device and are tested against this page. The rule is that of Leviathan,
Kalman & Matias (2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1) and
Chen et al. (2023): a draft x drawn from q is accepted iff u < p(x) / q(x); at the first rejection the
token comes from (p - q)+ normalised; when all drafts stand, one more comes from p. The committed
marginal is then exactly p, whatever q is.

Order of operations on logits: penalties, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mtpx.errors import SamplingError

Array = npt.NDArray[np.float64]

USE_DRAFT, USE_ACCEPT, USE_COMMIT = 0, 1, 2
"""What a uniform is for: drawing a draft, judging it, drawing the round's last token."""


COLDEST = 1e-4
"""Below it logits divided by the temperature overflow; what is meant is greedy."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are drawn. Temperature 0 is greedy: the argmax after penalties.

    `top_k` 0, `top_p` 1, `min_p` 0, the penalties' 1 and 0 switch their filter off. `repeat_penalty`
    (Keskar et al. 2019) counts prompt and generated tokens; `presence_penalty` and
    `frequency_penalty` (OpenAI's definition) count generated tokens only. `logprobs` K asks for the
    log-probability of every delivered token and its K likeliest rivals; such a request is parked.

    Raises `SamplingError` when a value is outside its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 100.0)
        if 0.0 < self.temperature < COLDEST:
            raise SamplingError(
                f"temperature must be 0 (greedy) or at least {COLDEST:g}, got {self.temperature:g}"
            )
        _check("top-p", self.top_p, 0.0, 1.0, low_open=True)
        _check("top-k", self.top_k, 0, 2**31 - 1)
        _check("min-p", self.min_p, 0.0, 1.0)
        _check("repeat-penalty", self.repeat_penalty, 0.01, 100.0)
        _check("presence-penalty", self.presence_penalty, -100.0, 100.0)
        _check("frequency-penalty", self.frequency_penalty, -100.0, 100.0)
        if self.logprobs is not None:
            _check("logprobs", self.logprobs, 0, 100)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        return (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _check(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    # Compared, never converted: NaN fails every comparison, and an integer may be too large for a float.
    inside = low <= value <= high and not (low_open and value == low)
    if not inside:
        edge = "above" if low_open else "from"
        shown = f"{value:g}" if abs(value) < 1e300 or isinstance(value, float) else "a huge integer"
        raise SamplingError(f"{name} must be {edge} {low:g} to {high:g}, got {shown}")


@dataclass(slots=True)
class History:
    """The tokens penalties look at: counts over the prompt, and over what was generated."""

    prompt: Sequence[int]
    generated: list[int] = field(default_factory=list)

    def followed_by(self, drafts: Iterable[int]) -> History:
        """This history with drafts appended: what the row after those drafts sees."""
        return History(self.prompt, [*self.generated, *drafts])


def penalise(logits: npt.NDArray[Any], sampling: Sampling, history: History) -> Array:
    """(V,) logits after the penalties."""
    out = np.array(logits, dtype=np.float64)
    if not sampling.penalised:
        return out
    seen = np.unique(np.array([*history.prompt, *history.generated], dtype=np.int64))
    value = out[seen]
    r = sampling.repeat_penalty
    out[seen] = np.where(value > 0, value / r, value * r)
    tokens, counts = np.unique(np.array(history.generated, dtype=np.int64), return_counts=True)
    out[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    return out


def distribution(logits: npt.NDArray[Any], sampling: Sampling, history: History) -> Array:
    """(V,) probabilities the next token is drawn from; a point mass at temperature 0.

    Top-p keeps the smallest set of likeliest tokens whose mass reaches top_p (ties to the lower
    id); top-k keeps every token as likely as the k-th; min-p keeps p ≥ min_p · max p.
    """
    x = penalise(logits, sampling, history)
    if sampling.greedy:
        point = np.zeros_like(x)
        point[int(np.argmax(x))] = 1.0
        return point
    x = x / sampling.temperature
    p: Array = np.exp(x - x.max())
    p /= p.sum()
    if 0 < sampling.top_k < p.size:
        kth = np.partition(p, p.size - sampling.top_k)[p.size - sampling.top_k]
        p[p < kth] = 0.0
        p /= p.sum()
    if sampling.top_p < 1.0:
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= sampling.top_p]] = 0.0
        p /= p.sum()
    if sampling.min_p > 0.0:
        p[p < sampling.min_p * p.max()] = 0.0
        p /= p.sum()
    return p


def acceptance(p: Array, q: Array, token: int) -> float:
    """Probability that a draft `token` drawn from q stands: min(1, p/q). 0 where p is 0."""
    if p[token] <= 0.0:
        return 0.0
    return min(1.0, float(p[token] / q[token]))


def residual(p: Array, q: Array) -> Array:
    """(p - q)+ normalised; p itself where that has no mass."""
    r: Array = np.maximum(p - q, 0.0)
    mass = float(r.sum())
    return r / mass if mass > 0.0 else p / p.sum()


def draw(p: Array, u: float) -> int:
    """Inverse CDF: the first token whose cumulative mass exceeds u · Σp. Never a token with p = 0."""
    cdf = np.cumsum(p)
    index = int(np.searchsorted(cdf, u * cdf[-1], side="right"))
    return min(index, int(np.flatnonzero(p)[-1]))


def accept(
    p: Sequence[Array], q: Sequence[Array], drafts: Sequence[int], u: Array
) -> tuple[int, int]:
    """Judge `drafts` (k of them) and draw the round's last token.

    p: k + 1 target distributions, row j given the drafts before it; q: the k distributions the
    drafts were drawn from; u: (k + 1, 3) uniforms as `uniforms` gives them. Returns (accepted,
    the last token).
    """
    for j, token in enumerate(drafts):
        # u < p/q, without dividing: u is in [0, 1), so p = 0 never passes.
        if not u[j, USE_ACCEPT] * q[j][token] < p[j][token]:
            return j, draw(residual(p[j], q[j]), float(u[j, USE_COMMIT]))
    last = len(drafts)
    return last, draw(p[last], float(u[last, USE_COMMIT]))


def uniforms(seed: int, request: int, round_index: int, depth: int) -> Array:
    """(depth + 1, 3) uniforms in [0, 1): row = draft position, column = use.

    A counter-based generator (Philox 4×64, Salmon et al. 2011): the key is (seed, request), the
    round is the counter's high word, so no value is ever handed out twice and any of them can be
    had without the others.
    """
    # As uint64 from the start: numpy makes a list with a value of 2^63 or more floats, which are lossy.
    key = np.array([seed % 2**64, request % 2**64], dtype=np.uint64)
    counter = np.array([0, 0, 0, round_index % 2**64], dtype=np.uint64)
    bits = np.random.Philox(key=key, counter=counter)
    return np.random.Generator(bits).random((depth + 1) * 3).reshape(depth + 1, 3)
