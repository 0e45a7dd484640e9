"""One timed run: a prompt, an arm, a clock; everything a trace says about it.

Nothing is written while the clock runs: a run's records are handed over when it is over. The garbage
collector runs before it and not during it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mtpx.backend import Clock, Engine, Slot
from mtpx.bench.design import Arm
from mtpx.decode import Request, decode
from mtpx.errors import MtpxError
from mtpx.policy import DepthPolicy, FixedDepth
from mtpx.reuse import Reused
from mtpx.round import Round
from mtpx.trace.ends import end_record
from mtpx.trace.schema import EndRecord

if TYPE_CHECKING:
    from mtpx.energy import Meter
    from mtpx.sampling import Sampling

PREFILL_CHUNK = 512
"""Prompt tokens computed between two looks at the clock and at Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is the same in both arms of a pair: prompt tokens, sampling, seed, token budget, end ids.
    `ignore_eos` decodes to the budget; what lies past the end is then kept out of the rate."""

    tokens: list[int]
    sampling: Sampling
    seed: int
    budget: int
    end_ids: frozenset[int]
    ignore_eos: bool = False


@dataclass(slots=True)
class TimedRun:
    """What a run left: its rounds, the delivered tokens, its end record, what it took over."""

    end: EndRecord
    rounds: list[Round]
    tokens: list[int]
    prefill_ms: float | None
    seconds: float
    reused: Reused | None = None

    @property
    def compiled(self) -> bool:
        """Whether something was compiled while the clock ran."""
        return any(round.compiled_now for round in self.rounds)


class GuardCut(MtpxError):
    """A run took far longer than it should have."""


@dataclass(slots=True)
class _Stopwatch:
    clock: Clock
    limit_s: float | None
    start: int = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    def seconds(self, at: int | None = None) -> float:
        return ((self.clock() if at is None else at) - self.start) / 1e9

    def check(self) -> None:
        spent = self.seconds()
        if self.limit_s is not None and spent > self.limit_s:
            raise GuardCut(
                f"the run was cut after {spent:.1f} s, where {self.limit_s:.1f} s is the most it "
                "should take; the machine was busy or asleep"
            )


def timed_run(
    engine: Engine,
    task: Task,
    arm: Arm,
    *,
    request: int,
    policy: DepthPolicy | None = None,
    limit_s: float | None = None,
    meter: Meter | None = None,
    session: int = 0,
    reuse: object | None = None,
    keep: Callable[[Slot], None] | None = None,
    clock: Clock = time.perf_counter_ns,
) -> TimedRun:
    """Decode `task` with `policy`, by default at the arm's depth, and time it.

    `request` is the id its records carry; `meter` adds the energy of its rounds. `session` and `reuse` as
    `Engine.open` takes them; `keep` is shown the slot when the run is over. A run over `limit_s`
    seconds is cut (stop "guard"); Ctrl-C stops it (stop "interrupt"); an `MtpxError` ends it (stop
    "error"). All three are told by the end record and raise nothing.
    """
    rounds: list[Round] = []
    arrivals: list[tuple[int, int]] = []
    prefill_ms: float | None = None
    stop, error = "", ""
    decoding: Request | None = None
    reused: Reused | None = None
    policy = policy or FixedDepth(arm.depth)
    window = meter.window() if meter is not None else None
    with _collector_at_rest():
        watch = _Stopwatch(clock, limit_s)
        try:
            slot = engine.open(
                task.tokens,
                task.sampling,
                task.seed,
                end_ids=frozenset() if task.ignore_eos else task.end_ids,
                head=arm.mode == "mtp",
                session=session,
                reuse=reuse,
            )
            try:
                while not engine.prefill(slot, PREFILL_CHUNK):
                    watch.check()
                prefill_ms = watch.seconds() * 1e3
                reused = slot.reused if session or reuse is not None else None
                decoding = Request(request, slot, task.sampling, task.budget)
                with window or nullcontext():
                    for round in decode(engine, policy, [decoding], clock=clock):
                        arrivals.append((clock(), len(decoding.delivered)))
                        rounds.append(round)
                        if window is not None and window.watts is not None:
                            round.energy_j = window.watts * round.round_ms / 1e3
                        watch.check()
                if keep is not None:
                    keep(slot)
            finally:
                slot.close()
        except KeyboardInterrupt:
            stop = "interrupt"
        except GuardCut as cut:
            stop, error = "guard", str(cut)
        except MtpxError as failed:
            stop, error = "error", str(failed)
        seconds = watch.seconds()
    tokens = list(decoding.delivered) if decoding else []
    if not stop:
        stop = (decoding.stop if decoding else None) or "error"
    end = end_record(
        request,
        tokens,
        arrivals,
        stop=stop,
        error=error,
        ignored_ends=task.end_ids if task.ignore_eos else frozenset(),
    )
    if arrivals:
        end.ttft_ms = watch.seconds(arrivals[0][0]) * 1e3
    if window is not None and window.energy is not None:
        end.energy_j = window.energy.joules
    return TimedRun(end, rounds, tokens, prefill_ms, seconds, reused)


@contextmanager
def settled_heap() -> Iterator[None]:
    """Set aside what was allocated so far, so that the collections before every run inside are quick:
    with a tensor library loaded each would otherwise cost a tenth of a second."""
    ours = gc.get_freeze_count() == 0
    gc.collect()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token in which two texts differ (a text that ends early differs at its end);
    `None` if they are equal."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))


CANDIDATES = 20
"""Likeliest tokens looked at to find the two that two texts disagree on."""


def logit_gap(engine: Engine, task: Task, one: Sequence[int], other: Sequence[int]) -> float | None:
    """How far apart the target's logits of the two tokens are where two greedy texts part.

    One plain step on their common prefix: a difference of log-probabilities is a difference of
    logits. `None` where a text ends at that place, one of the two tokens is not among the 20 likeliest, or
    penalties make the raw logits beside the point.
    """
    from msgspec.structs import replace

    at = first_difference(one, other)
    if at is None or at >= min(len(one), len(other)) or task.sampling.penalised:
        return None
    sampling = replace(task.sampling, logprobs=CANDIDATES)
    slot = engine.open([*task.tokens, *one[:at]], sampling, task.seed, head=False)
    try:
        while not engine.prefill(slot, PREFILL_CHUNK):
            pass
        (outcome,) = engine.plain([slot])
    finally:
        slot.close()
    if not outcome.logprobs:
        return None
    delivered = outcome.logprobs[0]
    known = {**dict(delivered.top), delivered.token: delivered.logprob}
    pair = [known.get(one[at]), known.get(other[at])]
    return None if None in pair else abs(known[one[at]] - known[other[at]])
