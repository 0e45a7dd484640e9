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


def check_whole(data: Bytes, what: str) -> None:
    """Raises `PackError` where the file behind these mapped bytes was shortened since it was opened:
    reading what is gone would kill the process (SIGBUS). What happens after this look is not seen."""
    root = _mapping(data)
    if root is not None and root.size() < len(root):
        raise PackError(
            f"the file that holds {what} was cut short while it was being read: it had {len(root):,} "
            f"bytes and has {root.size():,}; fetch it again, and let nothing write to it meanwhile"
        )


def forget(data: Bytes) -> None:
    """Tell the system that these bytes of a mapped file are not needed again soon, so that pages
    already copied elsewhere do not count as this process's memory. The view stays valid."""
    root = _mapping(data)
    advice = getattr(mmap, "MADV_DONTNEED", None)  # Windows has none
    if advice is None or root is None or data.nbytes == 0:
        return
    start = data.__array_interface__["data"][0]
    first = np.frombuffer(root, np.uint8).__array_interface__["data"][0]
    offset = (start - first) // mmap.PAGESIZE * mmap.PAGESIZE
    root.madvise(advice, offset, start - first + data.nbytes - offset)


def _mapping(data: Bytes) -> mmap.mmap | None:
    """What these bytes are a view of, if that is a mapped file."""
    root: object = data
    while isinstance(root, np.ndarray) and root.base is not None:
        root = root.base.obj if isinstance(root.base, memoryview) else root.base
    return root if isinstance(root, mmap.mmap) else None


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
