"""The GGUF container, versions 2 and 3: header, metadata, tensor table.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every count and length is held
against the bytes that are left before it is believed, so a damaged or hostile file costs neither
memory nor time. Ours and not gguf-py's reader because that one builds an object for every field of
every element: seconds for a vocabulary.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtpx.checkpoint.mapped import map_file
from mtpx.checkpoint.tensor import BLOCKS, Bytes, Kind, Tensor, stored_bytes
from mtpx.errors import PackError

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NESTING = 4
"""Arrays in arrays: the format allows any depth, real files use none."""

READS: dict[int, Kind] = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 30: "BF16"}

# ggml's other types, to name what is refused (ggml.h, enum ggml_type).
OTHER_TYPES = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
    15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip

BOOL, STRING, ARRAY = 7, 8, 9
SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
    BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
DTYPES = {code: np.dtype(text) for code, text in SCALARS.items()}

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SMALLEST_FIELD = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF file holds, under its own names. Metadata values are Python scalars, strings,
    lists of strings, or read-only numpy arrays; shapes are row-major (the file's, reversed)."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


Accept = Callable[[dict[str, Any], list[str]], None]
"""Looks at the metadata and the tensors' names; raises `PackError` for a file that is not wanted."""


def read_gguf(path: Path, accept: Accept | None = None) -> GgufFile:
    """Read the header, ask `accept` whether it will do, and map the tensors.

    Raises `PackError` when the file is no GGUF, is damaged or cut short, or holds block types that
    are not read here.
    """
    data = map_file(path)
    cursor = _Cursor(path, data)
    magic = bytes(data[:4])
    if magic != b"GGUF":
        raise PackError(f"{path} is not a GGUF file: it begins with {magic!r} instead of b'GGUF'")
    cursor.at = 4
    version = cursor.u32("the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        found = f"big-endian version {swapped}" if swapped in VERSIONS else f"version {version}"
        raise PackError(f"{path} is GGUF {found}; little-endian versions 2 and 3 are read")
    n_tensors = cursor.count("tensors", _SMALLEST_TENSOR)
    n_fields = cursor.count("metadata fields", _SMALLEST_FIELD)
    metadata: dict[str, Any] = {}
    for _ in range(n_fields):
        key = cursor.string("a metadata name")
        if key in metadata:
            raise PackError(f"{path} names the metadata field {key!r} twice; it is damaged")
        metadata[key] = cursor.value(cursor.u32(f"the type of {key!r}"), key)
    entries = [_entry(cursor) for _ in range(n_tensors)]
    if accept is not None:
        accept(metadata, [entry.name for entry in entries])
    _refuse_types(path, entries)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise PackError(f"{path} asks for an alignment of {alignment!r}, not a power of two")
    start = -(-cursor.at // alignment) * alignment
    return GgufFile(version, metadata, _tensors(path, data, start, alignment, entries))


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


def _entry(cursor: _Cursor) -> _Entry:
    name = cursor.string("a tensor name")
    dimensions = cursor.u32(f"the dimensions of {name!r}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise PackError(
            f"{cursor.path}: tensor {name!r} has {dimensions} dimensions; 1 to 4 can be"
        )
    shape = tuple(cursor.u64(f"the shape of {name!r}") for _ in range(dimensions))
    type = cursor.u32(f"the type of {name!r}")
    return _Entry(name, shape[::-1], type, cursor.u64(f"the offset of {name!r}"))


def _refuse_types(path: Path, entries: list[_Entry]) -> None:
    others = Counter(e.type for e in entries if e.type not in READS)
    if others:
        names = ", ".join(
            f"{OTHER_TYPES.get(type, f'type {type}')} ({n} tensor{'s' if n > 1 else ''})"
            for type, n in sorted(others.items())
        )
        raise PackError(
            f"{path} holds blocks that are not read here: {names}; "
            f"read are {', '.join(READS.values())}: choose a file quantised as one of these"
        )


def _tensors(
    path: Path, data: Bytes, start: int, alignment: int, entries: list[_Entry]
) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    room = max(0, data.size - start)
    reached, before = 0, ""
    for entry in sorted(entries, key=lambda e: e.offset):
        name, kind = entry.name, READS[entry.type]
        if name in tensors:
            raise PackError(f"{path} names the tensor {name!r} twice; it is damaged")
        if math.prod(entry.shape) == 0 or entry.shape[-1] % BLOCKS[kind].elements:
            raise PackError(
                f"{path}: tensor {name!r} has shape {entry.shape}, which {kind} cannot hold"
            )
        size = stored_bytes(entry.shape, kind)
        if entry.offset % alignment:
            raise PackError(f"{path}: tensor {name!r} is not aligned to {alignment} bytes")
        if entry.offset < reached:
            raise PackError(f"{path}: tensors {before!r} and {name!r} overlap; the file is damaged")
        reached, before = entry.offset + size, name
        if reached > room:
            raise PackError(
                f"{path} is cut short: tensor {name!r} needs {start + reached:,} bytes, the file has "
                f"{data.size:,}; fetch it again"
            )
        at = start + entry.offset
        tensors[name] = Tensor(name, entry.shape, kind, data[at : at + size])
    return {entry.name: tensors[entry.name] for entry in entries}


class _Cursor:
    """Reads forward through the header; raises `PackError` instead of passing the file's end."""

    def __init__(self, path: Path, data: Bytes) -> None:
        self.path = path
        self.view = data.data
        self.size = data.size
        self.at = 0

    def need(self, n: int, what: str) -> None:
        if n > self.size - self.at:
            raise PackError(
                f"{self.path} is cut short or damaged: {what} at byte {self.at:,} takes {n:,} bytes, "
                f"{max(0, self.size - self.at):,} are left of {self.size:,}; fetch it again"
            )

    def u32(self, what: str) -> int:
        self.need(4, what)
        self.at += 4
        return int(_U32.unpack_from(self.view, self.at - 4)[0])

    def u64(self, what: str) -> int:
        self.need(8, what)
        self.at += 8
        return int(_U64.unpack_from(self.view, self.at - 8)[0])

    def count(self, what: str, smallest: int) -> int:
        """A count of things that take at least `smallest` bytes each."""
        n = self.u64(f"the count of {what}")
        self.need(n * smallest, f"{n:,} {what}")
        return n

    def string(self, what: str) -> str:
        return self.strings(1, what)[0]

    def strings(self, n: int, what: str) -> list[str]:
        # One tight loop with local names: vocabularies pass through here.
        view, size, at, unpack = self.view, self.size, self.at, _U64.unpack_from
        out = []
        for _ in range(n):
            self.at = at
            if size - at < 8:
                self.need(8, what)
            length = unpack(view, at)[0]
            at += 8
            if length > size - at:
                self.need(8 + length, what)
            try:
                out.append(str(view[at : at + length], "utf-8"))
            except UnicodeDecodeError as error:
                raise PackError(f"{self.path}: {what} is not UTF-8; it is damaged") from error
            at += length
        self.at = at
        return out

    def value(self, type: int, key: str, nesting: int = 0) -> Any:
        if type == STRING:
            return self.string(f"the text of {key!r}")
        if type == ARRAY:
            return self._array(key, nesting)
        return self._numbers(type, 1, key)[0].item()

    def _array(self, key: str, nesting: int) -> Any:
        type = self.u32(f"the type of {key!r}")
        if type == ARRAY:
            if nesting == MAX_NESTING:
                raise PackError(f"{self.path}: {key!r} nests arrays too deeply; it is damaged")
            n = self.count(f"arrays in {key!r}", 12)
            return [self._array(key, nesting + 1) for _ in range(n)]
        if type == STRING:
            return self.strings(self.count(f"strings in {key!r}", 8), f"a text in {key!r}")
        n = self.u64(f"the count of {key!r}")
        return self._numbers(type, n, key)

    def _numbers(self, type: int, n: int, key: str) -> Any:
        dtype = DTYPES.get(type)
        if dtype is None:
            raise PackError(f"{self.path}: {key!r} has the unknown type {type}; it is damaged")
        self.need(n * dtype.itemsize, f"{n:,} numbers in {key!r}")
        numbers = np.frombuffer(self.view, dtype, n, self.at)
        self.at += n * dtype.itemsize
        return numbers != 0 if type == BOOL else numbers
