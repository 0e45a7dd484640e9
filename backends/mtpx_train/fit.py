"""The training loop: seeded order, warm-up and cosine, a checkpoint every half minute."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mtpx.errors import TrainingError
from mtpx_train.batches import Answered, Batch, collate, endless
from mtpx_train.generate import alone
from mtpx_train.loss import aligned, draft_loss

if TYPE_CHECKING:
    from mtpx_torch.trunk import Rotary
    from mtpx_train.head import DraftHead

STEP_WEIGHTS = (1.0, 0.7, 0.5)
"""What a step's cross-entropy counts: a later draft is reached only if those before it stood."""

CHECKPOINT = "checkpoint.pt"
"""Name of the file in the training's folder."""

CHECKPOINT_S = 30.0
"""Seconds between checkpoints: what a kill loses, and a batch."""


@dataclass(slots=True)
class Progress:
    """How far training is: batches and answer tokens seen, seconds spent; `curve` holds (tokens seen,
    acceptance per position) where it was estimated."""

    batches: int = 0
    tokens: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, list[float]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FitPlan:
    """`tokens` to see in all (answer tokens, repeats counted), or as many as `seconds` allow; `batch`
    answer columns at a time. The second and third step of the chain join after the shares
    `steps_from`: what the first step learns serves them all, and alone it learns twice as fast."""

    tokens: int
    seed: int
    seconds: float | None = None
    batch: int = 4096
    rate: float = 2e-3
    warm_up: float = 0.05
    decay: float = 0.01
    steps_from: tuple[float, float] = (0.5, 0.7)

    def done(self, progress: Progress) -> float:
        """The share of the training that is behind, 0 to 1."""
        share = progress.tokens / max(1, self.tokens)
        if self.seconds is not None:
            share = max(share, progress.seconds / self.seconds)
        return min(1.0, share)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The draft vocabulary: its rows of the output matrix (V', H), in the computing dtype."""

    ids: torch.Tensor
    matrix: torch.Tensor


class Fit:
    """A head in training; `folder` keeps its checkpoint."""

    def __init__(
        self,
        head: DraftHead,
        embedding: torch.Tensor,
        vocabulary: Vocabulary,
        rotary: Rotary,
        answers: Sequence[Answered],
        plan: FitPlan,
        folder: Path,
    ) -> None:
        self.head, self.embedding, self.vocabulary = head, embedding, vocabulary
        self.rotary, self.answers, self.plan = rotary, answers, plan
        self.path = folder / CHECKPOINT
        self.parameters = list(head.parameters())
        # On a processor a thread a lane, each with products of its own: threads that share every small
        # product wait for each other more than they compute.
        on_cpu = vocabulary.matrix.device.type == "cpu"
        self.lanes = torch.get_num_threads() if on_cpu else 1
        self.pool = ThreadPoolExecutor(self.lanes, initializer=alone if on_cpu else None)
        self.progress = Progress()
        matrices = [p for p in self.parameters if p.dim() > 1]
        norms = [p for p in self.parameters if p.dim() == 1]
        # Muon's steps are bounded in every direction; AdamW's first ones all point one way and threw
        # the start's acceptance away (from 0.31 to 0.01 in two batches).
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices, lr=plan.rate, weight_decay=plan.decay, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(norms, lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def run(self, report: Callable[[Progress, torch.Tensor], None]) -> None:
        """Train to the plan's end. `report(progress, loss (S,))` after every batch.

        Raises `TrainingError` when the loss is not a number; the last checkpoint stays.
        """
        plan, progress = self.plan, self.progress
        if not self.path.exists():
            self.save()
        saved = time.monotonic()
        for group in endless(self.answers, plan.batch, plan.seed, progress.batches):
            done = plan.done(progress)
            if done >= 1:
                break
            began = time.monotonic()
            for part in (p for optimizer in self.optimizers for p in optimizer.param_groups):
                part["lr"] = plan.rate * shape(done, plan.warm_up)
            steps = 1 + sum(done >= share for share in plan.steps_from)
            loss = self._step(group, steps)
            progress.batches += 1
            progress.tokens += sum(a.answer for a in group)
            progress.seconds += time.monotonic() - began
            report(progress, loss)
            if time.monotonic() - saved > CHECKPOINT_S:
                self.save()
                saved = time.monotonic()
        self.save()

    def _step(self, group: Sequence[Answered], steps: int) -> torch.Tensor:
        """One batch, its answers shared out among the lanes. → mean losses (steps,)."""
        counts = [sum(max(0, a.answer - step) for a in group) for step in range(1, steps + 1)]
        parts = [group[lane :: self.lanes] for lane in range(min(self.lanes, len(group)))]
        made = list(self.pool.map(lambda part: self._lane(part, counts), parts))
        # In the order of the lanes, whichever was done first: sums are the same in every run.
        means = torch.stack([loss for loss, _ in made]).sum(dim=0)
        if not math.isfinite(means.sum().item()):
            raise TrainingError(
                f"the loss is not a number at batch {self.progress.batches + 1}; the last good "
                f"checkpoint is kept ({self.path}): to train again with a lower --rate, delete "
                f"{self.path.parent}, the answers stay"
            )
        for i, parameter in enumerate(self.parameters):
            parameter.grad = torch.stack([gradients[i] for _, gradients in made]).sum(dim=0)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        return means

    def _lane(
        self, part: Sequence[Answered], counts: Sequence[int]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Losses and gradients of some answers, as their share of the batch's means."""
        matrix, steps = self.vocabulary.matrix, len(counts)
        batch = collate(part, steps, matrix.dtype).to(matrix.device)
        states = self.head(batch, self.embedding, self.rotary, steps)
        losses = chain_loss(states, batch, self.vocabulary)
        means = losses / losses.new_tensor(counts).clamp_min(1)
        total = (means * means.new_tensor(STEP_WEIGHTS[:steps])).sum()
        return means.detach(), torch.autograd.grad(total, self.parameters)

    def save(self) -> None:
        """The checkpoint, whole or as it was."""
        partial = self.path.with_suffix(".partial")
        torch.save(
            {
                "head": self.head.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "progress": dataclasses.asdict(self.progress),
            },
            partial,
        )
        partial.replace(self.path)

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if not self.path.exists():
            return
        kept: dict[str, Any] = torch.load(self.path, weights_only=True)
        self.head.load_state_dict(kept["head"])
        for optimizer, state in zip(self.optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.progress = Progress(**kept["progress"])


def chain_loss(states: list[torch.Tensor], batch: Batch, vocabulary: Vocabulary) -> torch.Tensor:
    """→ summed losses (S,) of all drafts a batch has room for."""
    rows, reached, index = aligned(states, batch.count)
    target = batch.hidden[:, batch.prompt_columns :].flatten(0, 1)[index]
    mass = batch.mass.flatten()[index]
    return draft_loss(rows, reached.float(), target, mass, vocabulary.matrix)


@dataclass(frozen=True, slots=True)
class Chains:
    """Of every chain, (S, chains) bool: whether its draft at a step was judged, and stood."""

    reached: torch.Tensor
    accepted: torch.Tensor


def chain_hits(states: list[torch.Tensor], batch: Batch, vocabulary: Vocabulary) -> Chains:
    """Follow the chain from every answer column: a draft is judged against the token the answer has
    there, if all drafts before it stood."""
    P, A = batch.prompt_columns, batch.answer_columns
    alive = torch.ones(batch.count.shape[0], A, dtype=torch.bool, device=batch.count.device)
    ids = vocabulary.ids.to(alive.device)
    reached, accepted = [], []
    for step, state in enumerate(states, start=1):
        there = torch.arange(A, device=alive.device) + step < batch.count[:, None]
        drafts = ids[(state @ vocabulary.matrix.T).argmax(dim=-1)]
        judged = alive & there
        alive = judged & (drafts == batch.tokens[:, P + step + 1 :][:, :A])
        reached.append(judged.flatten())
        accepted.append(alive.flatten())
    return Chains(torch.stack(reached), torch.stack(accepted))


def shape(done: float, warm_up: float) -> float:
    """The learning rate's share of its peak after a share `done` of the training: a line up, then half
    a cosine down."""
    if done < warm_up:
        return max(0.01, done / warm_up)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - warm_up) / (1 - warm_up))))


def most_frequent(answers: Sequence[Answered], size: int, vocab: int) -> tuple[torch.Tensor, float]:
    """The `size` most frequent answer tokens, ascending (of equally frequent ones the lower ids), and
    the share of all answer tokens that they are."""
    counts = torch.zeros(vocab, dtype=torch.long)
    for s in answers:
        said = s.shard.tokens[s.first + s.start : s.first + s.length].long()
        counts += torch.bincount(said, minlength=vocab)
    order = torch.argsort(counts, descending=True, stable=True)[:size]
    covered = counts[order].sum() / counts.sum().clamp_min(1)
    return order.sort().values, float(covered)
