"""Writing a trace: one JSON line a record, appended as it happens.

Loss window. A record is handed to the operating system at once, unless that is slow: after a flush
that took c seconds the next one is due after 100 · c, at most 0.5 s, so that flushing stays under 1 %
of the time. A killed process therefore loses at most the last 0.5 s and leaves at most one torn line,
which the reader drops. Nothing is fsynced: a power cut may take what the system had not yet written.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from mtpx.errors import TraceError
from mtpx.round import Round
from mtpx.trace.reader import is_trace
from mtpx.trace.schema import Record

LONGEST_WAIT_S = 0.5
FLUSH_SHARE = 100
"""A flush that took c seconds is followed by none for this many times c: 1 % of the time."""


class TraceWriter:
    """Appends records to the trace at `path`, which is opened at once; parents are made.

    A trace that is there already is continued: each run record starts a run of its own. Writes what
    it is given, so text is in a trace only if the caller put it into a record. `warn` is called
    once with a sentence if the file cannot be written any more (a full disk): later records are
    dropped, counted in `dropped`, and decoding goes on.

    Raises `TraceError` when the file cannot be opened, or holds something that is not a trace.
    """

    def __init__(self, path: str | os.PathLike[str], *, warn: Callable[[str], None] | None = None):
        self.path = Path(path)
        self.dropped = 0
        self._warn = warn
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._due = 0.0
        self._fd: int | None = _open(self.path)

    def write(self, record: Record) -> None:
        """Append one record. Never raises for what happens to the file after it was opened."""
        if self._fd is None:
            self.dropped += 1
            return
        # Not `encode_into`: a record that cannot be encoded would leave half a line behind.
        self._buffer += self._encoder.encode(record) + b"\n"
        if type(record) is not Round or time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        if self._fd is None or not self._buffer:
            return
        pending, self._buffer = self._buffer, bytearray()
        start = time.monotonic()
        try:
            rest = memoryview(pending)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self._give_up(error, pending.count(b"\n"))
            return
        end = time.monotonic()
        self._due = end + min(LONGEST_WAIT_S, FLUSH_SHARE * (end - start))

    def close(self) -> None:
        """Flush and close. Closing twice is harmless."""
        self.flush()
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                os.close(fd)
            except OSError as error:
                # Network file systems report a full disk here.
                self._report(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _give_up(self, error: OSError, lost: int) -> None:
        fd, self._fd = self._fd, None
        self.dropped += lost
        if fd is not None:
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.close(fd)
        self._report(error)

    def _report(self, error: OSError) -> None:
        if self._warn is not None:
            why = error.strerror or str(error)
            self._warn(
                f"the trace {self.path} cannot be written any more ({why}); "
                "decoding goes on without it"
            )


def _open(path: Path) -> int:
    """A descriptor to append to, on a line of its own."""
    try:
        if path.is_dir():
            raise TraceError(
                f"the trace cannot be written to {path}: it is a directory; name a file"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode if path.exists() else stat.S_IFREG
        regular = stat.S_ISREG(mode)
        torn = regular and _refuse_or_torn(path)
        fd = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644
        )
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise TraceError(
            f"the trace cannot be written to {path}: {why}; name another file"
        ) from error
    if regular and not _alone(fd):
        os.close(fd)
        raise TraceError(
            f"another process is writing the trace {path}; two in one file could not be told apart: "
            "name another file"
        )
    if torn:
        # A killed run left half a line; without this the first record would be lost with it.
        os.write(fd, b"\n")
    return fd


def _alone(fd: int) -> bool:
    """Whether no other writer has this file open; holds it until it is closed. Where the system or
    the file system has no such locks, nobody can tell, and the answer is yes."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _refuse_or_torn(path: Path) -> bool:
    """Whether an existing file ends inside a line. Raises `TraceError` if it is not a trace."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    if not is_trace(path):
        raise TraceError(
            f"{path} exists and is not a trace; it was left as it is: name another file"
        )
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
