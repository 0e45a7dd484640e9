"""What a target forward over several rows costs: milliseconds a round, and in rounds of one row.

A verified draft is a row more. Where eight rows cost what one does, a head pays at modest acceptance;
where every row costs a third of a round, it hardly can. That differs by precision, route and machine.

Blocks of every number of rows, and of every engine held at once, take turns, there and back, at the same
place of the same text. One row is a plain round; of a round with drafts the verification is timed, not
the head. A block's first round has changed the shape and is not counted, nor is one that compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from statistics import median

import msgspec
import numpy as np

from mtpx.backend import Clock, Engine, Slot
from mtpx.bench.models import BenchModel
from mtpx.bench.timed import settled_heap
from mtpx.errors import BackendError, BenchError
from mtpx.measure_prompts import FILLER
from mtpx.precision import PRECISIONS, TIERS
from mtpx.sampling import Sampling

CONTEXT = 256
"""Tokens before the first timed row: a short chat's."""

SETTLE, ROUNDS = 1, 4
"""Rounds of a block that are not counted, and that are."""

REPEATS = 6
"""Blocks of a cell: the least and the greatest of six ratios hold their median with 97 % (1 - 2 / 2⁶)."""

PREFILL_CHUNK = 256


class Setup(msgspec.Struct, frozen=True):
    """What an engine is loaded as."""

    precision: str
    tier: str
    compiled: bool = False


class Ratio(msgspec.Struct, frozen=True):
    """Of two block medians of the same repeat: the median over repeats, the least, the greatest."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> Ratio:
        found = [a / b for a, b in zip(above, below, strict=True)]
        return cls(median(found), min(found), max(found))


class RowsCell(msgspec.Struct, frozen=True):
    """A target forward over `rows` rows: `ms` is the median of `rounds` rounds, `relative` to one row."""

    rows: int
    ms: float
    p10_ms: float
    p90_ms: float
    relative: Ratio
    rounds: int


class RowsArm(msgspec.Struct, frozen=True):
    """The curve of one precision, tier and route."""

    precision: str
    tier: str
    route: str
    cells: list[RowsCell]


class TierPrice(msgspec.Struct, frozen=True):
    """A plain round of the row-invariant tier, in plain rounds of the standard one."""

    precision: str
    route: str
    price: Ratio


class RowsResult(msgspec.Struct, frozen=True):
    """`left_out`: what could not be measured, and why, in sentences."""

    pack: str
    device: str
    context: int
    arms: list[RowsArm]
    prices: list[TierPrice]
    left_out: list[str]


Load = Callable[[Setup], AbstractContextManager[BenchModel]]
Report = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class RowsOptions:
    """Rows 1..`most`; `precision` and `tier` as asked for, "auto" being all there are; `compiled`: the
    compiled route beside the eager one."""

    most: int
    precision: str = "auto"
    tier: str = "auto"
    compiled: bool = False
    repeats: int = REPEATS


def bench_rows(
    load: Load,
    options: RowsOptions,
    *,
    clock: Clock | None = None,
    progress: Report = lambda done, total, now: None,
) -> RowsResult:
    """Measure every precision that `load` gives, one after the other; its tiers and routes side by side.

    Raises `BackendError` where none can be had, `BenchError` where the context leaves no room.
    """
    if options.most < 1 or options.repeats < 1:
        raise BenchError("rows and repeats are 1 or more")
    precisions = PRECISIONS if options.precision == "auto" else (options.precision,)
    arms: list[RowsArm] = []
    prices: list[TierPrice] = []
    left_out: list[str] = []
    refused: list[BackendError] = []
    about = ("", "", 0)
    for number, precision in enumerate(precisions):

        def show(share: float, now: str, number: int = number, precision: str = precision) -> None:
            done = round(1000 * (number + share))
            progress(done, 1000 * len(precisions), f"{precision}: {now}")

        show(0.0, "loading")
        with ExitStack() as stack:
            try:
                held = _loaded(stack, load, precision, options, left_out)
            except BackendError as error:
                refused.append(error)
                left_out.append(f"{precision}: {error}")
                continue
            found = _Measurement(held, options, clock or time.perf_counter_ns, show)
            with settled_heap():
                found.run()
            arms += found.arms()
            prices += found.prices()
            left_out += found.left_out
            info = held[0].model.engine.info
            about = (held[0].model.pack.name, info.device, found.start)
    if not arms:
        raise refused[0]
    return RowsResult(*about, arms, prices, left_out)


@dataclass(slots=True)
class _Held:
    """An engine with a slot at the place where rows are timed; `blocks[rows]` the rounds' ms, a list a
    repeat."""

    setup: Setup
    model: BenchModel
    route: str
    slot: Slot | None = None
    blocks: dict[int, list[list[float]]] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        return self.model.engine

    @property
    def name(self) -> str:
        return f"{self.setup.precision}, {self.setup.tier}, {self.route}"

    def medians(self, rows: int) -> list[float]:
        return [median(block) for block in self.blocks[rows]]


def _loaded(
    stack: ExitStack, load: Load, precision: str, options: RowsOptions, left_out: list[str]
) -> list[_Held]:
    """Every tier and route of a precision; the standard tier, or the one asked for, has to be there."""
    held: list[_Held] = []
    for tier in TIERS if options.tier == "auto" else (options.tier,):
        for compiled in (False, True) if options.compiled else (False,):
            setup = Setup(precision, tier, compiled)
            try:
                model = stack.enter_context(load(setup))
            except BackendError as error:
                if not held:
                    raise
                left_out.append(f"{precision}, {tier}: {error}")
                break
            route = model.engine.route([1]).kind
            if compiled and route != "compiled":
                why = model.engine.info.details.get("compile", "this backend has no such route")
                if why == "not made":
                    why = f"not made yet; mtpx warm --precision {precision} --tier {tier} makes it"
                left_out.append(f"{precision}, {tier}, compiled: {why}")
                continue
            held.append(_Held(setup, model, route))
    return held


class _Measurement:
    def __init__(
        self,
        held: Sequence[_Held],
        options: RowsOptions,
        clock: Clock,
        show: Callable[[float, str], None],
    ) -> None:
        self.held, self.options, self.clock, self.show = held, options, clock, show
        self.left_out: list[str] = []
        info = held[0].engine.info
        self.most = min(options.most, info.head_depth_limit + 1)
        if self.most < options.most:
            limit = info.head_depth_limit
            self.left_out.append(
                f"{held[0].setup.precision}, more than {self.most} row{'s' if limit else ''}: "
                + (f"the head drafts up to {limit} tokens a round" if limit else "there is no head")
            )
        room = self.most * (SETTLE + ROUNDS) + 1
        self.start = min(CONTEXT, info.context_limit - room)
        if self.start < 1:
            raise BenchError(
                f"a context of {info.context_limit} tokens leaves no room to time {self.most} rows: "
                f"{room} tokens are decoded in a block; give a longer --context or fewer --rows"
            )

    def run(self) -> None:
        cells = [(held, rows) for held in self.held for rows in range(1, self.most + 1)]
        total = len(cells) * (self.options.repeats + 1)
        done = 0
        with ExitStack() as stack:
            for held in self.held:
                self._open(stack, held)
            for repeat in range(-1, self.options.repeats):
                # There and back: what drifts steadily weighs on every cell alike.
                for held, rows in cells if repeat % 2 else reversed(cells):
                    self.show(done / total, f"{held.setup.tier}, {held.route}, {rows} rows")
                    done += 1
                    block = self._block(held, rows)
                    if repeat >= 0:
                        held.blocks.setdefault(rows, []).append(block)

    def _open(self, stack: ExitStack, held: _Held) -> None:
        piece = list(held.model.encode(FILLER))
        tokens = (piece * (self.start // len(piece) + 1))[: self.start]
        head = held.engine.info.head_depth_limit > 0
        held.slot = held.engine.open(tokens, Sampling(), 0, head=head)
        stack.callback(held.slot.close)
        while not held.engine.prefill(held.slot, PREFILL_CHUNK):
            self.show(0.0, "reading the context")
        held.engine.warm([[rows] for rows in range(1, self.most + 1)])

    def _block(self, held: _Held, rows: int) -> list[float]:
        """ms of the rounds that count, then back to where they began."""
        slot, ms = held.slot, []
        assert slot is not None
        for number in range(SETTLE + ROUNDS):
            took = self._round(held, slot, rows)
            if number >= SETTLE and took is not None:
                ms.append(took)
        slot.rewind(self.start)
        return ms

    def _round(self, held: _Held, slot: Slot, rows: int) -> float | None:
        """ms of one target forward; `None` where it compiled something, had fewer drafts, ran by
        another route, or was too short for the clock."""
        engine, short = held.engine, False
        if rows == 1:
            start = self.clock()
            (outcome,) = engine.plain([slot])
        else:
            drafts = engine.propose([slot], [rows - 1])
            # Reading something of them waits for the head, which is not to be timed.
            short = bool(np.isfinite(drafts.confidence[0]).sum() < rows - 1)
            start = self.clock()
            (outcome,) = engine.verify([slot], drafts, drafts.counts)
        took = (self.clock() - start) / 1e6
        forward = outcome.forward
        clean = not (short or forward.compiled_now) and forward.route.kind == held.route
        return took if clean and took > 0 else None

    # -- judging -------------------------------------------------------------------------------

    def arms(self) -> list[RowsArm]:
        return [
            RowsArm(held.setup.precision, held.setup.tier, held.route, list(self._cells(held)))
            for held in self.held
        ]

    def _cells(self, held: _Held) -> Iterable[RowsCell]:
        if not all(held.blocks[1]):
            self.left_out.append(f"{held.name}: no clean round of one row to compare with")
            return
        one = held.medians(1)
        for rows, blocks in sorted(held.blocks.items()):
            if not all(blocks):
                self.left_out.append(f"{held.name}, {rows} rows: a block without a clean round")
                continue
            every = [ms for block in blocks for ms in block]
            p10, middle, p90 = (float(x) for x in np.percentile(every, [10, 50, 90]))
            relative = Ratio.of(held.medians(rows), one)
            yield RowsCell(rows, middle, p10, p90, relative, len(every))

    def prices(self) -> list[TierPrice]:
        """For each route that both tiers ran on."""
        plain = {(h.setup.tier, h.route): h for h in self.held if all(h.blocks[1])}
        found = []
        for route in ("eager", "compiled"):
            standard, fixed = (plain.get((tier, route)) for tier in TIERS)
            if standard is not None and fixed is not None:
                price = Ratio.of(fixed.medians(1), standard.medians(1))
                found.append(TierPrice(standard.setup.precision, route, price))
        return found
