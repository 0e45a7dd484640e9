"""What the head begins as: a linear guess of where the trunk will stand, then the trunk's last layer.

The joining matrix is the ridge regression from a pair (embedding of token k + 1, hidden state k) to
the residual stream before the trunk's last layer at k + 1; the block is that layer. A head that
started from a copied layer alone needed several epochs to come as far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from mtpx_train.head import Start

if TYPE_CHECKING:
    from mtpx_train.batches import Answered
    from mtpx_train.trunk import BatchTrunk

RIDGE = 0.01
"""Of the inputs' mean square."""

TOGETHER = 16
"""Answers run through the trunk at a time."""


@torch.inference_mode()
def start_from(trunk: BatchTrunk, answers: Sequence[Answered]) -> Start:
    """Fit the start to these answers (some ten thousand tokens are enough)."""
    eps, H = trunk.config.rms_eps, trunk.config.hidden
    inverse = 1 / away_from_zero(trunk.norm.float())
    inputs, outputs = [], []
    for at in range(0, len(answers), TOGETHER):
        group = answers[at : at + TOGETHER]
        longest = max(s.length for s in group) - 1
        ids = torch.zeros(len(group), longest, dtype=torch.long)
        for row, s in enumerate(group):
            ids[row, : s.length - 1] = s.shard.tokens[s.first : s.first + s.length - 1]
        ids = ids.to(trunk.device)
        pads = torch.zeros(len(group), dtype=torch.long, device=trunk.device)
        before, hidden = trunk.forward(ids, trunk.cache(len(group), longest), 0, pads)
        for row, s in enumerate(group):
            n = s.length - 1
            e = F.rms_norm(F.embedding(ids[row, 1:n], trunk.embedding).float(), (H,), None, eps)
            h = F.rms_norm(hidden[row, : n - 1].float(), (H,), None, eps) * inverse
            inputs.append(torch.cat([e, h], dim=-1)[s.start - 1 :])
            outputs.append(before[row, 1:n].float()[s.start - 1 :])
    x, y = torch.cat(inputs), torch.cat(outputs)
    scale = float(y.square().mean().sqrt())
    # Unit inputs: the norm's weight is what brings the hidden half to RMS 1.
    gain = 1 / float(x[:, H:].square().mean().sqrt())
    x[:, H:] *= gain
    gram = x.T @ x + RIDGE * len(x) * torch.eye(2 * H, device=x.device)
    fc = torch.linalg.solve(gram, x.T @ (y / scale)).T
    return Start(trunk.layers[-1], trunk.norm, inverse * gain, fc, scale)


def unfitted(trunk: BatchTrunk) -> Start:
    """A start of the right shapes that foresees nothing."""
    H = trunk.config.hidden
    return Start(trunk.layers[-1], trunk.norm, torch.ones(H), torch.zeros(H, 2 * H), 1.0)


def away_from_zero(weight: torch.Tensor) -> torch.Tensor:
    """Norm weights that can be divided by."""
    return torch.where(weight.abs() < 0.05, torch.full_like(weight, 0.05).copysign(weight), weight)
