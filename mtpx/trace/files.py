"""Where traces lie when nobody named a file: a directory kept in time order and bounded."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

from mtpx.errors import TraceError

_OURS = re.compile(r"(\d{8}-\d{6})-[a-z][a-z0-9_]*-\d+(\.\d+)?\.jsonl")

MAX_FILES = 200
MAX_BYTES = 512 * 2**20
"""What `prune` keeps unless told: some weeks of use, and less than one small model's weights."""


def new_trace_path(
    directory: str | os.PathLike[str], kind: str, *, now: datetime | None = None
) -> Path:
    """A path no file has yet, such as `20260101-120000-bench-4711.jsonl` (UTC, then process id).

    Names sort by time. `kind` is the command that writes it: small letters, digits, underscores.
    """
    stamp = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%d-%H%M%S")
    stem = f"{stamp}-{kind}-{os.getpid()}"
    path = Path(directory) / f"{stem}.jsonl"
    if not _OURS.fullmatch(path.name):
        raise TraceError(f"a kind of trace is small letters, digits and underscores, got {kind!r}")
    again = 1
    while path.exists():
        again += 1
        path = Path(directory) / f"{stem}.{again}.jsonl"
    return path


def newest_trace(directory: str | os.PathLike[str]) -> Path:
    """The newest trace in `directory`. Raises `TraceError` when there is none."""
    found = _traces(Path(directory))
    if not found:
        raise TraceError(f"there is no trace in {directory} yet; run `mtpx bench` to make one")
    return found[-1][0]


def prune(
    directory: str | os.PathLike[str], max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES
) -> list[Path]:
    """Remove the oldest traces until at most `max_files` and `max_bytes` remain; returns the removed.

    Touches only regular files named as `new_trace_path` names them, and never the newest. A file
    that cannot be removed is left: keeping house must not end a run.
    """
    kept = _traces(Path(directory))
    files, total = len(kept), sum(size for _, size in kept)
    removed: list[Path] = []
    for path, size in kept[:-1]:
        if files <= max_files and total <= max_bytes:
            break
        try:
            path.unlink()
        except OSError:
            continue
        files, total = files - 1, total - size
        removed.append(path)
    return removed


def _traces(directory: Path) -> list[tuple[Path, int]]:
    """Our traces and their sizes, oldest first: by the second in the name, then by last growth."""
    found: list[tuple[str, int, str, int]] = []
    try:
        for entry in os.scandir(directory):
            match = _OURS.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                status = entry.stat()
                found.append((match[1], status.st_mtime_ns, entry.name, status.st_size))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TraceError(f"the traces in {directory} cannot be listed: {error.strerror}") from error
    return [(directory / name, size) for _, _, name, size in sorted(found)]
