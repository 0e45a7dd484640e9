"""What text in and out needs to know of a checkpoint, whatever its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from mtpx.checkpoint.checkpoint import open_checkpoint
from mtpx.checkpoint.config import FAMILIES
from mtpx.checkpoint.headers import CONFIG, read_config
from mtpx.errors import PackError

TokenId = Annotated[int, Meta(ge=0, le=2**24)]
TokenIds = TokenId | list[TokenId] | None


class TokenConfig(Protocol):
    """`family` is the architecture's name; any of `end_ids` ends a text."""

    @property
    def family(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def end_ids(self) -> tuple[int, ...]: ...


class TokenSource(Protocol):
    """A checkpoint as far as its tokenizer is concerned; a `Checkpoint` is one."""

    @property
    def config(self) -> TokenConfig: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Config:
    family: str
    vocab: int
    bos_id: int | None
    end_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    config: TokenConfig
    metadata: Mapping[str, Any] = field(default_factory=dict)


class _Told(msgspec.Struct):
    bos_token_id: TokenIds = None
    eos_token_id: TokenIds = None
    vocab_size: Annotated[int, Meta(ge=1, le=2**24)] | None = None


def token_source(path: Path) -> TokenSource:
    """What the tokenizer of the checkpoint at `path` needs.

    Of an architecture that the core does not know, config.json alone is read: whether a backend
    computes it is for that backend to say. Raises `PackError` for one that cannot be used.
    """
    if path.is_dir() and (path / CONFIG).is_file():
        config = read_config(path)
        if config.get("model_type") not in FAMILIES:
            return _Source(_from_config(path, config))
    with open_checkpoint(path) as checkpoint:
        return _Source(checkpoint.config, checkpoint.metadata)


def _from_config(folder: Path, config: Mapping[str, Any]) -> TokenConfig:
    where = str(folder / CONFIG)
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        raise PackError(f"{where} names no model_type, so nothing says what the weights are for")
    inner = config.get("text_config")
    own = _told(config, where)
    text = _told(inner, where) if isinstance(inner, Mapping) else _Told()
    vocab = text.vocab_size or own.vocab_size
    if vocab is None:
        raise PackError(f"{where}: vocab_size is absent")
    path = folder / "generation_config.json"
    generation = _told(read_config(folder, path.name), str(path)) if path.is_file() else _Told()
    ends = [*_ids(generation.eos_token_id), *_ids(own.eos_token_id), *_ids(text.eos_token_id)]
    begins = [*_ids(own.bos_token_id), *_ids(text.bos_token_id)]
    return _Config(family, vocab, next(iter(begins), None), tuple(dict.fromkeys(ends)))


def _told(table: Mapping[str, Any], where: str) -> _Told:
    try:
        return msgspec.convert(dict(table), _Told)
    except msgspec.ValidationError as error:
        raise PackError(f"{where} cannot be used: {error}") from None


def _ids(value: TokenIds) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
