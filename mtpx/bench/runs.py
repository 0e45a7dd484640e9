"""The runs of a bench: each on its arm's model, made again until nothing compiles in it, and recorded.

Also what arms know: a policy of one starts a run with what it had learned before the block.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from mtpx.backend import Clock, Engine
from mtpx.bench.blocks import CUT
from mtpx.bench.design import Arm, Design, PlannedBlock
from mtpx.bench.models import BenchModel
from mtpx.bench.policies import policy_named
from mtpx.bench.records import BenchOptions, Drafted, request_record
from mtpx.bench.timed import Task, TimedRun, timed_run
from mtpx.energy import Meter, NoMeter
from mtpx.errors import BenchError
from mtpx.policy import DepthPolicy
from mtpx.trace.schema import BeliefRecord, Record

MOST_RETRIES = 5
"""A run in which something was compiled is made again, at most this often: an engine that compiles
every time has no steady state to measure."""


class Runs:
    """Makes runs and keeps their records: `kept` without rounds, `drafted` what those did with drafts, by
    arm. `write` gets every record."""

    def __init__(
        self,
        model: BenchModel,
        fastest: BenchModel | None,
        design: Design,
        options: BenchOptions,
        write: Callable[[Record], None],
        warn: Callable[[str], None],
        clock: Clock | None,
    ) -> None:
        self.model, self.fastest = model, fastest
        self.design, self.options = design, options
        self.write, self._warn = write, warn
        # Only a model of `mtpx.load` has looked for one.
        self.meter: Meter | NoMeter | None = getattr(model, "meter", None)
        self.clock = clock or time.perf_counter_ns
        self.kept: list[Record] = []
        self.drafted: dict[str, Drafted] = {}
        self._requests = 0
        self._remarks: set[str] = set()
        self._learned: dict[str, dict[str, Any]] = {}

    def engine(self, arm: Arm) -> Engine:
        """What this arm decodes on."""
        if self.fastest is not None and self.elsewhere(arm):
            return self.fastest.engine
        return self.model.engine

    def elsewhere(self, arm: Arm) -> str:
        """The precision of an arm that has another one than the bench; else ""."""
        fastest = self.design.fastest
        return fastest.precision if fastest is not None and arm.name == fastest.arm else ""

    # -- what arms know ----------------------------------------------------------------------------

    def fresh(self, arm: Arm) -> DepthPolicy:
        """The arm's policy as it is made."""
        manifest = getattr(self.model.pack, "manifest", None)
        return policy_named(
            arm.policy,
            self.options.policy,
            info=self.model.engine.info,
            prior_costs=manifest.prior_costs if manifest else [],
            warn=self._remark,
        )

    def _remark(self, sentence: str) -> None:
        if sentence not in self._remarks:
            self._remarks.add(sentence)
            self._warn(sentence)

    def _policy(self, arm: Arm) -> DepthPolicy | None:
        """A policy as the next run of this arm starts with it; `None`: a fixed depth."""
        if not arm.policy:
            return None
        policy = self.fresh(arm)
        if arm.name in self._learned:
            policy.restore(copy.deepcopy(self._learned[arm.name]))
        return policy

    def learn(self, arm: Arm, policy: DepthPolicy, task: Task) -> None:
        """A run that `policy` learns from, outside the verdict. Raises as `check` does."""
        run = timed_run(
            self.engine(arm),
            task,
            arm,
            request=self._requests,
            policy=policy,
            clock=self.clock,
        )
        self.keep_run(task, arm, run, warmup=True)
        self.check(arm, run)

    def learned(self, arm: Arm, policy: DepthPolicy) -> None:
        """From now on this arm's runs start with what `policy` has learned."""
        self._learned[arm.name] = policy.state()
        self.write(BeliefRecord(0, policy.name, policy.explain()))

    def taught(self, arm: Arm, policy: DepthPolicy | None) -> dict[str, dict[str, Any]]:
        """What a run has taught an arm that learns, for `carry_on`."""
        return {arm.name: policy.state()} if policy and arm.name in self._learned else {}

    def carry_on(self, taught: dict[str, dict[str, Any]]) -> None:
        self._learned |= taught

    # -- runs --------------------------------------------------------------------------------------

    def settled(
        self, task: Task, arm: Arm, limit_s: float | None
    ) -> tuple[TimedRun, DepthPolicy | None]:
        """A run in which nothing was compiled, and the policy it left; runs in which something was are
        kept as warm-ups."""
        for attempt in range(1 + MOST_RETRIES):
            policy = self._policy(arm)
            run = timed_run(
                self.engine(arm),
                task,
                arm,
                request=self._requests,
                policy=policy,
                limit_s=limit_s,
                meter=self.meter if isinstance(self.meter, Meter) else None,
                clock=self.clock,
            )
            if not run.compiled or run.end.stop in CUT:
                return run, policy
            if attempt < MOST_RETRIES:
                self.keep_run(task, arm, run, warmup=True)
        run.end.stop = "error"
        run.end.error = (
            f"{arm.name} compiled something in each of {1 + MOST_RETRIES} runs on the same prompt, so "
            "there is no steady state to measure"
        )
        return run, policy

    @staticmethod
    def check(arm: Arm, run: TimedRun) -> None:
        """Raises `BenchError` for a warm-up that failed, `KeyboardInterrupt` for one that was stopped."""
        if run.end.stop == "error":
            raise BenchError(f"the warm-up of {arm.name} failed: {run.end.error}")
        if run.end.stop == "interrupt":
            raise KeyboardInterrupt

    def keep_run(
        self,
        task: Task,
        arm: Arm,
        run: TimedRun,
        *,
        block: PlannedBlock | None = None,
        place: int | None = None,
        warmup: bool = False,
    ) -> None:
        """Record a run; its rounds are written and not kept."""
        self.keep(
            request_record(
                self._requests,
                task,
                arm,
                run,
                block=block,
                place=place,
                warmup=warmup,
                precision=self.elsewhere(arm),
            )
        )
        for round in run.rounds:
            self.write(round)
        if not warmup:
            self.drafted.setdefault(arm.name, Drafted()).add(run.rounds)
        self.keep(run.end)
        self._requests += 1

    def keep(self, record: Record) -> None:
        self.kept.append(record)
        self.write(record)
