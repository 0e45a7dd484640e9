"""From a slot's logits to what it commits: on the device until one evaluation brings it all home."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from mtpx.outcome import Read
from mtpx_mlx.sample import accept, distribution, penalise

if TYPE_CHECKING:
    from mtpx_mlx.slot import MlxSlot

Parts = dict[str, mx.array]


def judge(
    logits: mx.array, slot: MlxSlot, drafts: mx.array, q: mx.array | None, u: mx.array | None
) -> Parts:
    """logits (d + 1, V), drafts (d,), q (d, V), u (≥ d + 1, 3): `q` and `u` at temperature > 0.

    `peak` (d + 1,) is each row's largest raw logit: NaN or infinite iff the row is not sound. Greedy:
    `best` (d + 1,) argmax. Sampled: `accepted`, `last`. Log-probabilities where asked for.
    """
    sampling = slot.sampling
    d = drafts.shape[0]
    scored = logits
    if sampling.penalised and slot.counts is not None:
        scored = penalise(logits, sampling, slot.counts.prompt, slot.counts.rows(drafts))
    parts = {"peak": peaks(logits), "drafts": drafts}
    if sampling.greedy:
        last = parts["best"] = mx.argmax(scored, axis=-1)
    else:
        assert u is not None
        accepted, last = accept(
            distribution(scored, sampling), None if q is None else q[:d], drafts, u[: d + 1]
        )
        parts |= {"accepted": accepted, "last": last}
    if sampling.logprobs is not None:
        parts |= _logprobs(logits, sampling.logprobs, drafts, last)
    return parts


def peaks(logits: mx.array) -> mx.array:
    """(rows,) float32: a row's largest logit, or NaN where any of the row is NaN."""
    return logits.max(axis=-1).astype(mx.float32)


def _logprobs(logits: mx.array, k: int, drafts: mx.array, last: mx.array) -> Parts:
    x = logits.astype(mx.float32)
    raw = x - mx.logsumexp(x, axis=-1, keepdims=True)
    rows, vocab = raw.shape
    final = mx.broadcast_to(last, (rows,))[:, None]
    ranked = mx.argsort(-raw, axis=-1)[:, : min(k, vocab)]
    return {
        "draft_logprob": mx.take_along_axis(raw[: rows - 1], drafts[:, None], axis=-1)[:, 0],
        "last_logprob": mx.take_along_axis(raw, final, axis=-1)[:, 0],
        "top_logprob": mx.take_along_axis(raw, ranked, axis=-1),
        "top_token": ranked,
    }


def read(parts: Sequence[Parts], *also: Any) -> list[Read]:
    """Every array of every slot on the host, after one evaluation of them and of `also`."""
    mx.eval(list(parts), *also)
    return [{name: np.array(array) for name, array in part.items()} for part in parts]
