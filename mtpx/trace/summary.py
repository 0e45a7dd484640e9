"""What a trace says: one pure function from records to a typed result.

The terminal and the JSON output only draw it. Records are taken one at a time and not kept; what
stays is a few numbers a round and a small entry a request. Every run record starts a run of its own;
runs are never pooled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from mtpx.bench.blocks import blocks
from mtpx.bench.verdict import MARGIN, NO_PLAIN, Verdict, verdicts
from mtpx.errors import MtpxError, TraceError
from mtpx.round import Round
from mtpx.trace.acceptance import AcceptanceTally, PositionAcceptance
from mtpx.trace.anomalies import Anomalies, Anomaly
from mtpx.trace.reader import ReadReport, read
from mtpx.trace.requests import ArmTotals, RequestsTally, RequestTotals
from mtpx.trace.rounds import BreakEven, RoundsRow, RoundsTally, RouteCounts
from mtpx.trace.schema import BeliefRecord, EndRecord, Record, RequestRecord, RunRecord

DEEPEST = 1024
"""No head drafts deeper; a larger count is a damaged number."""


class RunSummary(msgspec.Struct):
    """One run. `run` is its own record, absent if the trace has lost it. `verdicts` has one entry an
    arm that was matched with plain runs; where it is empty, `no_verdict` says why. Rounds and acceptance are
    without the `warmup_rounds`; acceptance is over the rounds of MTP requests."""

    run: RunRecord | None
    verdicts: list[Verdict]
    no_verdict: str
    arms: list[ArmTotals]
    requests: list[RequestTotals]
    routes: RouteCounts
    rounds: list[RoundsRow]
    acceptance: list[PositionAcceptance]
    break_even: list[BreakEven]
    beliefs: int
    last_belief: BeliefRecord | None
    warmup_rounds: int
    anomalies: list[Anomaly]


class FileSummary(msgspec.Struct):
    """One trace file: its runs in order, and one sentence for each kind of line that was skipped."""

    path: str
    records: int
    skipped: list[str]
    runs: list[RunSummary]


class Summary(msgspec.Struct):
    """What `mtpx trace report --json` prints; `version` is (major, minor) of this layout."""

    files: list[FileSummary]
    version: tuple[int, int] = (1, 0)


def summarise_files(paths: Iterable[str], margin: float | None = None) -> Summary:
    """`summarise` for each trace in `paths`. Raises `TraceError` as `mtpx.trace.reader.read` does."""
    files = []
    for path in paths:
        report = ReadReport()
        runs = summarise(read(path, report), margin)
        files.append(FileSummary(report.path, report.records, report.warnings(), runs))
    return Summary(files)


def summarise(records: Iterable[Record], margin: float | None = None) -> list[RunSummary]:
    """One summary a run. `margin` is what MTP must gain for the verdict "pays"; if it is not given, the
    run's own, else 0.02. Raises `TraceError` for a margin that is no fraction above -1."""
    if margin is not None and not (math.isfinite(margin) and margin > -1.0):
        raise TraceError(f"the margin must be a number above -1, such as 0.02, got {margin:g}")
    runs: list[RunSummary] = []
    tally: _Run | None = None
    for record in records:
        if tally is None or isinstance(record, RunRecord):
            if tally is not None:
                runs.append(tally.summary(margin))
            tally = _Run(record if isinstance(record, RunRecord) else None)
        tally.add(record)
    if tally is not None:
        runs.append(tally.summary(margin))
    return runs


class _Run:
    def __init__(self, run: RunRecord | None) -> None:
        self.run = run
        self.anomalies = Anomalies()
        self.requests = RequestsTally()
        self.rounds = RoundsTally()
        self.acceptance = AcceptanceTally()
        self.matched: list[Record] = [run] if run else []
        self.beliefs = self.warmup_rounds = 0
        self.last_belief: BeliefRecord | None = None

    def add(self, record: Record) -> None:
        if self.run is None:
            self.anomalies.add("no run record")
        if isinstance(record, Round):
            self._round(record)
        elif isinstance(record, RequestRecord):
            self.requests.begin(record, self.anomalies)
            self.matched.append(record)
        elif isinstance(record, EndRecord):
            self.requests.end(record, self.anomalies)
            self.matched.append(record)
        elif isinstance(record, BeliefRecord):
            self.beliefs += 1
            self.last_belief = record

    def _round(self, round: Round) -> None:
        if not _consistent(round):
            self.anomalies.add("inconsistent counts", round.index)
            return
        for slot in round.slots:
            self.requests.round(round.index, slot, self.anomalies)
        running = [self.requests.running(slot.request) for slot in round.slots]
        if None in running:
            self.anomalies.add("unknown request", round.index)
        known = [request for request in running if request is not None]
        if known and all(request.warmup for request in known):
            self.warmup_rounds += 1
            return
        plain = bool(known) and all(request.mode == "plain" for request in known)
        self.rounds.add(round, "plain" if plain else "mtp", self.anomalies)
        for slot, request in zip(round.slots, running, strict=True):
            if slot.verified and not (request and request.warmup):
                self.acceptance.add(slot)

    def summary(self, margin: float | None) -> RunSummary:
        self.requests.close(self.anomalies)
        self.rounds.note_stalls(self.anomalies)
        positions = self.acceptance.positions()
        verdicts, no_verdict = self._verdicts(margin)
        return RunSummary(
            run=self.run,
            verdicts=verdicts,
            no_verdict=no_verdict,
            arms=self.requests.arms(),
            requests=self.requests.all,
            routes=self.rounds.routes(),
            rounds=self.rounds.rows(),
            acceptance=positions,
            break_even=self.rounds.break_even(positions),
            beliefs=self.beliefs,
            last_belief=self.last_belief,
            warmup_rounds=self.warmup_rounds,
            anomalies=self.anomalies.found(),
        )

    def _verdicts(self, margin: float | None) -> tuple[list[Verdict], str]:
        if margin is None:
            margin = self.run.margin if self.run and self.run.margin is not None else MARGIN
        try:
            found = verdicts(blocks(self.matched), margin)
        except MtpxError as error:
            return [], str(error)
        return found, "" if found else NO_PLAIN


def _consistent(round: Round) -> bool:
    """Whether a round's counts can be: anything else is a damaged record."""
    return (
        bool(round.slots)
        and round.index >= 0
        and 0 <= round.depth <= DEEPEST
        and all(
            0 <= slot.accepted <= slot.verified <= slot.drafted <= round.depth
            and 0 <= slot.committed <= slot.accepted + 1
            for slot in round.slots
        )
    )
