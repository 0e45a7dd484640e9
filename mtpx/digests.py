"""sha256 of files, remembered.

Hashing gigabytes at every start is slow, so a digest is kept in a stamp with the file's size and
modification time, and taken as true while both are unchanged. A stamp guards against accidents; who
can write to the folder can write the stamp too.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from mtpx.errors import PackError

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) as a fetch or a digest goes on."""

CHUNK = 1 << 20


class Stamp(msgspec.Struct, frozen=True):
    """What a file was when its digest was taken."""

    size: int
    mtime_ns: int
    sha256: str


def beside(path: Path) -> Path:
    """The stamp of a file in a folder that is ours."""
    return path.with_name(f".{path.name}.stamp")


def elsewhere(path: Path, folder: Path) -> Path:
    """The stamp, in `folder`, of a file in a folder that is not ours to write to."""
    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    return folder / f"{key[:32]}.stamp"


def sha256(path: Path, progress: Progress | None = None) -> str:
    """The file's digest. Raises `PackError` when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            done = 0
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                done += len(chunk)
                if progress:
                    progress(done, total)
    except OSError as error:
        raise PackError(f"cannot read {path}: {error.strerror or error}") from None
    return digest.hexdigest()


def known(path: Path, stamp: Path) -> str | None:
    """The digest `stamp` remembers for the file, if the file is as it was."""
    try:
        remembered = msgspec.json.decode(stamp.read_bytes(), type=Stamp)
        status = path.stat()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    same = (remembered.size, remembered.mtime_ns) == (status.st_size, status.st_mtime_ns)
    return remembered.sha256 if same else None


def remember(path: Path, stamp: Path, digest: str) -> None:
    """Write the stamp. A folder that cannot be written costs the next start a digest, no more."""
    with suppress(OSError):
        status = path.stat()
        write_atomically(
            stamp,
            msgspec.json.encode(Stamp(status.st_size, status.st_mtime_ns, digest)),
        )


def of(path: Path, stamp: Path, progress: Progress | None = None) -> str:
    """The file's digest, from the stamp or computed and stamped. Raises `PackError`."""
    digest = known(path, stamp)
    if digest is None:
        digest = sha256(path, progress)
        remember(path, stamp, digest)
    return digest


def write_atomically(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees the old content or the new. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
