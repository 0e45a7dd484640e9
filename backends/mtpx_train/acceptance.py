"""How often drafts stand: estimated while training, measured through the engine at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from typing import TYPE_CHECKING

import msgspec
import torch

from mtpx.bench.suites import BenchPrompt, prompt_file, suite, suite_names
from mtpx_train.batches import Answered, collate
from mtpx_train.fit import Vocabulary, chain_hits

if TYPE_CHECKING:
    from mtpx.api import Model
    from mtpx_torch.trunk import Rotary
    from mtpx_train.head import DraftHead

DEPTH = 3

TOGETHER = 16
"""Answers judged at a time."""


class Counts(msgspec.Struct):
    """Drafts that were judged and that stood, at positions 1..3, of which all before them stood."""

    reached: list[int]
    accepted: list[int]

    @property
    def rates(self) -> list[float]:
        """Conditional acceptance per position, to three digits; 0 where nothing was judged."""
        return [
            round(a / r, 3) if r else 0.0 for a, r in zip(self.accepted, self.reached, strict=True)
        ]


def nothing() -> Counts:
    return Counts([0] * DEPTH, [0] * DEPTH)


def held_out_prompts() -> list[BenchPrompt]:
    """Prompts written by hand, of kinds the mixture has not: never trained on."""
    with resources.as_file(resources.files("mtpx_train") / "held_out.jsonl") as path:
        return prompt_file(path)


def suite_prompts() -> list[BenchPrompt]:
    """The bench's suites; not trained on either."""
    return [prompt for name in suite_names() for prompt in suite(name)]


def first_of_each(prompts: Sequence[BenchPrompt], count: int | None) -> list[BenchPrompt]:
    """The first `count` prompts of every suite, or all."""
    seen: dict[str, int] = {}
    chosen = []
    for prompt in prompts:
        seen[prompt.suite] = seen.get(prompt.suite, 0) + 1
        if count is None or seen[prompt.suite] <= count:
            chosen.append(prompt)
    return chosen


@torch.no_grad()
def estimated(
    head: DraftHead,
    embedding: torch.Tensor,
    vocabulary: Vocabulary,
    rotary: Rotary,
    answers: Sequence[Answered],
) -> Counts:
    """Acceptance along the target's own greedy answers, from every place in them: what the engine
    would find if a round began at each token. Quick, and a little above what it finds."""
    counts = nothing()
    for at in range(0, len(answers), TOGETHER):
        matrix = vocabulary.matrix
        batch = collate(answers[at : at + TOGETHER], DEPTH, matrix.dtype).to(matrix.device)
        states = head(batch, embedding, rotary, DEPTH)
        stood = chain_hits(states, batch, vocabulary)
        for step in range(DEPTH):
            counts.reached[step] += int(stood.reached[step].sum())
            counts.accepted[step] += int(stood.accepted[step].sum())
    return counts


def measured(
    model: Model,
    prompts: Sequence[BenchPrompt],
    max_tokens: int,
    report: Callable[[int], None],
) -> dict[str, Counts]:
    """Acceptance per suite, greedy, through the engine at depth 3."""
    found: dict[str, Counts] = {}
    for number, prompt in enumerate(prompts):
        content = prompt.content
        answer = model.generate(
            content,
            raw=isinstance(content, str),
            max_tokens=max_tokens,
            depth=DEPTH,
            temperature=0.0,
        )
        counts = found.setdefault(prompt.suite, nothing())
        for step, position in enumerate(answer.accepted_per_position):
            counts.reached[step] += position.reached
            counts.accepted[step] += position.accepted
        report(number + 1)
    return found


def together(found: dict[str, Counts]) -> Counts:
    """All suites' counts."""
    total = nothing()
    for counts in found.values():
        for step in range(DEPTH):
            total.reached[step] += counts.reached[step]
            total.accepted[step] += counts.accepted[step]
    return total
