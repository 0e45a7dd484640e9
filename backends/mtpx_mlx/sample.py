"""Sampling on the device: penalties, filters, inverse CDF, the acceptance rule.

The mathematics and the order of operations are `mtpx.sampling`'s, which the tests compare this page
with. Probabilities are float32, the widest type Metal has. Nothing here reads a value back to the
host.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mtpx.sampling import USE_ACCEPT, USE_COMMIT, Sampling

UNIFORM_BITS = 24
"""Bits of a uniform that float32 holds everywhere below 1; rounding the rest could give 1 itself,
which would accept a token of probability 0."""


def to_device(u: npt.NDArray[np.float64]) -> mx.array:
    """Uniforms in [0, 1), float32 on the device, still below 1."""
    scale = float(2**UNIFORM_BITS)
    return mx.array((np.floor(u * scale) / scale).astype(np.float32))


@dataclass(slots=True)
class Counts:
    """What penalties look at, on the device: `prompt` (V,) bool, `generated` (V,) counts. `tokens`: how
    many of the slot's tokens are in them."""

    prompt: mx.array
    generated: mx.array
    tokens: int

    @classmethod
    def of(cls, prompt: list[int], vocab: int) -> Counts:
        seen = np.zeros(vocab, dtype=bool)
        seen[sorted(set(prompt))] = True
        return cls(mx.array(seen), mx.zeros((vocab,), dtype=mx.float32), len(prompt))

    def add(self, tokens: list[int]) -> None:
        if tokens:
            more, count = self.generated.at[mx.array(tokens)].add(1.0), len(tokens)
            self.generated, self.tokens = more, self.tokens + count

    def rows(self, drafts: mx.array) -> mx.array:
        """(drafts + 1, V) counts as each verified row sees them: row j after the first j drafts."""
        row = self.generated
        rows = [row]
        for j in range(drafts.shape[0]):
            row = row.at[drafts[j : j + 1]].add(1.0)
            rows.append(row)
        return mx.stack(rows)


def penalise(logits: mx.array, sampling: Sampling, prompt: mx.array, counts: mx.array) -> mx.array:
    """logits (rows, V), prompt (V,) bool, counts (rows, V) → float32 logits after the penalties."""
    x = logits.astype(mx.float32)
    made = counts > 0
    r = sampling.repeat_penalty
    if r != 1.0:
        x = mx.where(prompt | made, mx.where(x > 0, x / r, x * r), x)
    return x - (sampling.presence_penalty * made + sampling.frequency_penalty * counts)


def distribution(logits: mx.array, sampling: Sampling) -> mx.array:
    """logits (rows, V), already penalised → (rows, V) float32 probabilities; temperature > 0."""
    p = mx.softmax(logits.astype(mx.float32) / sampling.temperature, axis=-1)
    vocab = p.shape[-1]
    if 0 < sampling.top_k < vocab:
        kth = mx.topk(p, sampling.top_k, axis=-1).min(axis=-1, keepdims=True)
        p = _renormalised(p, p >= kth)
    if sampling.top_p < 1.0:
        p = _renormalised(p, _nucleus(p, sampling.top_p))
    if sampling.min_p > 0.0:
        p = _renormalised(p, p >= sampling.min_p * p.max(axis=-1, keepdims=True))
    return p


def _renormalised(p: mx.array, keep: mx.array) -> mx.array:
    p = mx.where(keep, p, 0.0)
    return p / p.sum(axis=-1, keepdims=True)


def _nucleus(p: mx.array, top_p: float) -> mx.array:
    """(rows, V) bool: the smallest set of likeliest tokens whose mass reaches top_p."""
    values = -mx.sort(-p, axis=-1)
    before = mx.cumsum(values, axis=-1, inclusive=False)
    count = ((before < top_p) & (values > 0)).sum(axis=-1, keepdims=True)
    edge = mx.take_along_axis(values, mx.maximum(count.astype(mx.int32) - 1, 0), axis=-1)
    above, level = p > edge, p == edge
    # Among tokens exactly at the edge the lower ids are kept.
    room = count - above.sum(axis=-1, keepdims=True)
    return above | (level & (mx.cumsum(level.astype(mx.int32), axis=-1) <= room))


def draw(p: mx.array, u: mx.array) -> mx.array:
    """p (rows, V), u (rows,) → (rows,) uint32 tokens by inverse CDF; never one with p = 0."""
    cdf = mx.cumsum(p, axis=-1)
    # Sums in parallel need not rise where p is 0, so a token is looked for among those with mass.
    hit = (cdf > u[:, None] * cdf[:, -1:]) & (p > 0)
    last = p.shape[-1] - 1 - mx.argmax((p > 0)[:, ::-1], axis=-1)
    return mx.where(hit.any(axis=-1), mx.argmax(hit, axis=-1), last).astype(mx.uint32)


def accept(
    p: mx.array, q: mx.array | None, drafts: mx.array, u: mx.array
) -> tuple[mx.array, mx.array]:
    """The exact acceptance rule. p (k + 1, V), q (k, V), drafts (k,), u (k + 1, 3).

    → (accepted, the round's last token), both (1,) and on the device.
    """
    k = drafts.shape[0]
    if q is None or k == 0:
        return mx.zeros((1,), dtype=mx.int32), draw(p[:1], u[:1, USE_COMMIT])
    index = drafts[:, None]
    p_x = mx.take_along_axis(p[:k], index, axis=-1)[:, 0]
    q_x = mx.take_along_axis(q, index, axis=-1)[:, 0]
    stands = u[:k, USE_ACCEPT] * q_x < p_x
    accepted = mx.cumprod(stands.astype(mx.int32)).sum(keepdims=True)
    row = p[accepted]
    # Past the last draft q is 0, so that the residual is p itself.
    past = mx.concatenate([q, mx.zeros_like(p[:1])])[accepted]
    rest = mx.maximum(row - past, 0.0)
    rest = mx.where(rest.sum(axis=-1, keepdims=True) > 0, rest, row)
    return accepted, draw(rest, u[accepted, USE_COMMIT])
