"""Sampling on the device: penalties, filters, inverse CDF, the acceptance rule.

The mathematics and the order of operations are `mtpx.sampling`'s, which the tests compare this page
with. Probabilities are float64, as there. Nothing here reads a value back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mtpx.sampling import USE_ACCEPT, USE_COMMIT, Sampling

NUCLEUS = 1024
"""Top-p looks among this many likeliest tokens before it sorts the whole vocabulary (CPU only, where
looking costs no synchronisation): a sort of 49,152 numbers takes as long as a target layer or five."""


@dataclass(slots=True)
class Counts:
    """What penalties look at, on the device: `prompt` (V,) bool, `generated` (V,) counts. `tokens`: how
    many of the slot's tokens are in them, -1 while they change."""

    prompt: torch.Tensor
    generated: torch.Tensor
    tokens: int

    @classmethod
    def of(cls, prompt: list[int], vocab: int, device: torch.device) -> Counts:
        seen = torch.zeros(vocab, dtype=torch.bool, device=device)
        seen[torch.tensor(sorted(set(prompt)), device=device)] = True
        return cls(seen, torch.zeros(vocab, dtype=torch.float64, device=device), len(prompt))

    def add(self, tokens: torch.Tensor) -> None:
        ones = torch.ones(tokens.shape[0], dtype=torch.float64, device=tokens.device)
        now, self.tokens = self.tokens + tokens.shape[0], -1
        self.generated.index_add_(0, tokens, ones)
        self.tokens = now

    def rows(self, drafts: torch.Tensor) -> torch.Tensor:
        """(drafts + 1, V) counts as each verified row sees them: row j after the first j drafts."""
        rows = self.generated.repeat(drafts.shape[0] + 1, 1)
        for j in range(drafts.shape[0]):
            below = rows[j + 1 :]
            one = torch.ones(below.shape[0], 1, dtype=rows.dtype, device=rows.device)
            below.index_add_(1, drafts[j : j + 1], one)
        return rows


def penalise(
    logits: torch.Tensor, sampling: Sampling, prompt: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """logits (rows, V), prompt (V,) bool, counts (rows, V) → float64 logits after the penalties."""
    x = logits.double()
    made = counts > 0
    r = sampling.repeat_penalty
    if r != 1.0:
        x = torch.where(prompt | made, torch.where(x > 0, x / r, x * r), x)
    # One subtraction, as the reference does it: two would round differently.
    return x - (sampling.presence_penalty * made.double() + sampling.frequency_penalty * counts)


def distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """logits (rows, V), already penalised → (rows, V) float64 probabilities; temperature > 0."""
    p = torch.softmax(logits.double() / sampling.temperature, dim=-1)
    vocab = p.shape[-1]
    if 0 < sampling.top_k < vocab:
        kth = p.topk(sampling.top_k, dim=-1).values[:, -1:]
        p = _renormalised(p, p >= kth)
    if sampling.top_p < 1.0:
        p = _renormalised(p, _nucleus(p, sampling.top_p))
    if sampling.min_p > 0.0:
        p = _renormalised(p, p >= sampling.min_p * p.amax(-1, keepdim=True))
    return p


def _renormalised(p: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    p = p * keep
    return p / p.sum(-1, keepdim=True)


def _nucleus(p: torch.Tensor, top_p: float) -> torch.Tensor:
    """(rows, V) bool: the smallest set of likeliest tokens whose mass reaches top_p."""
    values = _likeliest(p, top_p)
    kept = (values.cumsum(-1) - values < top_p) & (values > 0)
    count = kept.sum(-1, keepdim=True)
    edge = values.gather(-1, (count - 1).clamp_min(0))
    above, level = p > edge, p == edge
    # Among tokens exactly at the edge the lower ids are kept.
    room = count - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= room))


def _likeliest(p: torch.Tensor, top_p: float) -> torch.Tensor:
    """(rows, m) probabilities in descending order, enough of them to reach top_p."""
    if p.device.type == "cpu" and p.shape[-1] > NUCLEUS:
        head = p.topk(NUCLEUS, dim=-1).values
        if bool((head.sum(-1) >= top_p).all()):
            return head
    return p.sort(dim=-1, descending=True).values


def draw(p: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """p (rows, V), u (rows,) float64 → (rows,) tokens by inverse CDF; never one with p = 0."""
    cdf = p.cumsum(-1)
    index = torch.searchsorted(cdf, u.unsqueeze(-1) * cdf[:, -1:], right=True).squeeze(-1)
    positions = torch.arange(p.shape[-1], device=p.device)
    last = torch.where(p > 0, positions, -1).amax(-1)
    return torch.minimum(index, last)


def accept(
    p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact acceptance rule. p (k + 1, V), q (k, V), drafts (k,), u (k + 1, 3).

    → (accepted, the round's last token), both 0-dimensional tensors on the device.
    """
    k = drafts.shape[0]
    index = drafts.unsqueeze(-1)
    p_x = p[:k].gather(-1, index).squeeze(-1)
    q_x = q.gather(-1, index).squeeze(-1)
    stands = u[:k, USE_ACCEPT] * q_x < p_x
    accepted = stands.long().cumprod(0).sum()
    row = p.index_select(0, accepted.unsqueeze(0))
    # Past the last draft q is 0, so that the residual is p itself.
    past = torch.cat([q, torch.zeros_like(p[:1])]).index_select(0, accepted.unsqueeze(0))
    rest = (row - past).clamp_min(0.0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, row)
    token = draw(rest, u.index_select(0, accepted.unsqueeze(0))[:, USE_COMMIT])
    return accepted, token.squeeze(0)
