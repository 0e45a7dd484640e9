"""What a Hugging Face or MLX folder announces: its configuration, and every tensor's shape.

Headers only: whatever the architecture, and however the weights are stored, none is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mtpx.checkpoint.mapped import read_small, reason
from mtpx.checkpoint.safetensors import read_header
from mtpx.checkpoint.shards import shards
from mtpx.errors import PackError

CONFIG = "config.json"
CONFIG_LIMIT = 16 * 2**20
"""Bytes; real configurations are a few kilobytes."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A tensor as its file's header gives it: safetensors' name of the dtype, shape, file."""

    dtype: str
    shape: tuple[int, ...]
    file: Path


@dataclass(frozen=True, slots=True)
class Headers:
    """A folder's config.json and the tensors of all its weight files, under their own names."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Announced]

    @property
    def model_types(self) -> tuple[str, ...]:
        """What the configuration calls the model, the whole first, then its language model."""
        parts = (self.config, self.config.get("text_config"))
        named = (part.get("model_type") for part in parts if isinstance(part, Mapping))
        return tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name))


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """The folder's config.json as it is, or another such file of it. Raises `PackError` when it is
    absent or no JSON object."""
    path = folder / name
    try:
        return msgspec.json.decode(read_small(path, CONFIG_LIMIT), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PackError(f"{path} cannot be used: {error}") from error


def read_headers(folder: Path) -> Headers:
    """Raises `PackError` when the folder holds no checkpoint, or a file of it is damaged or absent."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise PackError(f"cannot look into {folder}: {reason(error)}") from error
    if CONFIG not in names or not any(name.endswith(".safetensors") for name in names):
        raise PackError(f"{folder} holds no checkpoint: {CONFIG} with .safetensors files")
    config = read_config(folder)
    tensors: dict[str, Announced] = {}
    for file in shards(folder, names):
        entries, _ = read_header(folder / file)
        twice = [name for name in entries if name in tensors]
        if twice:
            raise PackError(f"{folder} holds {twice[0]} in two files")
        tensors |= {
            name: Announced(entry.dtype, tuple(entry.shape), folder / file)
            for name, entry in entries.items()
        }
    return Headers(folder, config, tensors)
