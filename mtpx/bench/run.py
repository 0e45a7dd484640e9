"""Running a design on a loaded model: warm up, time every run, write the trace, judge.

The verdict is taken from the very records the trace holds, by the code that reads a trace, so that a
report of the trace says the same. A run's records are written when the run is over: that is the
trace's loss window here, since a file written while the clock runs would be part of the time.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol

from mtpx.backend import Clock, Engine
from mtpx.bench.blocks import CUT, blocks
from mtpx.bench.compare import comparisons
from mtpx.bench.design import PLAIN_ARM, Arm, Design, PlannedBlock
from mtpx.bench.learning import PROMPTS
from mtpx.bench.looks import look_ends
from mtpx.bench.policies import policy_named
from mtpx.bench.records import (
    BenchOptions,
    Drafted,
    arm_rates,
    bench_record,
    request_record,
)
from mtpx.bench.result import INTERRUPTED, BenchAbout, BenchResult, Progress
from mtpx.bench.suites import BenchPrompt, Message
from mtpx.bench.timed import Task, TimedRun, first_difference, logit_gap, settled_heap, timed_run
from mtpx.bench.verdict import Verdict, verdicts
from mtpx.energy import Meter, NoMeter
from mtpx.errors import BenchError, MtpxError
from mtpx.policy import DepthPolicy
from mtpx.trace.runs import version
from mtpx.trace.schema import BeliefRecord, Record

WARMUPS = 2
"""Runs of every arm before the first timed one: one wakes the machine, one tells its speed."""

MOST_RETRIES = 5
"""A run in which something was compiled is made again, at most this often: an engine that compiles
every time has no steady state to measure."""

GUARD_FLOOR_S = 1.0
"""No run is cut under this, whatever the warm-up predicts: hiccups of a scheduler last that long."""

WARMUP_PROMPT = "Describe in a few plain sentences what a gardener does in each month of the year."


class PackName(Protocol):
    """The part of a pack that a trace names."""

    @property
    def name(self) -> str: ...


class BenchModel(Protocol):
    """What a bench needs of a loaded model. `encode` applies the chat template to messages and takes
    text as it is."""

    @property
    def engine(self) -> Engine: ...

    @property
    def end_ids(self) -> frozenset[int]: ...

    @property
    def pack(self) -> PackName: ...

    # Any: a model may accept more than messages or text.
    def encode(self, content: Any, /) -> list[int]: ...


class _Stopped(Exception):
    """The bench cannot go on; carries the sentence."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """What an arm's warm-up tells of its speed."""

    prefill_s: float
    """Seconds a prompt token."""
    round_s: float
    """Seconds a round."""


def run_bench(
    model: BenchModel,
    design: Design,
    prompts: Sequence[BenchPrompt],
    options: BenchOptions | None = None,
    *,
    write: Callable[[Record], None] = lambda record: None,
    progress: Callable[[Progress], None] = lambda progress: None,
    warn: Callable[[str], None] = lambda sentence: None,
    clock: Clock | None = None,
) -> BenchResult:
    """Run `design` and judge it.

    `write` gets every record of the trace; `progress` is called between runs; `warn` takes a policy's
    remarks, each once. Ctrl-C ends the bench, and so does an error of the engine: what was measured
    until then is reported, without a verdict.

    Raises `BenchError` before anything is timed: a depth the head does not have, a prompt that does
    not fit, an arm whose warm-up fails or never stops compiling; and `PolicyError` for a policy that
    cannot be made here.
    """
    bench = _Bench(model, design, options or BenchOptions(), write, progress, warn, clock)
    with settled_heap():
        return bench.run(prompts)


class _Bench:
    def __init__(
        self,
        model: BenchModel,
        design: Design,
        options: BenchOptions,
        write: Callable[[Record], None],
        report: Callable[[Progress], None],
        warn: Callable[[str], None],
        clock: Clock | None,
    ) -> None:
        self.model, self.engine = model, model.engine
        self.design, self.options = design, options
        self.write, self.report, self._warn = write, report, warn
        self.remarks: set[str] = set()
        # Only a model of `mtpx.load` has looked for one.
        self.meter: Meter | NoMeter | None = getattr(model, "meter", None)
        self.clock = clock or time.perf_counter_ns
        self.kept: list[Record] = []
        self.requests = 0
        self.left = Counter(design.work())
        self.total = self.left.total()
        self.spent: dict[str, list[float]] = {}
        self.pace: dict[str, _Pace] = {}
        self.drafted: dict[str, Drafted] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}

    def run(self, prompts: Sequence[BenchPrompt]) -> BenchResult:
        tasks = self._tasks(prompts)
        stopped = ""
        made = {arm.name: self._fresh(arm) for arm in self.design.arms if arm.policy}
        self._keep(bench_record(self.engine.info, self.design, self.options, made, self.meter))
        try:
            self._warm_up()
            looks = look_ends(len(self.design.blocks), self.design.looks)[:-1]
            for done, block in enumerate(self.design.blocks, 1):
                self._block(block, tasks[block.suite, block.prompt])
                if done in looks and self._decided():
                    break
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        except _Stopped as reason:
            stopped = str(reason)
        step_bytes = self.engine.info.plain_step_bytes
        measured = blocks(self.kept)
        return BenchResult(
            self._about(),
            self.design,
            verdicts(measured, self.options.margin, looks=self.design.looks),
            arm_rates(self.kept, self.drafted, step_bytes),
            stopped,
            comparisons(self.design.arms, measured) if self.design.baseline else [],
        )

    def _verdicts(self) -> list[Verdict]:
        return verdicts(blocks(self.kept), self.options.margin, looks=self.design.looks)

    def _decided(self) -> bool:
        """Whether this look settles it."""
        return all(v.verdict in ("pays", "does not pay") for v in self._verdicts())

    def _about(self) -> BenchAbout:
        info, options = self.engine.info, self.options
        threads = info.details.get("threads", "")
        return BenchAbout(
            pack=self.model.pack.name,
            quantisation=info.quantisation,
            dtype=info.dtype,
            device=info.device,
            backend=info.backend,
            tier=info.tier,
            threads=int(threads) if threads.isdecimal() else None,
            mtpx=version(),
            max_tokens=options.max_tokens,
            temperature=options.sampling.temperature,
            route=self.engine.route([1]).kind,
        )

    # -- before anything is timed ------------------------------------------------------------------

    def _tasks(self, prompts: Sequence[BenchPrompt]) -> dict[tuple[str, str], Task]:
        if self.options.sampling.logprobs is not None:
            raise BenchError(
                "a bench cannot ask for log-probabilities: such a request never drafts"
            )
        for arm in self.design.arms:
            self._check_depth(arm)
        tasks = {(prompt.suite, prompt.id): self._task(prompt) for prompt in prompts}
        for block in self.design.blocks:
            if (block.suite, block.prompt) not in tasks:
                raise BenchError(
                    f"the design uses the prompt {block.suite}/{block.prompt}; give it"
                )
        return tasks

    def _check_depth(self, arm: Arm) -> None:
        name, limit = self.model.pack.name, self.engine.info.head_depth_limit
        if arm.mode == "mtp" and not limit:
            raise BenchError(
                f"{name} has no MTP head, so there is nothing to compare with plain decode"
            )
        if arm.depth > limit:
            raise BenchError(
                f"the head of {name} drafts up to {limit} tokens a round, asked for depth {arm.depth}"
            )

    def _task(self, prompt: BenchPrompt) -> Task:
        tokens = list(self.model.encode(prompt.content))
        limit = self.engine.info.context_limit
        if len(tokens) + self.options.max_tokens > limit:
            raise BenchError(
                f"the prompt {prompt.suite}/{prompt.id} has {len(tokens)} tokens; with "
                f"{self.options.max_tokens} more it does not fit into the context of {limit}"
            )
        return Task(
            tokens,
            self.options.sampling,
            self.design.seed,
            self.options.max_tokens,
            self.model.end_ids,
            self.options.ignore_eos,
        )

    def _warm_up(self) -> None:
        """Compile every shape a run can take, then run every arm until nothing compiles any more."""
        arms = [PLAIN_ARM] if self.design.baseline else []
        arms += self.design.arms
        self._tell("compiling")
        # Near the end of its budget a run verifies fewer drafts than its depth.
        limit = self.engine.info.head_depth_limit
        self.engine.warm([[rows] for rows in range(1, max(a.deepest(limit) for a in arms) + 2)])
        prompt = BenchPrompt("warm-up", "", messages=[Message("user", WARMUP_PROMPT)])
        task = replace(self._task(prompt), ignore_eos=True)
        for arm in arms:
            if arm.policy and not self.options.cold:
                self._learn(arm)
            for _ in range(WARMUPS):
                self._tell(f"warming up {arm.name}")
                run, _ = self._settled(task, arm, None)
                self._keep_run(task, arm, run, warmup=True)
            if run.end.stop == "error":
                raise BenchError(f"the warm-up of {arm.name} failed: {run.end.error}")
            if run.end.stop == "interrupt":
                raise KeyboardInterrupt
            prefill_s = (run.prefill_ms or 0.0) / 1e3
            self.pace[arm.name] = _Pace(
                prefill_s=prefill_s / len(task.tokens),
                round_s=(run.seconds - prefill_s) / max(1, len(run.rounds)),
            )
            self.spent[arm.name] = [run.seconds]

    def _learn(self, arm: Arm) -> None:
        """Let a policy learn on prompts outside the suites; its timed runs then go on from there."""
        policy = self._fresh(arm)
        if not policy.state():
            return  # it has nothing to learn
        for i, text in enumerate(PROMPTS):
            self._tell(f"{arm.name} learns, {i + 1} of {len(PROMPTS)}")
            prompt = BenchPrompt(f"learning-{i}", "", messages=[Message("user", text)])
            task = replace(self._task(prompt), ignore_eos=True)
            run = timed_run(
                self.engine, task, arm, request=self.requests, policy=policy, clock=self.clock
            )
            self._keep_run(task, arm, run, warmup=True)
            if run.end.stop == "error":
                raise BenchError(f"the warm-up of {arm.name} failed: {run.end.error}")
            if run.end.stop == "interrupt":
                raise KeyboardInterrupt
        self.snapshots[arm.name] = policy.state()
        self.write(BeliefRecord(0, policy.name, policy.explain()))

    def _fresh(self, arm: Arm) -> DepthPolicy:
        """The arm's policy as it is made."""
        manifest = getattr(self.model.pack, "manifest", None)
        return policy_named(
            arm.policy,
            self.options.policy,
            info=self.engine.info,
            prior_costs=manifest.prior_costs if manifest else [],
            warn=self._remark,
        )

    def _remark(self, sentence: str) -> None:
        if sentence not in self.remarks:
            self.remarks.add(sentence)
            self._warn(sentence)

    def _policy(self, arm: Arm) -> DepthPolicy | None:
        """A policy as the next run of this arm starts with it; `None`: a fixed depth."""
        if not arm.policy:
            return None
        policy = self._fresh(arm)
        if arm.name in self.snapshots:
            policy.restore(copy.deepcopy(self.snapshots[arm.name]))
        return policy

    # -- the timed runs ----------------------------------------------------------------------------

    def _block(self, block: PlannedBlock, task: Task) -> None:
        # A block's four runs share their seed; blocks do not, so that repeats at a temperature above
        # 0 are not one text measured again.
        task = replace(task, seed=self.design.seed + block.pair)
        first: list[int] | None = None
        after: dict[str, dict[str, Any]] = {}
        for place, arm in enumerate(self.design.runs(block)):
            self._tell(f"{block.suite}/{block.prompt}, {arm.name}")
            run, policy = self._settled(task, arm, self._limit_s(task, arm))
            if first is None:
                first = run.tokens
            elif task.sampling.greedy and run.end.stop not in CUT:
                self._compare(task, first, run)
            self._keep_run(task, arm, run, block=block, place=place)
            self.left[arm.name] -= 1
            self.spent[arm.name].append(run.seconds)
            if run.end.stop == "interrupt":
                raise KeyboardInterrupt
            if run.end.stop == "error":
                raise _Stopped(run.end.error)
            if policy is not None and arm.name in self.snapshots:
                after[arm.name] = policy.state()
        # Both runs of a block begin with what was known before it, since neither may know its text; the
        # next block begins with what this one taught.
        self.snapshots |= after

    def _settled(
        self, task: Task, arm: Arm, limit_s: float | None
    ) -> tuple[TimedRun, DepthPolicy | None]:
        """A run in which nothing was compiled, and the policy it left; runs in which something was are
        kept as warm-ups."""
        for attempt in range(1 + MOST_RETRIES):
            policy = self._policy(arm)
            run = timed_run(
                self.engine,
                task,
                arm,
                request=self.requests,
                policy=policy,
                limit_s=limit_s,
                meter=self.meter if isinstance(self.meter, Meter) else None,
                clock=self.clock,
            )
            if not run.compiled or run.end.stop in CUT:
                return run, policy
            if attempt < MOST_RETRIES:
                self._keep_run(task, arm, run, warmup=True)
        run.end.stop = "error"
        run.end.error = (
            f"{arm.name} compiled something in each of {1 + MOST_RETRIES} runs on the same prompt, so "
            "there is no steady state to measure"
        )
        return run, policy

    def _limit_s(self, task: Task, arm: Arm) -> float:
        """The longest a run may take. The worst case is one token a round."""
        pace = self.pace[arm.name]
        expected = pace.prefill_s * len(task.tokens) + pace.round_s * task.budget
        return max(GUARD_FLOOR_S, self.options.guard * expected)

    def _compare(self, task: Task, first: Sequence[int], run: TimedRun) -> None:
        run.end.differs_at = first_difference(first, run.tokens)
        if run.end.differs_at is not None:
            # The gap explains a difference; failing to explain must not cost the measurement.
            with suppress(MtpxError):
                run.end.differs_gap = logit_gap(self.engine, task, first, run.tokens)

    # -- records -----------------------------------------------------------------------------------

    def _keep_run(
        self,
        task: Task,
        arm: Arm,
        run: TimedRun,
        *,
        block: PlannedBlock | None = None,
        place: int | None = None,
        warmup: bool = False,
    ) -> None:
        self._keep(
            request_record(self.requests, task, arm, run, block=block, place=place, warmup=warmup)
        )
        for round in run.rounds:
            self.write(round)
        if not warmup:
            self.drafted.setdefault(arm.name, Drafted()).add(run.rounds)
        self._keep(run.end)
        self.requests += 1

    def _keep(self, record: Record) -> None:
        self.kept.append(record)
        self.write(record)

    def _tell(self, now: str) -> None:
        left = None
        if all(name in self.spent for name in self.left):
            left = sum(n * fmean(self.spent[name]) for name, n in self.left.items())
        self.report(Progress(self.total - self.left.total(), self.total, left, now))
