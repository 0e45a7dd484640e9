"""Files as read-only bytes, without reading them."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from mtpx.checkpoint.tensor import Bytes
from mtpx.errors import PackError


def map_file(path: Path) -> Bytes:
    """The file's bytes, (size,) uint8, mapped read-only; the mapping goes with its last view.

    Raises `PackError` when it cannot be opened or is empty.
    """
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise PackError(f"{path} is empty; fetch it again")
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError) as error:
        raise PackError(f"cannot read {path}: {reason(error)}") from error


def read_small(path: Path, limit: int) -> bytes:
    """A side file's bytes. Raises `PackError` when it cannot be read or is larger than `limit`."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise PackError(f"cannot read {path}: {reason(error)}") from error
    if len(data) > limit:
        raise PackError(f"{path} is larger than {limit:,} bytes, which is not what it should be")
    return data


def reason(error: Exception) -> str:
    """An operating system's error in its own words, without the path and number around them."""
    return getattr(error, "strerror", None) or str(error)
