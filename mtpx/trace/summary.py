"""What a trace says: one pure function from records to a typed result.

The terminal and the JSON output only draw it. Records are taken one at a time and not kept; what
stays is a few numbers a round and a small entry a request. Every run record starts a run of its own;
runs are never pooled.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from mtpx.bench.blocks import blocks
from mtpx.bench.fastest import Fastest, fastest_in
from mtpx.bench.looks import looks_of
from mtpx.bench.verdict import MARGIN, NO_PLAIN, Verdict, verdicts
from mtpx.errors import MtpxError, TraceError
from mtpx.round import Round
from mtpx.trace.acceptance import OutcomesTally, PositionAcceptance, committed_tokens
from mtpx.trace.anomalies import Anomalies, Anomaly
from mtpx.trace.beliefs import BeliefPoint, BeliefsTally
from mtpx.trace.choices import Choice, ChoicesTally, Unsampled
from mtpx.trace.context import ContextRow, ContextTally
from mtpx.trace.hindsight import Hindsight, HindsightTally
from mtpx.trace.reader import ReadReport, read
from mtpx.trace.reliability import ReliabilityRow, ReliabilityTally
from mtpx.trace.requests import ArmTotals, RequestsTally, RequestTotals
from mtpx.trace.rounds import (
    LONGEST_ROUND_MS,
    BreakEven,
    Kind,
    RoundsRow,
    RoundsTally,
    RouteCounts,
    valid,
)
from mtpx.trace.schema import BeliefRecord, EndRecord, Record, RequestRecord, RunRecord
from mtpx.trace.spent import TimePart, time_parts
from mtpx.trace.timeline import Drift, Pace, Stretch, Timeline

DEEPEST = 1024
"""No head drafts deeper; a larger count is a damaged number."""

LAST = 1 << 48
"""A billion years of rounds; a larger index is a damaged number."""


DRIFT = 0.05
"""Rounds that take this much longer at the end of a run than at its beginning are worth a sentence."""


class BlockRatio(msgspec.Struct, frozen=True):
    """A matched block of `arm`: its rate over the plain rate (in the fastest precision where `against` names
    that), absent where it is void (why) or too short."""

    arm: str
    suite: str
    prompt: str
    pair: int
    ratio: float | None
    looped: bool
    void: str
    against: str = ""


class RunSummary(msgspec.Struct):
    """One run. `run` is its own record, absent if the trace has lost it. `verdicts` has one entry an
    arm that was matched with plain runs; where it is empty, `no_verdict` says why. `against_fastest` has one
    an MTP arm against plain decode in the fastest precision, where that ran, else `no_fastest` says why not,
    or that it is the run's own. `blocks` are what they rest on.
    Everything about rounds is without the `warmup_rounds` and without rounds recorded twice; acceptance,
    `timeline`, `choices`, `unsampled` and `hindsight` are over the rounds of MTP requests, `hindsight`
    over those of the most frequent width. `drift` is absent in a short run."""

    run: RunRecord | None
    verdicts: list[Verdict]
    no_verdict: str
    against_fastest: list[Verdict]
    no_fastest: str
    blocks: list[BlockRatio]
    arms: list[ArmTotals]
    requests: list[RequestTotals]
    routes: RouteCounts
    rounds: list[RoundsRow]
    acceptance: list[PositionAcceptance]
    reliability: list[ReliabilityRow]
    break_even: list[BreakEven]
    timeline: list[Stretch]
    choices: list[Choice]
    unsampled: list[Unsampled]
    hindsight: Hindsight | None
    spent: list[TimePart]
    context: list[ContextRow]
    drift: Drift | None
    beliefs: int
    belief_over_time: list[BeliefPoint]
    last_belief: BeliefRecord | None
    warmup_rounds: int
    anomalies: list[Anomaly]

    def fastest(self, arm: str) -> Verdict | None:
        """The verdict on this arm against plain decode in the fastest precision, if there is one."""
        return next((v for v in self.against_fastest if v.arm == arm), None)


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


def summarise_files(
    paths: Iterable[str],
    margin: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """`summarise` for each trace in `paths`; `progress(bytes read, of all)`, file by file. Raises
    `TraceError` as `mtpx.trace.reader.read` does."""
    files = []
    for path in paths:
        report = ReadReport()
        with _collector_paused():
            runs = summarise(read(path, report, progress), margin)
        files.append(FileSummary(report.path, report.records, report.warnings(), runs))
    return Summary(files)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Records hold no cycles: looking for some among millions takes a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
        self.outcomes, self.reliability = OutcomesTally(), ReliabilityTally()
        self.timeline, self.pace = Timeline(), Pace()
        self.choices, self.hindsight = ChoicesTally(), HindsightTally()
        self.context, self.beliefs = ContextTally(), BeliefsTally()
        self.prefill_ms: dict[str, float] = {}
        self.matched: list[Record] = [run] if run else []
        self.paired: set[int] = set()
        self.warmup_rounds = self.mtp_rounds = 0

    def add(self, record: Record) -> None:
        if self.run is None:
            self.anomalies.add("no run record")
        if type(record) is Round:
            self._round(record)
        elif isinstance(record, RequestRecord):
            self._request(record)
        elif isinstance(record, EndRecord):
            self.requests.end(record, self.anomalies)
            if record.request in self.paired:
                self.matched.append(record)
        elif isinstance(record, BeliefRecord):
            self.beliefs.add(record, self.mtp_rounds)

    def _request(self, record: RequestRecord) -> None:
        self.requests.begin(record, self.anomalies)
        if record.pair is None:
            # It matches nothing; a long session has thousands of these.
            self.paired.discard(record.id)
        else:
            self.paired.add(record.id)
            self.matched.append(record)
        ms = record.prefill_ms
        if not record.warmup and ms is not None and 0.0 <= ms <= LONGEST_ROUND_MS:
            mode = _mode("plain" if record.mode == "plain" else "mtp", record.precision)
            self.prefill_ms[mode] = self.prefill_ms.get(mode, 0.0) + ms

    def _round(self, round: Round) -> None:
        anomalies, slots, index = self.anomalies, round.slots, round.index
        if not _consistent(round):
            anomalies.add("inconsistent counts", index)
            return
        running: list[RequestTotals | None] = []
        for slot in slots:
            if not self.requests.follows(index, slot, anomalies):
                return
        plain = warmup = True
        arm = precision = ""
        tokens = 0
        for slot in slots:
            tokens += slot.committed
            request = self.requests.round(slot)
            running.append(request)
            if request is None:
                plain = warmup = False
            else:
                plain = plain and request.mode == "plain"
                warmup = warmup and request.warmup
                arm = arm or request.arm
                precision = precision or request.precision
        if None in running:
            anomalies.add("unknown request", index)
        if warmup:
            self.warmup_rounds += 1
            return
        mode = _mode("plain" if plain else "mtp", precision)
        timed = valid(round)
        if not timed:
            anomalies.add("bad duration", index)
        kind = self.rounds.kind(mode, round)
        kind.add(round, tokens, timed)
        if timed:
            self._timed(round, mode, kind, tokens, arm or mode)
        if plain:
            return
        self.mtp_rounds += 1
        self.timeline.add(round, tokens, round.round_ms if timed else 0.0)
        width = len(slots)
        for slot, request in zip(slots, running, strict=True):
            if request is None or not request.warmup:
                self.outcomes.add(width, slot)
                if slot.confidences:
                    self.reliability.add(slot, slot.confidences)

    def _timed(self, round: Round, mode: str, kind: Kind, tokens: int, arm: str) -> None:
        """A round whose times can be."""
        ms, width = round.round_ms, len(round.slots)
        if mode == "mtp":
            self.choices.add(round.decision, width, round.depth, tokens, ms)
        if round.compiled_now:
            return
        self.pace.add(kind, ms)
        position = round.slots[0].position if width == 1 else max(s.position for s in round.slots)
        if position >= 0:
            self.context.add(mode, position, tokens, ms)
        if mode == "mtp":
            self.hindsight.arm(width, arm, tokens, ms)

    def summary(self, margin: float | None) -> RunSummary:
        self.requests.close(self.anomalies)
        self.rounds.note_stalls(self.anomalies)
        drift = self.pace.drift()
        if drift is not None and drift.change >= DRIFT:
            self.anomalies.say(
                "slowing down",
                drift.rounds,
                f"rounds took {drift.change:.0%} longer at the end of the run than at its beginning "
                "(throttling, other programs, or a growing context)",
            )
        positions = self.outcomes.positions()
        rates = [p.conditional.rate if p.conditional else None for p in positions]
        widths = self.rounds.widths()
        costs = {width: self.rounds.costs(width) for width in widths}

        def rate(width: int, depth: int) -> float | None:
            tokens = committed_tokens(positions, depth)
            known = costs.get(width, {})
            return width * tokens / known[depth] if tokens and depth in known else None

        fastest = self._fastest()
        step_bytes = {"": self.run.plain_step_bytes} if self.run else {}
        if fastest is not None:
            step_bytes[fastest.precision] = fastest.plain_step_bytes
        found, no_verdict, ratios = self._verdicts(margin)
        return RunSummary(
            run=self.run,
            verdicts=[v for v in found if not v.against],
            no_verdict=no_verdict,
            against_fastest=[v for v in found if v.against],
            no_fastest=self._no_fastest(),
            blocks=ratios,
            arms=self.requests.arms(step_bytes),
            requests=self.requests.all,
            routes=self.rounds.routes(),
            rounds=self.rounds.rows(),
            acceptance=positions,
            reliability=self.reliability.rows(),
            break_even=self.rounds.break_even(positions),
            timeline=self.timeline.stretches(),
            choices=self.choices.choices(rate),
            unsampled=self.choices.unsampled(),
            hindsight=(
                self.hindsight.estimate(
                    widths[0], self.outcomes.at(widths[0]), costs[widths[0]], rates
                )
                if widths
                else None
            ),
            spent=time_parts(self._spent()),
            context=self.context.rows(),
            drift=drift,
            beliefs=self.beliefs.count,
            belief_over_time=self.beliefs.points(),
            last_belief=self.beliefs.last,
            warmup_rounds=self.warmup_rounds,
            anomalies=self.anomalies.found(),
        )

    def _spent(self) -> dict[str, dict[str, float]]:
        """ms by mode and part, reading prompts included."""
        parts = self.rounds.spent()
        for mode, ms in self.prefill_ms.items():
            parts.setdefault(mode, {})["prefill"] = ms
        return parts

    def _fastest(self) -> Fastest | None:
        """Absent too where the design is damaged; that is the verdict's to say."""
        with suppress(MtpxError):
            return fastest_in(self.run.design if self.run else None)
        return None

    def _no_fastest(self) -> str:
        design = self.run.design if self.run else None
        return str(design.get("no_fastest", "")) if design else ""

    def _verdicts(self, margin: float | None) -> tuple[list[Verdict], str, list[BlockRatio]]:
        if margin is None:
            margin = self.run.margin if self.run and self.run.margin is not None else MARGIN
        try:
            members = blocks(self.matched)
            found = verdicts(members, margin, looks=looks_of(self.run.design if self.run else None))
        except MtpxError as error:
            return [], str(error), []
        ratios = [
            BlockRatio(
                block.arm,
                block.suite,
                block.prompt,
                block.pair,
                math.exp(block.log_ratio) if block.log_ratio is not None else None,
                block.looped,
                block.void,
                block.against,
            )
            for block in members
        ]
        return found, "" if found else NO_PLAIN, ratios


def _mode(mode: str, precision: str) -> str:
    """Rounds in another precision than the run's are counted by themselves, and price nothing."""
    return f"{mode} in {precision}" if precision else mode


def _consistent(round: Round) -> bool:
    """Whether a round's counts can be: anything else is a damaged record."""
    depth = round.depth
    if not round.slots or not 0 <= round.index < LAST or not 0 <= depth <= DEEPEST:
        return False
    for slot in round.slots:
        if not 0 <= slot.accepted <= slot.verified <= slot.drafted <= depth:
            return False
        if not 0 <= slot.committed <= slot.accepted + 1:
            return False
    return True
