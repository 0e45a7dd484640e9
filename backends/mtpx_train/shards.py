"""Answers on disk: one safetensors file a wave, whole or not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

if TYPE_CHECKING:
    from mtpx_train.generate import Answer


class About(msgspec.Struct):
    """An answer's conversation as text (`messages`, the answer last) and what it came from."""

    kind: str
    greedy: bool
    ended: bool
    messages: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Shard:
    """A wave read back. Sequence i is `tokens`, `hidden` rows ends[i-1]..ends[i]-1, its first
    `starts[i]` rows the prompt; `mass` has the answers' rows only, one after another."""

    tokens: torch.Tensor
    hidden: torch.Tensor
    mass: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor
    about: list[About]


def write_shard(path: Path, answers: Sequence[Answer], about: Sequence[About]) -> None:
    """Written beside its place and moved there when whole. Raises `OSError`."""
    from safetensors.torch import save_file

    tensors = {
        "tokens": torch.cat([a.tokens for a in answers]).int(),
        "hidden": torch.cat([a.hidden for a in answers]).to(torch.bfloat16),
        "mass": torch.cat([a.mass for a in answers]).float(),
        "lengths": torch.tensor([len(a.tokens) for a in answers]),
        "starts": torch.tensor([a.start for a in answers]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    save_file(tensors, partial, {"about": msgspec.json.encode(list(about)).decode()})
    partial.replace(path)


def read_about(path: Path) -> tuple[list[About], int]:
    """The conversations of a shard and its answer tokens, without its hidden states."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = msgspec.json.decode(file.metadata()["about"], type=list[About])
        return about, int(file.get_slice("mass").get_shape()[0])


def read_shard(path: Path) -> Shard:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = msgspec.json.decode(file.metadata()["about"], type=list[About])
        held: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return Shard(about=about, **held)
