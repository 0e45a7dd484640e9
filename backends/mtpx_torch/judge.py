"""From a slot's logits to what it commits: on the device until one transfer brings it all home."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from mtpx.backend import Forward, Outcome, TokenLogprob
from mtpx.errors import NonFiniteLogits
from mtpx_torch.sample import accept, distribution, penalise

if TYPE_CHECKING:
    from mtpx_torch.slot import TorchSlot

Parts = dict[str, torch.Tensor]
Read = Mapping[str, npt.NDArray[np.float64]]


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


def outcome(slot: TorchSlot, found: Read, forward: Forward) -> Outcome:
    """What the slot commits. Raises `NonFiniteLogits`; the slot is untouched then."""
    if not np.isfinite(found["peak"]).all():
        raise NonFiniteLogits(
            f"the target's logits are not finite at position {len(slot.tokens)} "
            f"(request {slot.request}); its weights or its precision are at fault"
        )
    confidences = found.get("confidence")
    if confidences is not None and not np.isfinite(confidences).all():
        raise NonFiniteLogits(
            f"the head's logits are not finite at position {len(slot.tokens)} "
            f"(request {slot.request}); decode without it (--depth off)"
        )
    drafts = [int(t) for t in found["drafts"]]
    if "best" in found:
        best = [int(t) for t in found["best"]]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == best[accepted]:
            accepted += 1
        last = best[accepted]
    else:
        accepted, last = int(found["accepted"]), int(found["last"])
    committed, ended = slot.cut([*drafts[:accepted], last])
    return Outcome(
        accepted=min(accepted, len(committed)),
        committed=committed,
        forward=forward,
        ended=ended,
        confidences=None if confidences is None else [float(c) for c in confidences],
        logprobs=_token_logprobs(found, committed, accepted),
    )


def _token_logprobs(found: Read, committed: list[int], accepted: int) -> list[TokenLogprob] | None:
    if "last_logprob" not in found:
        return None
    out = []
    for row, token in enumerate(committed):
        name = "draft_logprob" if row < accepted else "last_logprob"
        ids, values = found["top_token"][row], found["top_logprob"][row]
        top = [(int(t), float(v)) for t, v in zip(ids, values, strict=True)]
        out.append(TokenLogprob(token, float(found[name][row]), top))
    return out
