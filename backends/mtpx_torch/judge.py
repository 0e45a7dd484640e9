"""From a slot's logits to what it commits: on the device until one transfer brings it all home."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from mtpx.outcome import Read
from mtpx_torch.sample import accept, distribution, penalise

if TYPE_CHECKING:
    from mtpx_torch.slot import TorchSlot

Parts = dict[str, torch.Tensor]


def judge(
    logits: torch.Tensor,
    slot: TorchSlot,
    drafts: torch.Tensor,
    q: torch.Tensor | None,
    u: torch.Tensor | None,
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
    if sampling.greedy:
        peak, best = logits.max(dim=-1)
        if scored is not logits:
            best = scored.argmax(dim=-1)
        parts = {"peak": peak, "best": best, "drafts": drafts}
        last = best
    else:
        assert u is not None
        p = distribution(scored, sampling)
        q = p[:0] if q is None else q
        accepted, last = accept(p, q[:d], drafts, u[: d + 1])
        parts = {"peak": logits.amax(-1), "accepted": accepted, "last": last, "drafts": drafts}
    if sampling.logprobs is not None:
        parts |= _logprobs(logits, sampling.logprobs, drafts, last)
    return parts


def _logprobs(logits: torch.Tensor, k: int, drafts: torch.Tensor, last: torch.Tensor) -> Parts:
    raw = logits.double().log_softmax(dim=-1)
    rows = raw.shape[0]
    final = last.expand(rows).unsqueeze(-1)
    top = raw.topk(min(k, raw.shape[-1]), dim=-1)
    return {
        "draft_logprob": raw[: rows - 1].gather(-1, drafts.unsqueeze(-1)).squeeze(-1),
        "last_logprob": raw.gather(-1, final).squeeze(-1),
        "top_logprob": top.values,
        "top_token": top.indices,
    }


def read(parts: Sequence[Parts]) -> list[Read]:
    """Every tensor of every slot in one device-to-host transfer, as float64 arrays in their shapes.

    float64 holds token ids and float32 values exactly.
    """
    flat = [t.reshape(-1).double() for part in parts for t in part.values()]
    host = torch.cat(flat).cpu().numpy() if flat else np.zeros(0)
    out: list[Read] = []
    at = 0
    for part in parts:
        arrays = {}
        for name, tensor in part.items():
            arrays[name] = host[at : at + tensor.numel()].reshape(tuple(tensor.shape))
            at += tensor.numel()
        out.append(arrays)
    return out
