"""Which safetensors files of a folder hold its weights."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from mtpx.checkpoint.mapped import read_small
from mtpx.errors import PackError

INDEX = "model.safetensors.index.json"
INDEX_LIMIT = 256 * 2**20
"""Bytes; the largest indices of real models have a few megabytes."""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def shards(folder: Path, names: Collection[str]) -> dict[str, list[str]]:
    """File name to the tensors the index places in it (none named where there is no index).

    `names` are the folder's files. Raises `PackError` when it is not clear which files the weights
    are, or one that the index names is not there.
    """
    if INDEX not in names:
        single = [n for n in names if n.endswith(".safetensors")]
        if "model.safetensors" in single:
            return {"model.safetensors": []}
        if len(single) > 1:
            raise PackError(f"{folder} holds {len(single)} .safetensors files but no {INDEX}")
        return {single[0]: []}
    path = folder / INDEX
    try:
        index = msgspec.json.decode(read_small(path, INDEX_LIMIT), type=_Index)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PackError(f"{path} cannot be used: {error}") from error
    files: dict[str, list[str]] = {}
    for tensor, file in index.weight_map.items():
        if file not in names or not file.endswith(".safetensors"):
            raise PackError(f"{path} names the file {file!r}, which is not in the folder")
        files.setdefault(file, []).append(tensor)
    if not files:
        raise PackError(f"{path} names no tensors")
    return files
