"""Small pieces of a training: a tiny trunk in float32, answers of it, a head for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from mtpx.checkpoint import open_checkpoint
from mtpx_train.batches import Answered, sequences
from mtpx_train.fit import Vocabulary
from mtpx_train.generate import Answer, Prompt, decode_wave
from mtpx_train.head import DraftHead
from mtpx_train.shards import About, read_shard, write_shard
from mtpx_train.start import start_from
from mtpx_train.trunk import BatchTrunk

PROMPTS = [[1, 7, 9, 4], [1, 7, 30, 31, 8, 5], [1, 7, 12], [1, 7, 9, 4, 4, 4, 20, 21, 3]]


@cache
def trunk_of(folder: Path, dtype: torch.dtype = torch.float32) -> BatchTrunk:
    """The target of a folder of weights."""
    with open_checkpoint(folder) as checkpoint, torch.inference_mode():
        return BatchTrunk(checkpoint, dtype, torch.device("cpu"), 256)


def answers_of(trunk: BatchTrunk, longest: int = 24, temperature: float = 0.0) -> list[Answer]:
    prompts = [Prompt(tokens, temperature, "made") for tokens in PROMPTS]
    return decode_wave(trunk, prompts, longest, frozenset({2}), 5)


def answered_of(trunk: BatchTrunk, folder: Path, longest: int = 24) -> list[Answered]:
    """Answers as training sees them: through a file, so in bfloat16's precision."""
    made = answers_of(trunk, longest)
    write_shard(folder / "a.safetensors", made, [About("made", True, a.ended, []) for a in made])
    return sequences(read_shard(folder / "a.safetensors"))


def head_of(trunk: BatchTrunk, answers: list[Answered]) -> tuple[DraftHead, Vocabulary]:
    ids = torch.arange(3, 40)
    with torch.inference_mode():
        matrix = trunk.output[ids].clone()
    return DraftHead(trunk.config, start_from(trunk, answers)), Vocabulary(ids, matrix)
