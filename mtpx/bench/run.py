"""Running a design on a loaded model: warm up, time every run, write the trace, judge.

The verdict is taken from the very records the trace holds, by the code that reads a trace, so that a
report of the trace says the same. A run's records are written when the run is over: that is the
trace's loss window here, since a file written while the clock runs would be part of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from mtpx.backend import Clock, Engine
from mtpx.bench.blocks import CUT, blocks
from mtpx.bench.compare import comparisons
from mtpx.bench.design import PLAIN, PLAIN_ARM, Arm, Design, PlannedBlock
from mtpx.bench.learning import PROMPTS
from mtpx.bench.looks import look_ends
from mtpx.bench.models import BenchModel
from mtpx.bench.records import BenchOptions, arm_rates, bench_record
from mtpx.bench.result import INTERRUPTED, BenchAbout, BenchResult, Progress
from mtpx.bench.runs import Runs
from mtpx.bench.suites import BenchPrompt, Message
from mtpx.bench.timed import Task, TimedRun, first_difference, logit_gap, settled_heap
from mtpx.bench.verdict import Verdict, verdicts
from mtpx.errors import BenchError, MtpxError
from mtpx.trace.runs import version
from mtpx.trace.schema import Record

WARMUPS = 2
"""Runs of every arm before the first timed one: one wakes the machine, one tells its speed."""

GUARD_FLOOR_S = 1.0
"""No run is cut under this, whatever the warm-up predicts: hiccups of a scheduler last that long."""

WARMUP_PROMPT = "Describe in a few plain sentences what a gardener does in each month of the year."


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
    fastest: BenchModel | None = None,
    write: Callable[[Record], None] = lambda record: None,
    progress: Callable[[Progress], None] = lambda progress: None,
    warn: Callable[[str], None] = lambda sentence: None,
    clock: Clock | None = None,
) -> BenchResult:
    """Run `design` and judge it.

    `fastest` is the model in the precision of `design.fastest`, where there is one. `write` gets every
    record of the trace; `progress` is called between runs; `warn` takes a policy's remarks, each once.
    Ctrl-C ends the bench, and so does an error of the engine: what was measured until then is reported,
    without a verdict.

    Raises `BenchError` before anything is timed: a depth the head does not have, a prompt that does
    not fit, an arm whose warm-up fails or never stops compiling, a design with `fastest` and no model for
    it or the other way round; and `PolicyError` for a policy that cannot be made here.
    """
    if (fastest is None) != (design.fastest is None):
        raise BenchError(
            "a design with plain decode in the fastest precision and the model for it go together"
        )
    options = options or BenchOptions()
    bench = _Bench(Runs(model, fastest, design, options, write, warn, clock), progress)
    with settled_heap():
        return bench.run(prompts)


class _Bench:
    def __init__(self, runs: Runs, report: Callable[[Progress], None]) -> None:
        self.runs, self.report = runs, report
        self.model, self.engine = runs.model, runs.model.engine
        self.design, self.options = runs.design, runs.options
        self.left = Counter(self.design.work())
        self.total = self.left.total()
        self.spent: dict[str, list[float]] = {}
        self.pace: dict[str, _Pace] = {}

    def run(self, prompts: Sequence[BenchPrompt]) -> BenchResult:
        tasks = self._tasks(prompts)
        runs, stopped = self.runs, ""
        made = {arm.name: runs.fresh(arm) for arm in self.design.arms if arm.policy}
        runs.keep(bench_record(self.engine.info, self.design, self.options, made, runs.meter))
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
        step_bytes = {PLAIN: self.engine.info.plain_step_bytes}
        if self.design.fastest is not None:
            step_bytes[self.design.fastest.arm] = self.design.fastest.plain_step_bytes
        measured = blocks(runs.kept)
        found = self._verdicts()
        return BenchResult(
            self._about(),
            self.design,
            [v for v in found if not v.against],
            arm_rates(runs.kept, runs.drafted, step_bytes),
            stopped,
            comparisons(self.design.arms, measured) if self.design.baseline else [],
            [v for v in found if v.against],
        )

    def _verdicts(self) -> list[Verdict]:
        return verdicts(blocks(self.runs.kept), self.options.margin, looks=self.design.looks)

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
        limit = min(self.runs.engine(arm).info.context_limit for arm in self._arms())
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

    def _arms(self) -> list[Arm]:
        """All arms, plain ones first."""
        plain = [PLAIN_ARM] if self.design.baseline else []
        if self.design.fastest is not None:
            plain.append(Arm(self.design.fastest.arm, 0))
        return [*plain, *self.design.arms]

    def _warm_up(self) -> None:
        """Compile every shape a run can take, then run every arm until nothing compiles any more."""
        self._tell("compiling")
        # Near the end of its budget a run verifies fewer drafts than its depth.
        limit = self.engine.info.head_depth_limit
        rows = max(arm.deepest(limit) for arm in self.design.arms) + 1
        self.engine.warm([[n] for n in range(1, rows + 1)])
        if self.runs.fastest is not None:
            self.runs.fastest.engine.warm([[1]])
        prompt = BenchPrompt("warm-up", "", messages=[Message("user", WARMUP_PROMPT)])
        task = replace(self._task(prompt), ignore_eos=True)
        for arm in self._arms():
            if arm.policy and not self.options.cold:
                self._learn(arm)
            for _ in range(WARMUPS):
                self._tell(f"warming up {arm.name}")
                run, _ = self.runs.settled(task, arm, None)
                self.runs.keep_run(task, arm, run, warmup=True)
            self.runs.check(arm, run)
            prefill_s = (run.prefill_ms or 0.0) / 1e3
            self.pace[arm.name] = _Pace(
                prefill_s=prefill_s / len(task.tokens),
                round_s=(run.seconds - prefill_s) / max(1, len(run.rounds)),
            )
            self.spent[arm.name] = [run.seconds]

    def _learn(self, arm: Arm) -> None:
        """Let a policy learn on prompts outside the suites; its timed runs then go on from there."""
        policy = self.runs.fresh(arm)
        if not policy.state():
            return  # it has nothing to learn
        for i, text in enumerate(PROMPTS):
            self._tell(f"{arm.name} learns, {i + 1} of {len(PROMPTS)}")
            prompt = BenchPrompt(f"learning-{i}", "", messages=[Message("user", text)])
            self.runs.learn(arm, policy, replace(self._task(prompt), ignore_eos=True))
        self.runs.learned(arm, policy)

    # -- the timed runs ----------------------------------------------------------------------------

    def _block(self, block: PlannedBlock, task: Task) -> None:
        # A block's runs share their seed; blocks do not, so that repeats at a temperature above 0 are
        # not one text measured again.
        task = replace(task, seed=self.design.seed + block.pair)
        first: dict[str, list[int]] = {}
        after: dict[str, dict[str, Any]] = {}
        for place, arm in enumerate(self.design.runs(block)):
            self._tell(f"{block.suite}/{block.prompt}, {arm.name}")
            run, policy = self.runs.settled(task, arm, self._limit_s(task, arm))
            precision = self.runs.elsewhere(arm)
            if precision not in first:
                first[precision] = run.tokens
            elif task.sampling.greedy and run.end.stop not in CUT:
                self._compare(self.runs.engine(arm), task, first[precision], run)
            self.runs.keep_run(task, arm, run, block=block, place=place)
            self.left[arm.name] -= 1
            self.spent[arm.name].append(run.seconds)
            if run.end.stop == "interrupt":
                raise KeyboardInterrupt
            if run.end.stop == "error":
                raise _Stopped(run.end.error)
            after |= self.runs.taught(arm, policy)
        # Both runs of a block begin with what was known before it, since neither may know its text; the
        # next block begins with what this one taught.
        self.runs.carry_on(after)

    def _limit_s(self, task: Task, arm: Arm) -> float:
        """The longest a run may take. The worst case is one token a round."""
        pace = self.pace[arm.name]
        expected = pace.prefill_s * len(task.tokens) + pace.round_s * task.budget
        return max(GUARD_FLOOR_S, self.options.guard * expected)

    @staticmethod
    def _compare(engine: Engine, task: Task, first: Sequence[int], run: TimedRun) -> None:
        run.end.differs_at = first_difference(first, run.tokens)
        if run.end.differs_at is not None:
            # The gap explains a difference; failing to explain must not cost the measurement.
            with suppress(MtpxError):
                run.end.differs_gap = logit_gap(engine, task, first, run.tokens)

    def _tell(self, now: str) -> None:
        left = None
        if all(name in self.spent for name in self.left):
            left = sum(n * fmean(self.spent[name]) for name, n in self.left.items())
        self.report(Progress(self.total - self.left.total(), self.total, left, now))
