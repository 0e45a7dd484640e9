"""A trace that is still being written, followed as it grows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from mtpx.errors import MtpxError, TraceError
from mtpx.trace.reader import check_schema
from mtpx.trace.schema import Record, RunRecord

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)

CHUNK = 1 << 20


def follow(path: str | os.PathLike[str], wait: Callable[[], bool]) -> Iterator[list[Record]]:
    """Batches of records: what is there, then what is added. Lines that are no record are passed over
    (`mtpx trace report` counts them); half a line waits for its rest.

    `wait` is called whenever there is nothing new; the following ends when it returns false. A file
    that got shorter is read anew. Raises `TraceError` when it cannot be read, or has a newer schema.
    """
    rest = b""
    try:
        with Path(path).open("rb") as file:
            while True:
                data = file.read(CHUNK)
                if not data:
                    if os.fstat(file.fileno()).st_size < file.tell():
                        file.seek(0)
                        rest = b""
                    elif not wait():
                        return
                    continue
                *lines, rest = (rest + data).split(b"\n")
                found = [r for line in lines if (r := _record(str(path), line)) is not None]
                if found:
                    yield found
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise TraceError(f"the trace {path} cannot be read: {why}") from error


def _record(path: str, line: bytes) -> Record | None:
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError, MtpxError):
        return None
    if isinstance(record, RunRecord):
        check_schema(path, record.schema)
    return record
