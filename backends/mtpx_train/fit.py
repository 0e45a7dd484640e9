"""The training loop: seeded order, warm-up and cosine, a checkpoint every half minute."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mtpx.errors import TrainingError
from mtpx_train.batches import Answered, Batch, collate, endless
from mtpx_train.loss import aligned, draft_loss

if TYPE_CHECKING:
    from mtpx_train.head import DraftHead
    from mtpx_train.trunk import Rotary

STEP_WEIGHTS = (1.0, 0.7, 0.5)
"""What a step's cross-entropy counts: a later draft is reached only if those before it stood."""

CHECKPOINT_S = 30.0


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
    answer columns at a time. The third step of the chain joins after the share `third_from`."""

    tokens: int
    seed: int
    seconds: float | None = None
    batch: int = 2048
    rate: float = 4e-4
    warm_up: float = 0.05
    decay: float = 0.01
    third_from: float = 0.5

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
        self.path = folder / "checkpoint.pt"
        self.progress = Progress()
        matrices = [p for p in head.parameters() if p.dim() > 1]
        norms = [p for p in head.parameters() if p.dim() == 1]
        # Few and short steps from a good start: what is gained by a larger rate is lost at first.
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": plan.decay},
                {"params": norms, "weight_decay": 0.0},
            ],
            lr=plan.rate,
            betas=(0.9, 0.98),
            fused=True,
        )

    def run(self, report: Callable[[Progress, torch.Tensor], None]) -> None:
        """Train to the plan's end. `report(progress, loss (S,))` after every batch.

        Raises `TrainingError` when the loss is not a number; the last checkpoint stays.
        """
        plan, progress = self.plan, self.progress
        saved = time.monotonic()
        for group in endless(self.answers, plan.batch, plan.seed, progress.batches):
            done = plan.done(progress)
            if done >= 1:
                break
            began = time.monotonic()
            for part in self.optimizer.param_groups:
                part["lr"] = plan.rate * shape(done, plan.warm_up)
            steps = 3 if done >= plan.third_from else 2
            matrix = self.vocabulary.matrix
            batch = collate(group, steps, matrix.dtype).to(matrix.device)
            loss = self._step(batch, steps)
            progress.batches += 1
            progress.tokens += batch.answer_tokens
            progress.seconds += time.monotonic() - began
            report(progress, loss)
            if time.monotonic() - saved > CHECKPOINT_S:
                self.save()
                saved = time.monotonic()
        self.save()

    def _step(self, batch: Batch, steps: int) -> torch.Tensor:
        states = self.head(batch, self.embedding, self.rotary, steps)
        losses, reached = chain_loss(states, batch, self.vocabulary)
        means = losses / reached.sum(dim=1).clamp_min(1)
        total = (means * means.new_tensor(STEP_WEIGHTS[:steps])).sum()
        if not math.isfinite(total.item()):
            raise TrainingError(
                f"the loss is not a number at batch {self.progress.batches + 1}; the last checkpoint "
                f"({self.path}) was kept: run again with a lower --rate to go on from it"
            )
        self.optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimizer.step()
        return means.detach()

    def save(self) -> None:
        """The checkpoint, whole or as it was."""
        partial = self.path.with_suffix(".partial")
        torch.save(
            {
                "head": self.head.state_dict(),
                "optimizer": self.optimizer.state_dict(),
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
        self.optimizer.load_state_dict(kept["optimizer"])
        self.progress = Progress(**kept["progress"])


def chain_loss(
    states: list[torch.Tensor], batch: Batch, vocabulary: Vocabulary
) -> tuple[torch.Tensor, torch.Tensor]:
    """→ summed losses (S,), whether a step reaches a column (S, N); see `aligned`."""
    rows, reached, index = aligned(states, batch.count)
    target = batch.hidden[:, batch.prompt_columns :].flatten(0, 1)[index]
    mass = batch.mass.flatten()[index]
    return draft_loss(rows, reached.float(), target, mass, vocabulary.matrix), reached


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
