"""What a turn computed, in a file: safetensors with a small typed header.

A file is good for the weights, the head, the backend, the precision, the tier and the chat template it
was made under, and refused under any other: the numbers would not be those of this model.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
import numpy as np

from mtpx.checkpoint import Tensor, read_safetensors
from mtpx.checkpoint.writer import write_safetensors
from mtpx.errors import PackError, SessionError

if TYPE_CHECKING:
    from mtpx.api import Model

VERSION = 1
"""Of the layout. A reader refuses a newer one."""

HEADER, TOKENS = "mtpx", "tokens"


@dataclass(frozen=True)
class Frozen:
    """A snapshot as bytes: the tokens it is of, its session, the backend's own tensors by name, and
    its own numbers (`facts`)."""

    tokens: list[int]
    session: int
    tensors: dict[str, Tensor]
    facts: dict[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values()) + 8 * len(self.tokens)


@runtime_checkable
class Freezes(Protocol):
    """An engine whose snapshots can be kept in a file."""

    def freeze(self, snapshot: object) -> Frozen:
        """The snapshot's bytes. Raises `BackendError` where this model's state cannot be kept so."""
        ...

    def thaw(self, frozen: Frozen) -> object:
        """A snapshot of these bytes. Raises `BackendError` where they are not this engine's."""
        ...


class StateKey(msgspec.Struct, frozen=True):
    """What a state was computed with."""

    weights: str
    head: str
    backend: str
    dtype: str
    quantisation: str
    tier: str
    template: str

    @classmethod
    def of(cls, model: Model) -> StateKey:
        info, template = model.engine.info, model.template
        source = "" if template is None else template.source
        return cls(
            weights=info.weights_digest,
            head=info.head_digest,
            backend=info.backend,
            dtype=info.dtype,
            quantisation=info.quantisation,
            tier=info.tier,
            template=hashlib.sha256(source.encode()).hexdigest(),
        )

    def differs(self, other: StateKey) -> str:
        """In what `other` is another, in words; "" if in nothing."""
        words = {
            "weights": "other weights",
            "head": "another head",
            "backend": f"the {other.backend} backend",
            "dtype": f"precision {other.dtype}",
            "quantisation": f"weights in {other.quantisation}",
            "tier": f"the {other.tier} tier",
            "template": "another chat template",
        }
        parts = [
            said for name, said in words.items() if getattr(self, name) != getattr(other, name)
        ]
        return ", ".join(parts)


class Header(msgspec.Struct, frozen=True):
    """What stands in the file beside the tensors."""

    version: int
    key: StateKey
    session: int
    facts: dict[str, int]


def write(path: Path, frozen: Frozen, key: StateKey) -> None:
    """Put it into a file so that a reader, and whoever comes after a crash, sees the old file or the
    new one. Raises `OSError`; the file is then as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = Header(VERSION, key, frozen.session, frozen.facts)
    ids = np.asarray(frozen.tokens, dtype="<i8")
    tokens = Tensor(TOKENS, (len(ids),), "I64", ids.view(np.uint8))
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        part = Path(file.name)
        try:
            write_safetensors(
                file.file,
                {**frozen.tensors, TOKENS: tokens},
                {HEADER: msgspec.json.encode(header).decode()},
            )
            file.close()
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def discard_parts(path: Path) -> None:
    """Delete what killed writers of this file left behind. Nobody else may be writing it."""
    for part in path.parent.glob(f".{path.name}.*"):
        with suppress(OSError):
            part.unlink()


def read(path: Path, key: StateKey) -> Frozen | None:
    """What the file holds, `None` where there is none. Raises `SessionError` with the reason why it
    cannot be used: damaged, of a newer version, made under another key."""
    if not path.exists():
        return None
    try:
        tensors, metadata = read_safetensors(path)
        header = _header(metadata)
    except PackError as error:
        raise SessionError(f"it is damaged ({error})") from None
    except msgspec.MsgspecError as error:
        raise SessionError(f"it is damaged (its header: {error})") from None
    if different := key.differs(header.key):
        raise SessionError(f"it was made with {different}")
    held = tensors.pop(TOKENS, None)
    if held is None or held.kind != "I64" or len(held.shape) != 1:
        raise SessionError("it is damaged (it names no tokens)")
    tokens = np.frombuffer(bytes(held.data), dtype="<i8").tolist()
    return Frozen(tokens, header.session, tensors, header.facts)


class _Version(msgspec.Struct, frozen=True):
    version: int


class Newer(SessionError):
    """A file of a version from the future: it is left alone."""


def _header(metadata: Mapping[str, str]) -> Header:
    text = metadata.get(HEADER, "")
    version = msgspec.json.decode(text, type=_Version).version
    if version > VERSION:
        raise Newer(f"a newer mtpx made it (version {version}, this one reads up to {VERSION})")
    return msgspec.json.decode(text, type=Header)
