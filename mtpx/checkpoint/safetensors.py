"""The safetensors container, mapped.

Format: https://github.com/huggingface/safetensors#format. The library hands out copies or arrays of
its framework's dtypes; raw views of bfloat16 bytes take reading the header here. The library is the
reference in the tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from mtpx.checkpoint.mapped import map_file
from mtpx.checkpoint.tensor import Bytes, Kind, Tensor, stored_bytes
from mtpx.errors import PackError

READS: dict[str, Kind] = {"F32": "F32", "F16": "F16", "BF16": "BF16", "I32": "I32", "I64": "I64"}

HEADER_LIMIT = 100_000_000
"""The reference implementation's own limit on the header's bytes."""


class Entry(msgspec.Struct):
    """A tensor as the header announces it; offsets in bytes after the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, by their own names, and its metadata.

    Raises `PackError` when the file is no safetensors, is damaged or cut short, or holds a dtype
    that is not read here.
    """
    data = map_file(path)
    entries, metadata, start = _announced(path, data)
    refused = sorted({e.dtype for e in entries.values()} - set(READS))
    if refused:
        raise PackError(
            f"{path} holds {', '.join(refused)}, which are not read here; read are "
            f"{', '.join(READS)}"
        )
    reached = 0
    tensors: dict[str, Tensor] = {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        kind, shape = READS[entry.dtype], tuple(entry.shape)
        if any(n < 0 for n in shape) or stored_bytes(shape, kind) != end - begin:
            raise PackError(
                f"{path}: tensor {name!r} has shape {shape} of {entry.dtype}, which is not the "
                f"{end - begin:,} bytes it is given; the file is damaged"
            )
        if begin != reached:
            fault = "overlaps another" if begin < reached else "leaves a gap before it"
            raise PackError(f"{path}: tensor {name!r} {fault}; the file is damaged")
        reached = end
        if end > data.size - start:
            raise PackError(
                f"{path} is cut short: tensor {name!r} needs {start + end:,} bytes, the file has "
                f"{data.size:,}; fetch it again"
            )
        tensors[name] = Tensor(name, shape, kind, data[start + begin : start + end])
    if reached != data.size - start:
        raise PackError(
            f"{path} has {data.size - start - reached:,} bytes that belong to no tensor; "
            "the file is damaged"
        )
    return {name: tensors[name] for name in entries}, metadata


def read_header(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """What a file announces: tensors of any dtype, by their own names, and its metadata. No weight is
    read and none is judged. Raises `PackError` when the file is no safetensors."""
    entries, metadata, _ = _announced(path, map_file(path))
    return entries, metadata


def _announced(path: Path, data: Bytes) -> tuple[dict[str, Entry], dict[str, str], int]:
    """The header's entries, its metadata, and where the weights begin."""
    length = int.from_bytes(bytes(data[:8]), "little")
    if data.size < 8 or length > min(HEADER_LIMIT, data.size - 8):
        raise PackError(
            f"{path} is not a safetensors file, or cut short: a header of {length:,} bytes is "
            f"announced, the file has {data.size:,} bytes"
        )
    return *_header(path, bytes(data[8 : 8 + length])), 8 + length


def _header(path: Path, text: bytes) -> tuple[dict[str, Entry], dict[str, str]]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
        if not isinstance(header, dict):
            raise ValueError("it is not an object")
        metadata = msgspec.convert(header.pop("__metadata__", None) or {}, dict[str, str])
        return msgspec.convert(header, dict[str, Entry]), metadata
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise PackError(f"{path} has a header that is not safetensors': {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name stands in it twice")
    return out
