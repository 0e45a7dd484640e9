"""Cross-entropy against the target's own distribution, over the draft vocabulary.

The logits of thousands of rows over thousands of entries never stand in memory together: rows are
taken a few at a time, and the gradient towards the head's states is made in the same pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

CHUNK = 256
"""Rows at a time: their logits stay in the cache of a processor."""


def aligned(
    states: Sequence[torch.Tensor], count: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bring the states that foresee one token together.

    States (B, A, H) of steps 1..S; the state of step s in answer column a foresees answer token
    a + s + 1, chosen from the distribution in column m = a + s. `count` (B,) answer tokens, of which
    columns 1..count - 1 are foreseen.

    → (S, N, H) states; (S, N) bool, whether a step reaches that column; (N,) flat indices of the
    columns, B·A.
    """
    B, A, _ = states[0].shape
    columns = torch.arange(A, device=states[0].device)
    chosen = (columns >= 1) & (columns < count[:, None])
    index = torch.nonzero(chosen.view(-1)).squeeze(-1)
    column = columns.repeat(B)[index]
    rows = torch.stack(
        [
            state.flatten(0, 1)[(index - step).clamp_min(0)]
            for step, state in enumerate(states, start=1)
        ]
    )
    reached = torch.stack([column >= step for step in range(1, len(states) + 1)])
    return rows, reached, index


class _DraftLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        target: torch.Tensor,
        mass: torch.Tensor,
        matrix: torch.Tensor,
    ) -> torch.Tensor:
        S, N, _ = states.shape
        gradient = torch.empty_like(states)
        losses = torch.zeros(S, dtype=torch.float32, device=states.device)
        for at in range(0, N, CHUNK):
            rows = slice(at, min(at + CHUNK, N))
            p = (target[rows] @ matrix.T).float().sub_(mass[rows, None]).exp_()
            inside = p.sum(dim=-1, keepdim=True)
            for s in range(S):
                logits = (states[s, rows] @ matrix.T).float()
                total = logits.logsumexp(dim=-1, keepdim=True)
                w = weight[s, rows, None]
                cross = inside * total - torch.linalg.vecdot(p, logits).unsqueeze(-1)
                losses[s] += (cross * w).sum()
                logits.sub_(total).exp_().mul_(inside).sub_(p).mul_(w)
                gradient[s, rows] = logits.to(states.dtype) @ matrix
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, losses: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * losses[:, None, None].to(gradient.dtype), None, None, None, None


def draft_loss(
    states: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    mass: torch.Tensor,
    matrix: torch.Tensor,
) -> torch.Tensor:
    """Weighted sums of cross-entropies, one a step: (S,), in nats.

    states (S, N, H) of the head; weight (S, N); target (N, H) hidden states of the target; mass (N,)
    the log-sum-exp of its logits over the whole vocabulary; matrix (V', H) the rows of the output
    matrix in the draft vocabulary. The target's distribution is cut to that vocabulary: what lies
    outside counts for nothing.
    """
    loss: torch.Tensor = _DraftLoss.apply(states, weight, target, mass, matrix)
    return loss
