"""Batches for training: answers of about one length side by side, all batches of an epoch shuffled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from mtpx_train.shards import Shard

POOL = 1024
"""Answers sorted by length together before they are cut into batches: many enough for batches of
hardly any padding, few enough for batches that differ from epoch to epoch."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer with its prompt: rows of a shard."""

    shard: Shard
    first: int
    length: int
    start: int
    mass_first: int

    @property
    def answer(self) -> int:
        return self.length - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """B answers. Columns 0..P-1 are pairs within the prompts, right-aligned; columns P..P+A-1 the pairs
    from the last prompt token on, left-aligned: column P + a of an answer is pair start - 1 + a.

    `tokens` (B, P + A + S + 1): column c holds the token its pair's hidden state stands at, so that
    pair column c joins tokens column c + 1. `hidden` (B, P + A, H). `positions` (B, P + A) of the
    tokens in their text. `mask` (B, 1, A, P + A): what an answer column may see. `mass` (B, A),
    `count` (B,) answer tokens.
    """

    tokens: torch.Tensor
    hidden: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    mass: torch.Tensor
    count: torch.Tensor
    prompt_columns: int

    @property
    def answer_columns(self) -> int:
        return self.mass.shape[1]

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        moved: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            moved[f.name] = value.to(device) if isinstance(value, torch.Tensor) else value
        return Batch(**moved)

    @property
    def answer_tokens(self) -> int:
        return int(self.count.sum())


def sequences(shard: Shard) -> list[Answered]:
    """A shard's answers of two tokens or more."""
    found, first, mass = [], 0, 0
    for length, start in zip(shard.lengths.tolist(), shard.starts.tolist(), strict=True):
        if length - start > 1:
            found.append(Answered(shard, first, length, start, mass))
        first += length
        mass += length - start
    return found


def epoch(answers: Sequence[Answered], tokens: int, rng: random.Random) -> list[list[Answered]]:
    """All answers once, in batches of about `tokens` answer columns, padding included."""
    order = list(answers)
    rng.shuffle(order)
    batches: list[list[Answered]] = []
    for at in range(0, len(order), POOL):
        group: list[Answered] = []
        for sequence in sorted(order[at : at + POOL], key=lambda s: s.answer):
            if group and sequence.answer * (len(group) + 1) > tokens:
                batches.append(group)
                group = []
            group.append(sequence)
        batches.append(group)
    rng.shuffle(batches)
    return batches


def collate(group: Sequence[Answered], steps: int, dtype: torch.dtype) -> Batch:
    """The batch of these answers, with room for chains of `steps`."""
    P = max(s.start for s in group) - 1
    A = max(s.answer for s in group)
    B, H = len(group), group[0].shard.hidden.shape[1]
    tokens = torch.zeros(B, P + A + steps + 1, dtype=torch.long)
    hidden = torch.zeros(B, P + A, H, dtype=dtype)
    mass = torch.zeros(B, A)
    pads = torch.tensor([P - (s.start - 1) for s in group])
    for row, s in enumerate(group):
        pad = P - (s.start - 1)
        rows = slice(s.first, s.first + s.length)
        tokens[row, pad : pad + s.length] = s.shard.tokens[rows]
        # The state at the last token was never computed: no pair of it, its row stays zero.
        hidden[row, pad : pad + s.length - 1] = s.shard.hidden[s.first : s.first + s.length - 1]
        mass[row, : s.answer] = s.shard.mass[s.mass_first : s.mass_first + s.answer]
    columns = torch.arange(P + A)
    sees = (columns <= columns[P:, None]) & (columns >= pads[:, None, None])
    return Batch(
        tokens=tokens,
        hidden=hidden,
        positions=columns - pads[:, None],
        mask=sees.unsqueeze(1),
        mass=mass,
        count=torch.tensor([s.answer for s in group]),
        prompt_columns=P,
    )


def endless(
    answers: Sequence[Answered], tokens: int, seed: int, skip: int
) -> Iterator[list[Answered]]:
    """Epoch after epoch, from batch number `skip` on."""
    number = 0
    while True:
        batches = epoch(answers, tokens, random.Random(f"{seed} epoch {number}"))
        if skip >= len(batches):
            skip -= len(batches)
        else:
            yield from batches[skip:]
            skip = 0
        number += 1
