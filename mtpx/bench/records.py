"""What a bench writes about itself and its runs into a trace."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from mtpx.backend import EngineInfo
from mtpx.bench.blocks import CUT
from mtpx.bench.design import Arm, Design, PlannedBlock
from mtpx.bench.timed import Task, TimedRun
from mtpx.bench.verdict import MARGIN, check_margin
from mtpx.errors import BenchError
from mtpx.policy import FixedDepth
from mtpx.sampling import Sampling
from mtpx.trace.ends import token_digest
from mtpx.trace.runs import run_record
from mtpx.trace.schema import EndRecord, Record, RequestRecord, RunRecord

GUARD = 5.0
"""Throttling costs a factor of two; beyond this one the machine was doing something else."""


class BenchOptions(msgspec.Struct, frozen=True):
    """How every run of a bench is made. Session reuse is always off.

    `max_tokens`: token budget of a run; `margin`: what MTP must gain to pay; `guard`: how many times
    its expected duration a run may take; `command` is what the trace says it was.

    Raises `BenchError` for a margin or a guard nothing can be done with.
    """

    max_tokens: int = 64
    sampling: Sampling = Sampling()
    ignore_eos: bool = False
    margin: float = MARGIN
    guard: float = GUARD
    command: str = ""

    def __post_init__(self) -> None:
        check_margin(self.margin)
        if not self.guard > 1.0:
            raise BenchError(f"the guard must be a factor above 1, got {self.guard:g}")


class ArmRate(msgspec.Struct, frozen=True, omit_defaults=True):
    """One arm's delivered speed: Σtokens / Σtime over its timed runs in tokens/s, the median time to
    the first token in ms."""

    arm: str
    runs: int
    tokens_per_s: float | None = None
    ttft_ms: float | None = None


def bench_record(info: EngineInfo, design: Design, options: BenchOptions) -> RunRecord:
    """The record that opens a bench's trace; the whole design is in it."""
    deepest = max(arm.depth for arm in design.arms)
    return msgspec.structs.replace(
        run_record(info, FixedDepth(deepest), command=options.command),
        policy_parameters={"depths": [arm.depth for arm in design.arms]},
        margin=options.margin,
        design=msgspec.to_builtins(design),
    )


def request_record(
    request: int,
    task: Task,
    arm: Arm,
    run: TimedRun,
    *,
    block: PlannedBlock | None = None,
    place: int | None = None,
    warmup: bool = False,
) -> RequestRecord:
    """The record of one run's request; without a block it is a warm-up of the whole bench."""
    return RequestRecord(
        id=request,
        mode=arm.mode,
        prompt_tokens=len(task.tokens),
        prompt_sha256=token_digest(task.tokens),
        max_tokens=task.budget,
        sampling=task.sampling,
        seed=task.seed,
        prefill_ms=run.prefill_ms,
        arm=arm.name,
        depth=arm.depth,
        pair=block.pair if block else None,
        suite=block.suite if block else "",
        prompt=block.prompt if block else "",
        place=place,
        warmup=warmup,
        ignore_eos=task.ignore_eos,
    )


def arm_rates(records: Iterable[Record]) -> list[ArmRate]:
    """Every arm's speed over its timed, uncut runs."""
    arms: dict[int, str] = {}
    ends: dict[str, list[EndRecord]] = {}
    for record in records:
        if isinstance(record, RequestRecord) and not record.warmup:
            arms[record.id] = record.arm
        elif isinstance(record, EndRecord) and record.request in arms and record.stop not in CUT:
            ends.setdefault(arms[record.request], []).append(record)
    return [_arm_rate(arm, found) for arm, found in sorted(ends.items())]


def _arm_rate(arm: str, ends: list[EndRecord]) -> ArmRate:
    rated = [end for end in ends if end.rate is not None]
    seconds = sum(end.decode_s or 0.0 for end in rated)
    waits = [end.ttft_ms for end in ends if end.ttft_ms is not None]
    return ArmRate(
        arm=arm,
        runs=len(ends),
        tokens_per_s=sum(end.rated_tokens for end in rated) / seconds if seconds else None,
        ttft_ms=median(waits) if waits else None,
    )
