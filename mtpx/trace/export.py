"""Rounds as a table: one row a sequence's share of a round, for a spreadsheet or a data frame."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TextIO

from mtpx.round import Round
from mtpx.trace.schema import Record, RequestRecord, RunRecord

COLUMNS = (
    "run",
    "request",
    "mode",
    "arm",
    "suite",
    "prompt",
    "warmup",
    "round",
    "start_ns",
    "width",
    "depth",
    "position",
    "drafted",
    "verified",
    "accepted",
    "committed",
    "ended",
    "route",
    "bucket",
    "compiled_now",
    "round_ms",
    "draft_ms",
    "verify_ms",
    "host_ms",
    "ask_ms",
    "energy_j",
    "reason",
    "selected",
    "cut",
    "stopped",
    "cost_sample",
    "excluded",
    "confidences",
)
"""`run` counts the runs of the file from 0; `round` is the round's own index; what was not measured is
empty; `confidences` are separated by spaces."""


def write_csv(records: Iterable[Record], file: TextIO) -> int:
    """The rounds of a trace as CSV with a heading; returns how many rows. `file` is opened with
    newline="". Nothing is written of what cannot be read."""
    found = rows(records)
    first = next(found, None)
    writer = csv.DictWriter(file, COLUMNS, restval="")
    writer.writeheader()
    count = 0
    for row in found if first is None else chain([first], found):
        writer.writerow(row)
        count += 1
    return count


def rows(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """One dictionary a sequence's share of a round, in file order; absent values are None."""
    run = -1
    requests: dict[int, RequestRecord] = {}
    for record in records:
        if isinstance(record, RunRecord):
            run, requests = run + 1, {}
        elif isinstance(record, RequestRecord):
            requests[record.id] = record
        elif isinstance(record, Round):
            yield from _rows(max(run, 0), record, requests)


def _rows(run: int, round: Round, requests: dict[int, RequestRecord]) -> Iterator[dict[str, Any]]:
    decision = round.decision
    for slot in round.slots:
        request = requests.get(slot.request)
        yield {
            "run": run,
            "request": slot.request,
            "mode": request.mode if request else None,
            "arm": request.arm if request else None,
            "suite": request.suite if request else None,
            "prompt": request.prompt if request else None,
            "warmup": request.warmup if request else None,
            "round": round.index,
            "start_ns": round.start_ns,
            "width": round.width,
            "depth": round.depth,
            "position": slot.position,
            "drafted": slot.drafted,
            "verified": slot.verified,
            "accepted": slot.accepted,
            "committed": slot.committed,
            "ended": slot.ended,
            "route": round.route.kind,
            "bucket": round.route.bucket,
            "compiled_now": round.compiled_now,
            "round_ms": round.round_ms,
            "draft_ms": round.draft_ms,
            "verify_ms": round.verify_ms,
            "host_ms": round.host_ms,
            "ask_ms": round.ask_ms,
            "energy_j": round.energy_j,
            "reason": decision.reason if decision else None,
            "selected": decision.selected if decision else None,
            "cut": decision.cut if decision else None,
            "stopped": decision.stopped if decision else None,
            "cost_sample": decision.cost_sample if decision else None,
            "excluded": decision.excluded if decision else None,
            "confidences": None
            if slot.confidences is None
            else " ".join(map(repr, slot.confidences)),
        }
