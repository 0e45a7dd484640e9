"""Reading a trace back: a stream of records, tolerant of what a killed run or a bad disk leaves.

A line is skipped, counted and reported, never fatal, when it is torn, is not JSON, does not hold
what its type promises, or is of a type this version does not know. Fatal are a file without one
record, and a newer major schema.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mtpx.errors import MtpxError, TraceError
from mtpx.trace.schema import SCHEMA, Record, RunRecord

LONGEST_LINE = 16 * 2**20
"""Bytes. No record comes near it; it bounds the memory a file that is not a trace can take."""

BLOCK = 2**18
"""Bytes read and decoded in one go: some hundred records, which one call decodes a third faster than as
many calls, and which take some hundred kilobytes."""

GIVE_UP_AFTER = 64 * 2**20
"""Bytes without one record after which a file is not a trace."""


@dataclass(slots=True)
class Skipped:
    """Lines of one kind that were skipped: how many, the first one's number (from 1), and why."""

    lines: int = 0
    first: int = 0
    why: str = ""

    def add(self, line: int, why: str) -> None:
        if not self.lines:
            self.first, self.why = line, why
        self.lines += 1


@dataclass(slots=True)
class ReadReport:
    """What reading met. `torn`: the last line was cut short; `garbage`: not JSON; `damaged`: a known
    record type without what it must hold; `unknown`: record types this version does not know."""

    path: str = ""
    records: int = 0
    torn: Skipped = field(default_factory=Skipped)
    garbage: Skipped = field(default_factory=Skipped)
    damaged: Skipped = field(default_factory=Skipped)
    unknown: Skipped = field(default_factory=Skipped)

    def warnings(self) -> list[str]:
        """One sentence for each kind of line that was skipped."""
        found = []
        if self.torn.lines:
            found.append(
                f"the last line ({self.torn.first}) is torn, as a killed run leaves it; it was dropped"
            )
        for skipped, what in (
            (self.garbage, "not JSON"),
            (self.damaged, "damaged"),
            (self.unknown, "of an unknown type"),
        ):
            if skipped.lines:
                lines = "1 line" if skipped.lines == 1 else f"{skipped.lines} lines"
                found.append(
                    f"{lines} {what}, skipped; the first is line {skipped.first}: {skipped.why}"
                )
        return found


class _Header(msgspec.Struct):
    type: str = ""
    schema: tuple[int, int] | None = None


_TYPES = frozenset({"run", "request", "round", "belief", "end"})
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_header: msgspec.json.Decoder[_Header] = msgspec.json.Decoder(_Header)
_FAILURES = (msgspec.MsgspecError, ValueError, RecursionError, MtpxError)


def read(
    path: str | os.PathLike[str],
    report: ReadReport | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Record]:
    """The records of the trace at `path`, in file order, read as they are asked for.

    `report`, if given, is filled along the way; `progress(bytes read, of all)`, if given, is called
    now and then where the size is known (not for a pipe). Raises `TraceError` when the file cannot be
    read, holds no record, or was written under a newer major schema.
    """
    report = report if report is not None else ReadReport()
    report.path = str(path)
    seen = number = 0
    for block, size, whole in _blocks(Path(path)):
        seen += len(block)
        # The rest of an overlong line, newline included, is not in its block.
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        try:
            records = _decoder.decode_lines(block)
        except _FAILURES:
            records = []
        # The decoder takes a line break inside a record for white space: one record is one line.
        if len(records) != lines:
            records = _one_by_one(report, number, block, whole)
        number += lines
        for record in records:
            if type(record) is RunRecord:
                check_schema(report.path, record.schema)
        report.records += len(records)
        yield from records
        if progress is not None and size:
            progress(seen, max(seen, size))
        if not report.records and seen > GIVE_UP_AFTER:
            break
    if not report.records:
        raise TraceError(_not_a_trace(report, seen))


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether at least one record can be read from the file at `path`."""
    try:
        return next(read(path), None) is not None
    except TraceError:
        return False


def _blocks(path: Path) -> Iterator[tuple[bytes, int, bool]]:
    """(whole lines, the file's size, whether the last one ended in a newline); an overlong line ends its
    block as its start."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while block := file.read(BLOCK):
                whole = block.endswith(b"\n")
                if not whole:
                    rest = file.readline(LONGEST_LINE)
                    block += rest
                    while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
                        rest = file.readline(LONGEST_LINE)
                    whole = rest.endswith(b"\n")
                yield block, size, whole
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise TraceError(f"the trace {path} cannot be read: {why}") from error


def _one_by_one(report: ReadReport, before: int, block: bytes, whole: bool) -> list[Record]:
    """The records of a block with a line that is none; `before` lines came before it."""
    records: list[Record] = []
    lines = block.split(b"\n")
    for number, line in enumerate(lines, before + 1):
        if not line.strip():
            continue
        last = number == before + len(lines)
        try:
            records.append(_decoder.decode(line))
        except _FAILURES as error:
            _classify(report, number, line, whole or not last, error)
    return records


def _classify(
    report: ReadReport, number: int, line: bytes, whole: bool, error: BaseException
) -> None:
    """Count a line that is no record under the kind of its problem."""
    try:
        header = _header.decode(line)
    except _FAILURES:
        kind = report.garbage if whole else report.torn
        kind.add(number, _short(error))
        return
    if header.type == "run" and header.schema is not None:
        check_schema(report.path, header.schema)
    if header.type in _TYPES:
        report.damaged.add(number, _short(error))
    elif header.type:
        report.unknown.add(number, f"type {header.type[:40]!r}")
    else:
        report.garbage.add(number, "JSON, but not a record")


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def check_schema(path: str, schema: tuple[int, int]) -> None:
    if schema[0] > SCHEMA[0]:
        raise TraceError(
            f"{path} was written with trace schema {schema[0]}.{schema[1]}, this mtpx reads "
            f"{SCHEMA[0]}.x; a newer mtpx can read it"
        )


def _not_a_trace(report: ReadReport, seen: int) -> str:
    if not seen:
        return f"{report.path} is empty: the run that wrote it recorded nothing"
    return f"{report.path} is not a trace: no record of mtpx could be read from it"
