"""What a bench writes about itself and its runs into a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import msgspec

from mtpx.backend import EngineInfo
from mtpx.bench.blocks import CUT
from mtpx.bench.design import PLAIN, Arm, Design, PlannedBlock
from mtpx.bench.learning import PROMPTS
from mtpx.bench.timed import Task, TimedRun
from mtpx.bench.verdict import MARGIN, check_margin
from mtpx.energy import Meter, NoMeter
from mtpx.errors import BenchError
from mtpx.policy import DepthPolicy, FixedDepth
from mtpx.policy.registry import PolicyOptions
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.trace.ends import token_digest
from mtpx.trace.runs import run_record
from mtpx.trace.schema import EndRecord, Record, RequestRecord, RunRecord

GUARD = 5.0
"""Throttling costs a factor of two; beyond this one the machine was doing something else."""


FEWEST_TOKENS = 16
"""A smaller budget is mostly first round, the end of prefill and the clock's own grain."""


class BenchOptions(msgspec.Struct, frozen=True):
    """How every run of a bench is made. Session reuse is always off.

    `max_tokens`: token budget of a run; `margin`: what MTP must gain to pay; `guard`: how many times
    its expected duration a run may take; `command` is what the trace says it was; `cold`: a learning
    policy starts every run from nothing; `policy`: how the arm of that policy is set up.

    Raises `BenchError` for a margin, a guard or a token budget nothing can be done with.
    """

    max_tokens: int = 64
    sampling: Sampling = Sampling()
    ignore_eos: bool = False
    margin: float = MARGIN
    guard: float = GUARD
    command: str = ""
    cold: bool = False
    policy: PolicyOptions | None = None

    def __post_init__(self) -> None:
        check_margin(self.margin)
        if self.max_tokens < FEWEST_TOKENS:
            raise BenchError(
                f"--max-tokens must be {FEWEST_TOKENS} or more for a rate worth the name, "
                f"got {self.max_tokens}"
            )
        if not self.guard > 1.0:
            raise BenchError(f"the guard must be a factor above 1, got {self.guard:g}")


class ArmRate(msgspec.Struct, frozen=True, omit_defaults=True):
    """One arm's delivered speed: Σtokens / Σtime over its timed runs in tokens/s, the median time to
    the first token in ms, the drafts its runs verified and how many stood, committed tokens a round. For
    plain arms, GB of weights read a second (absent where an engine does not say what a step reads)."""

    arm: str
    runs: int
    tokens_per_s: float | None = None
    ttft_ms: float | None = None
    verified: int = 0
    accepted: int = 0
    tokens_per_round: float | None = None
    weights_gb_s: float | None = None


class Drafted(msgspec.Struct):
    """What an arm's timed rounds did with drafts."""

    rounds: int = 0
    committed: int = 0
    verified: int = 0
    accepted: int = 0

    def add(self, rounds: Iterable[Round]) -> None:
        for round in rounds:
            self.rounds += 1
            self.committed += round.committed
            self.verified += sum(slot.verified for slot in round.slots)
            self.accepted += sum(slot.accepted for slot in round.slots)


def bench_record(
    info: EngineInfo,
    design: Design,
    options: BenchOptions,
    policies: Mapping[str, DepthPolicy],
    meter: Meter | NoMeter | None = None,
) -> RunRecord:
    """The record that opens a bench's trace; the whole design is in it. `policies` by their arm's name."""
    parameters: dict[str, Any] = {
        "depths": [arm.depth for arm in design.arms if not arm.policy],
    }
    start = "cold"
    if not options.cold:
        start = f"learned on {len(PROMPTS)} prompts outside the suites, then from block to block"
    for name, policy in policies.items():
        learns = {"start": start} if policy.state() else {}
        parameters[name] = {"policy": policy.name, **learns, **policy.parameters()}
    return msgspec.structs.replace(
        run_record(info, FixedDepth(0), command=options.command, meter=meter),
        policy="bench",
        policy_parameters=parameters,
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
    precision: str = "",
) -> RequestRecord:
    """The record of one run's request; without a block it is a warm-up of the whole bench. `precision`:
    another one than the bench's."""
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
        depth=None if arm.policy else arm.depth,
        pair=block.pair if block else None,
        suite=block.suite if block else "",
        prompt=block.prompt if block else "",
        place=place,
        warmup=warmup,
        ignore_eos=task.ignore_eos,
        precision=precision,
    )


def arm_rates(
    records: Iterable[Record],
    drafted: Mapping[str, Drafted] | None = None,
    step_bytes: Mapping[str, int] | None = None,
) -> list[ArmRate]:
    """Every arm's speed over its timed, uncut runs; `drafted` by the arm's name. `step_bytes`: bytes of
    weights that a step of the plain arms reads, which come first, in this order."""
    arms: dict[int, str] = {}
    ends: dict[str, list[EndRecord]] = {}
    for record in records:
        if isinstance(record, RequestRecord) and not record.warmup:
            arms[record.id] = record.arm
        elif isinstance(record, EndRecord) and record.request in arms and record.stop not in CUT:
            ends.setdefault(arms[record.request], []).append(record)
    drafted, step_bytes = drafted or {}, step_bytes or {}
    order = [PLAIN, *step_bytes]
    order += sorted(ends.keys() - set(order))
    return [
        _arm_rate(arm, ends[arm], drafted.get(arm, Drafted()), step_bytes.get(arm, 0))
        for arm in dict.fromkeys(order)
        if arm in ends
    ]


def _arm_rate(arm: str, ends: list[EndRecord], drafted: Drafted, step_bytes: int) -> ArmRate:
    rated = [end for end in ends if end.rate is not None]
    seconds = sum(end.decode_s or 0.0 for end in rated)
    waits = [end.ttft_ms for end in ends if end.ttft_ms is not None]
    speed = sum(end.rated_tokens for end in rated) / seconds if seconds else None
    return ArmRate(
        arm=arm,
        runs=len(ends),
        tokens_per_s=speed,
        ttft_ms=median(waits) if waits else None,
        verified=drafted.verified,
        accepted=drafted.accepted,
        tokens_per_round=drafted.committed / drafted.rounds if drafted.rounds else None,
        weights_gb_s=speed * step_bytes / 1e9 if speed and step_bytes else None,
    )
