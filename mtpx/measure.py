"""Measuring what a round costs here, by width and depth: the planner's cost table.

Every cell is timed on the loop that will run later, in the same text, at the same context: after each
block the sequences are rewound. Blocks of all cells take turns, forwards and backwards, so that a machine
that slows down slows all of them. A block's first rounds (their shape has just changed) and every
round that compiled something are not counted. A cell is the median of what remains; one with
too little left is left out, with the reason, and so is what lies behind it: a table has no holes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from mtpx.backend import Clock, FloatArray, Slot
from mtpx.bench.models import BenchModel
from mtpx.bench.timed import settled_heap
from mtpx.decode import Request, decode
from mtpx.energy import Energy, Meter
from mtpx.errors import MtpxError, PolicyError
from mtpx.measure_prompts import FILLER
from mtpx.policy import FixedDepth
from mtpx.policy.table import Cell, CostTable, LeftOut, TableKey, bucket_start, context_bucket
from mtpx.round import Round
from mtpx.sampling import Sampling

CONTEXTS = (512, 4096)
"""Tokens of context measured unless told otherwise: the ends of the first two buckets."""

SETTLE = 2
"""Rounds of a block that are not counted: the first changes the shape, the second flushes what the
head's cache is behind."""

ROUNDS, REPEATS = 8, 4
"""Rounds counted of a block, and blocks of a cell."""

FEWEST = 12
"""Rounds under which a cell is left out: its median would rest on one or two blocks."""

SHORTEST_WINDOW_S = 0.5
"""Where energy is measured a block lasts this long at least: power sensors have news every 0.1 s."""

MOST_ROUNDS = 64
"""Rounds of a block at most, whatever the sensor wants."""

WORST_ENERGY_ERROR = 0.1
"""Relative error of a cell's joules above which no joules are better."""

PREFILL_CHUNK = 256


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How much is measured: rounds counted a block, blocks a cell."""

    rounds: int = ROUNDS
    repeats: int = REPEATS


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` blocks, and what is running."""

    done: int
    total: int
    now: str


Report = Callable[[Progress], None]


@dataclass(slots=True)
class _Seen:
    """What was timed of one cell."""

    ms: list[float] = field(default_factory=list)
    draft_ms: list[float] = field(default_factory=list)
    compiled: int = 0
    short: int = 0
    energies: list[tuple[Energy, int]] = field(default_factory=list)
    no_energy: str = ""
    failed: str = ""


class _Depth(FixedDepth):
    """A fixed depth; where the engine does not time the head's steps by itself, the moment its
    confidences have arrived is when they are done."""

    def __init__(self, depth: int, clock: Clock, split: bool) -> None:
        super().__init__(depth)
        self.wants_confidence = split and depth > 0
        self._clock = clock
        self.drafted_ns: int | None = None

    def verify(self, confidence: FloatArray) -> list[int]:
        self.drafted_ns = self._clock()
        return super().verify(confidence)

    def draft_ms(self, round: Round) -> float | None:
        """What drafting took in the round just made."""
        if not self.wants_confidence:
            return round.draft_ms if self.depth else 0.0
        if self.drafted_ns is None:
            return None
        return (self.drafted_ns - round.start_ns) / 1e6 - (round.host_ms or 0.0)


def measure_table(
    model: BenchModel,
    context: int,
    depth: int,
    *,
    widths: Sequence[int] = (1,),
    options: MeasureOptions | None = None,
    meter: Meter | None = None,
    no_meter: str = "",
    clock: Clock = time.perf_counter_ns,
    progress: Report = lambda progress: None,
) -> CostTable:
    """The cost table of `model` at a context of `context` tokens: depths 0..`depth` at `widths`.

    `meter` adds joules; without one `no_meter` is the reason. `clock` in ns. Nothing is compiled in a
    counted round. Raises `PolicyError` where nothing can be measured: a depth the head does not
    have, a context that does not fit or leaves no room, depth 0 without enough clean rounds.
    """
    found = _Measurement(
        model, context, depth, widths, options or MeasureOptions(), clock, progress
    )
    found.meter, found.no_meter = meter, no_meter
    with settled_heap():
        return found.table()


def blocks_of(depth: int, widths: Sequence[int], options: MeasureOptions | None = None) -> int:
    """How many blocks `measure_table` runs for one context."""
    return (depth + 1) * len(widths) * ((options or MeasureOptions()).repeats + 1)


class _Measurement:
    def __init__(
        self,
        model: BenchModel,
        context: int,
        depth: int,
        widths: Sequence[int],
        options: MeasureOptions,
        clock: Clock,
        progress: Report,
    ) -> None:
        self.model, self.engine = model, model.engine
        self.options, self.clock, self.progress = options, clock, progress
        self.widths = sorted(set(widths))
        self.cells = [(n, k) for n in self.widths for k in range(depth + 1)]
        self.seen = {cell: _Seen() for cell in self.cells}
        self.meter: Meter | None = None
        self.no_meter = ""
        self.split = False
        self._check(context, depth)
        self.context, self.depth = context, depth
        self.most_rounds = max(options.rounds, MOST_ROUNDS)
        self.done, self.total = 0, blocks_of(depth, self.widths, options)
        room = (depth + 1) * (SETTLE + options.rounds) + 1
        self.start = context - room
        if self.start < bucket_start(context_bucket(context)):
            raise PolicyError(
                f"a context of {context} tokens leaves no room to measure depth {depth}: "
                f"{room} tokens are decoded in a block; give a longer context or fewer depths"
            )

    def _check(self, context: int, depth: int) -> None:
        info, name = self.engine.info, self.model.pack.name
        if depth > info.head_depth_limit:
            raise PolicyError(
                f"the head of {name} drafts up to {info.head_depth_limit} tokens a round, asked for "
                f"depth {depth}"
                if info.head_depth_limit
                else f"{name} has no MTP head, so there is no depth to choose and nothing to measure"
            )
        if depth < 1:
            raise PolicyError("a cost table needs depth 1 at least: there is nothing to choose")
        if not self.widths or self.widths[0] < 1:
            raise PolicyError("widths are 1 or more")
        if context > info.context_limit:
            raise PolicyError(
                f"a context of {context} tokens does not fit into the {info.context_limit} that "
                f"{name} was loaded with"
            )
        if self.options.rounds < 1 or self.options.repeats < 1:
            raise PolicyError("rounds and repeats are 1 or more")

    # -- timing --------------------------------------------------------------------------------

    def table(self) -> CostTable:
        with ExitStack() as stack:
            slots = self._open(stack, max(self.widths))
            self.engine.warm([[k + 1] * n for n, k in self.cells])
            for repeat in range(-1, self.options.repeats):
                # There and back: what drifts steadily weighs on every cell alike.
                for n, k in self.cells if repeat % 2 else reversed(self.cells):
                    now = f"context {self.context}, width {n}, depth {k}"
                    self._tell("warming up" if repeat < 0 else now)
                    self.done += 1
                    if self.seen[n, k].failed:
                        continue
                    try:
                        self._block(slots[:n], n, k, counted=repeat >= 0)
                    except MtpxError as error:
                        self.seen[n, k].failed = str(error)
                        stack.pop_all().close()
                        slots = self._open(stack, max(self.widths))
        return self._judge()

    def _tell(self, now: str) -> None:
        self.progress(Progress(self.done, self.total, now))

    def _open(self, stack: ExitStack, width: int) -> list[Slot]:
        tokens = self._text(self.start)
        slots = []
        for request in range(width):
            slot = self.engine.open(tokens, Sampling(), 0, request=request)
            stack.callback(slot.close)
            while not self.engine.prefill(slot, PREFILL_CHUNK):
                self._tell(f"reading {self.start} tokens of context")
            slots.append(slot)
        return slots

    def _text(self, length: int) -> list[int]:
        piece = list(self.model.encode(FILLER))
        return (piece * (length // len(piece) + 1))[:length]

    def _block(self, slots: Sequence[Slot], n: int, k: int, *, counted: bool) -> None:
        """Some rounds at one width and depth, then back to where they began."""
        seen = self.seen[n, k]
        policy = _Depth(k, self.clock, self.split)
        budget = (k + 1) * (SETTLE + self.most_rounds + 1)
        requests = [Request(i, slot, Sampling(), budget) for i, slot in enumerate(slots)]
        rounds = 0
        with ExitStack() as stack:
            window = None
            began = 0
            for round in decode(self.engine, policy, requests, clock=self.clock):
                rounds += 1
                if rounds == SETTLE and counted and self.meter is not None:
                    window = stack.enter_context(self.meter.window())
                if rounds == SETTLE:
                    began = self.clock()
                if rounds <= SETTLE:
                    self.split |= k > 0 and round.draft_ms is None
                    continue
                if counted:
                    self._count(seen, policy, round)
                if self._enough(rounds - SETTLE, began, window is not None, slots):
                    for request in requests:
                        request.stop = "stop"
        if window is not None:
            if window.energy is not None:
                seen.energies.append((window.energy, rounds - SETTLE))
            else:
                seen.no_energy = window.failed or "the energy sensor told nothing new in a block"
        for slot in slots:
            slot.rewind(self.start)

    def _enough(self, rounds: int, began: int, metered: bool, slots: Sequence[Slot]) -> bool:
        if rounds < self.options.rounds:
            return False
        if not metered or rounds >= self.most_rounds:
            return True
        room = self.context - max(len(slot.tokens) for slot in slots)
        return (self.clock() - began) / 1e9 >= SHORTEST_WINDOW_S or room < self.depth + 1

    def _count(self, seen: _Seen, policy: _Depth, round: Round) -> None:
        draft_ms = policy.draft_ms(round)
        if round.compiled_now:
            seen.compiled += 1
        elif any(slot.verified != policy.depth for slot in round.slots) or draft_ms is None:
            seen.short += 1
        else:
            seen.ms.append(round.round_ms)
            seen.draft_ms.append(draft_ms)

    # -- judging -------------------------------------------------------------------------------

    def _judge(self) -> CostTable:
        left_out: list[LeftOut] = []
        whole: dict[int, list[Cell]] = {}
        for n in self.widths:
            row: list[Cell] = []
            for k in range(self.depth + 1):
                cell, reason = self._cell(n, k)
                if cell is None:
                    left_out.append(LeftOut(n, k, reason))
                elif len(row) == k:
                    row.append(cell)
                else:
                    left_out.append(LeftOut(n, k, f"depth {len(row)} of this width is missing"))
            whole[n] = row
        whole = {n: row for n, row in whole.items() if row}
        if not whole:
            raise PolicyError(f"nothing could be measured: {left_out[0].reason}")
        common = min(len(row) for row in whole.values())
        for n, row in whole.items():
            left_out += [
                LeftOut(n, cell.k, f"depth {common} of another width is missing")
                for cell in row[common:]
            ]
        cells = [cell for row in whole.values() for cell in row[:common]]
        reason, rail = self._no_joules(cells)
        if reason:
            cells = [_without_joules(cell) for cell in cells]
        about = {
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "contexts": f"{self.start} to {self.context} tokens",
            "ms": "medians of rounds in interleaved blocks; p10 and p90 are of whole rounds",
            "draft_ms": "timed after a synchronisation"
            if self.split
            else "the engine's own timing",
            "joules": reason or "split between draft and verify by time",
        }
        if self.meter is not None and self.meter.idle_w is not None:
            about["idle"] = f"{self.meter.idle_w:.2f} W on the rail when nothing ran"
        key = TableKey.of(self.engine.info, self.context)
        return CostTable(key, tuple(cells), tuple(left_out), "" if reason else rail, about)

    def _cell(self, n: int, k: int) -> tuple[Cell | None, str]:
        seen = self.seen[n, k]
        if seen.failed:
            return None, seen.failed
        if len(seen.ms) < min(FEWEST, self.options.rounds * self.options.repeats):
            why = f"only {len(seen.ms)} clean full rounds"
            if seen.compiled:
                why += f"; {seen.compiled} compiled something"
            if seen.short:
                why += f"; {seen.short} verified fewer drafts"
            return None, why
        p10, median, p90 = (float(x) for x in np.percentile(seen.ms, [10, 50, 90]))
        draft = float(np.median(seen.draft_ms))
        verify = median - draft
        if not (0.0 < verify < math.inf and (draft > 0.0 or k == 0)):
            return (
                None,
                f"the clock is too coarse: {median:g} ms a round, {draft:g} ms of it drafting",
            )
        verify_j = draft_j = None
        if seen.energies and not seen.no_energy:
            joules = sum(energy.joules for energy, _ in seen.energies)
            joules /= sum(rounds for _, rounds in seen.energies)
            verify_j, draft_j = joules * verify / median, joules * draft / median
        steps = len(seen.ms)
        return Cell(n, k, verify, draft, verify_j, draft_j, steps, p10, p90), ""

    def _no_joules(self, cells: Sequence[Cell]) -> tuple[str, str]:
        """("", the rail), or why there are no joules: the column is there as a whole or not at all."""
        if self.meter is None:
            return f"absent: {self.no_meter or 'no energy meter was asked for'}", ""
        for cell in cells:
            seen = self.seen[cell.n, cell.k]
            where = f"width {cell.n}, depth {cell.k}"
            if cell.verify_j is None:
                why = seen.no_energy or "no block was metered"
                return f"absent: {why} ({where})", ""
            # Where a sensor's step falls in one block says nothing of the next: errors add as squares.
            error = math.hypot(*(energy.error_j for energy, _ in seen.energies))
            total = sum(energy.joules for energy, _ in seen.energies)
            if error > WORST_ENERGY_ERROR * total:
                return (
                    f"absent: the sensor is too coarse, {error / total:.0%} at {where}; "
                    "more repeats would help"
                ), ""
        return "", self.meter.rail


def _without_joules(cell: Cell) -> Cell:
    import msgspec

    return msgspec.structs.replace(cell, verify_j=None, draft_j=None)
