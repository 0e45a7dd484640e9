"""From what a round left on the host to what a slot commits, the same on every device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mtpx.backend import Forward, Outcome, TokenLogprob
from mtpx.errors import NonFiniteLogits

if TYPE_CHECKING:
    from mtpx.host_slot import HostSlot

Read = Mapping[str, npt.NDArray[Any]]
"""A slot's round on the host. `peak` (d + 1,): each row's largest raw logit, NaN or infinite iff the row
is not sound. `drafts` (d,), absent without any. Greedy: `best` (d + 1,); sampled: `accepted`, `last`, one
number each. Where there were drafts `confidence` (≥ d,). Where log-probabilities were asked for
`draft_logprob` (d,), `last_logprob` (d + 1,), `top_token` and `top_logprob` (d + 1, k)."""


def outcome(slot: HostSlot, found: Read, forward: Forward) -> Outcome:
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
    drafts = [int(t) for t in found.get("drafts", ())]
    if "best" in found:
        best = [int(t) for t in found["best"]]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == best[accepted]:
            accepted += 1
        last = best[accepted]
    else:
        accepted, last = int(found["accepted"].item()), int(found["last"].item())
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
