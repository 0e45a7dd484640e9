"""A growing conversation, turn by turn, four ways: what reuse and the carry are worth here.

Every turn is decoded cold (nothing is reused), warm without the carry (the target's state is reused, the
head begins blind), warm with it (the head's rows are adopted, too) and plain (warm, without the head).
The four take turns in going first; all see the same conversation, whose answers are the cold ones.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from mtpx.backend import Clock, Engine, Slot
from mtpx.bench.design import PLAIN_ARM, Arm, mtp_arm
from mtpx.bench.intervals import t_interval
from mtpx.bench.records import request_record
from mtpx.bench.timed import Task, TimedRun, settled_heap, timed_run
from mtpx.errors import BenchError, MtpxError
from mtpx.policy import FixedDepth
from mtpx.reuse import Reused
from mtpx.sampling import Sampling
from mtpx.trace.acceptance import CONFIDENCE, OutcomesTally, PositionAcceptance
from mtpx.trace.runs import run_record
from mtpx.trace.schema import Record

COLD, BLIND, WARM, PLAIN = "cold", "warm without carry", "warm with carry", "plain"
ARMS = (COLD, BLIND, WARM, PLAIN)

SESSION = 1
"""The session of the arm that carries; what it is does not matter, it is the only one."""

Message = dict[str, str]
Write = Callable[[Record], None]


class Talker(Protocol):
    """A loaded model, as far as a conversation needs it (`mtpx.api.Model`)."""

    @property
    def engine(self) -> Engine: ...
    @property
    def end_ids(self) -> frozenset[int]: ...
    def encode(self, content: Sequence[Message]) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...


class Interval(msgspec.Struct, frozen=True):
    """A ratio to the cold arm: the geometric mean over conversations, and Student's t interval of that
    mean at 95 % (absent with fewer than two)."""

    ratio: float
    low: float | None
    high: float | None


class ArmTurns(msgspec.Struct, frozen=True):
    """One arm over all warm turns (the second and later). `ttft_ms` is the median, `tokens_per_s` Σ rated
    tokens / Σ time; `ttft` and `speed` are ratios to the cold arm in the same turn. `adopted` and
    `appended` are the head's rows, `same_text` turns whose text is the cold one's."""

    arm: str
    turns: int
    same_text: int
    reused_tokens: int
    prompt_tokens: int
    adopted: int
    appended: int
    ttft_ms: float | None
    ttft: Interval | None
    tokens_per_s: float | None
    speed: Interval | None
    acceptance: list[PositionAcceptance]


class TurnRow(msgspec.Struct, frozen=True):
    """One turn over all conversations: median tokens of its prompt and of those that are new, and the
    median ms to the first token, by arm."""

    turn: int
    prompt_tokens: int
    new_tokens: int
    ttft_ms: dict[str, float]


class TurnsResult(msgspec.Struct, frozen=True):
    """What `mtpx bench --turns` found. `notes` are sentences about what is missing."""

    pack: str
    device: str
    depth: int
    conversations: int
    arms: list[ArmTurns]
    turns: list[TurnRow]
    carry: str
    notes: list[str]


class _Turn(msgspec.Struct):
    """One turn of one conversation: its runs by arm."""

    conversation: int
    turn: int
    prompt: int
    new: int
    runs: dict[str, TimedRun]


def conversations(questions: Sequence[str], turns: int) -> list[list[str]]:
    """`turns` questions for every conversation, none used twice. Raises `BenchError`: too few."""
    if turns < 2:
        raise BenchError(f"a conversation needs at least 2 turns to have a warm one, got {turns}")
    count = len(questions) // turns
    if count == 0:
        raise BenchError(
            f"there are {len(questions)} questions for conversations of {turns} turns; take fewer turns, "
            "or give more with --prompts, --suite or --prompt-file"
        )
    return [list(questions[i * turns : (i + 1) * turns]) for i in range(count)]


def run_turns(
    model: Talker,
    talks: Sequence[Sequence[str]],
    *,
    depth: int,
    max_tokens: int,
    sampling: Sampling,
    seed: int = 0,
    write: Write = lambda record: None,
    progress: Callable[[int, int, str], None] = lambda done, total, now: None,
    command: str = "",
    clock: Clock = time.perf_counter_ns,
) -> TurnsResult:
    """Hold these conversations, every turn by every arm.

    `progress(done, total, what)` in runs. A conversation ends early where its context is full. Raises
    `BenchError` where the model has no head, `MtpxError` what a run ended in.
    """
    info = model.engine.info
    if info.head_depth_limit == 0:
        raise BenchError(f"{info.pack} has no MTP head, so there is nothing to carry")
    if not 1 <= depth <= info.head_depth_limit:
        raise BenchError(
            f"depth {depth} is outside what this head can do (1 to {info.head_depth_limit})"
        )
    bench = _Bench(model, depth, max_tokens, sampling, seed, write, clock)
    write(run_record(info, FixedDepth(depth), command=command))
    taken: list[_Turn] = []
    notes: list[str] = []
    total, done = len(ARMS) * sum(map(len, talks)), 0
    with settled_heap():
        bench.warm_up(talks[0][0])
        for number, questions in enumerate(talks):
            talk = _Talk(bench, number)
            for turn, question in enumerate(questions):
                held = talk.turn(turn, question, lambda arm: progress(done, total, arm))  # noqa: B023
                if held is None:
                    notes.append(
                        f"conversation {number + 1} ended after {turn} turns: the context of "
                        f"{info.context_limit} tokens is full"
                    )
                    break
                taken.append(held)
                done += len(ARMS)
    return _result(info.pack, info.device, info.details.get("carry", ""), depth, taken, notes)


class _Bench:
    """What all runs share."""

    def __init__(
        self,
        model: Talker,
        depth: int,
        max_tokens: int,
        sampling: Sampling,
        seed: int,
        write: Write,
        clock: Clock,
    ) -> None:
        self.model, self.depth, self.max_tokens = model, depth, max_tokens
        self.sampling, self.seed, self.write, self.clock = sampling, seed, write, clock
        self.requests = 0

    def warm_up(self, question: str) -> None:
        """One run of every route before the clock counts."""
        tokens = self.model.encode([{"role": "user", "content": question}])
        for arm in (COLD, PLAIN):
            self.run(arm, tokens, place=0, conversation=0, turn=0, reuse=None, warmup=True)

    def run(
        self,
        arm: str,
        tokens: list[int],
        *,
        place: int,
        conversation: int,
        turn: int,
        reuse: object | None,
        keep: Callable[[Slot], None] | None = None,
        warmup: bool = False,
    ) -> TimedRun:
        kind: Arm = PLAIN_ARM if arm == PLAIN else mtp_arm(self.depth)
        session = SESSION if arm == WARM else 0
        task = Task(tokens, self.sampling, self.seed, self.max_tokens, self.model.end_ids)
        run = timed_run(
            self.model.engine,
            task,
            kind,
            request=self.requests,
            session=session,
            reuse=reuse,
            keep=keep,
            clock=self.clock,
        )
        self._record(run, task, arm, kind, session, place, f"{conversation + 1}.{turn + 1}", warmup)
        self.requests += 1
        if run.end.stop == "interrupt":
            raise KeyboardInterrupt
        if run.end.stop == "error":
            raise MtpxError(run.end.error)
        return run

    def _record(
        self,
        run: TimedRun,
        task: Task,
        arm: str,
        kind: Arm,
        session: int,
        place: int,
        prompt: str,
        warmup: bool,
    ) -> None:
        reused = run.reused or Reused()
        record = request_record(self.requests, task, kind, run, place=place, warmup=warmup)
        self.write(
            replace(
                record,
                session=session,
                reused_tokens=reused.tokens,
                reuse=reused.why,
                carry=reused.carry,
                carry_ms=reused.ms,
                arm=arm,
                suite="turns",
                prompt=prompt,
            )
        )
        for round in run.rounds:
            self.write(round)
        self.write(run.end)


class _Talk:
    """One conversation: the messages so far, and what every arm keeps of it."""

    def __init__(self, bench: _Bench, number: int) -> None:
        self._bench, self._number = bench, number
        self._messages: list[Message] = []
        self._kept: dict[str, object] = {}
        self._before = 0

    def turn(self, turn: int, question: str, now: Callable[[str], None]) -> _Turn | None:
        """All arms' runs of the next turn; `None` where it does not fit into the context."""
        bench, model = self._bench, self._bench.model
        asked = [*self._messages, {"role": "user", "content": question}]
        tokens = model.encode(asked)
        if len(tokens) + bench.max_tokens > model.engine.info.context_limit:
            return None
        first = (self._number + turn) % len(ARMS)
        runs: dict[str, TimedRun] = {}
        for place, arm in enumerate((*ARMS[first:], *ARMS[:first])):
            now(f"conversation {self._number + 1}, turn {turn + 1}: {arm}")
            runs[arm] = bench.run(
                arm,
                tokens,
                place=place,
                conversation=self._number,
                turn=turn,
                reuse=self._kept.pop(arm, None),
                keep=None if arm == COLD else self._keeper(arm),
            )
        said = [t for t in runs[COLD].tokens if t not in model.end_ids]
        self._messages = [*asked, {"role": "assistant", "content": model.decode(said)}]
        found = _Turn(self._number, turn, len(tokens), len(tokens) - self._before, runs)
        self._before = len(tokens) + len(runs[COLD].tokens)
        return found

    def _keeper(self, arm: str) -> Callable[[Slot], None]:
        def keep(slot: Slot) -> None:
            self._kept[arm] = slot.snapshot()

        return keep


def _result(
    pack: str, device: str, carry: str, depth: int, taken: list[_Turn], notes: list[str]
) -> TurnsResult:
    warm = [turn for turn in taken if turn.turn > 0]
    if not warm:
        raise BenchError("no second turn fits into the context: take a larger --context")
    numbers = sorted({turn.turn for turn in taken})
    rows = []
    for number in numbers:
        these = [turn for turn in taken if turn.turn == number]
        rows.append(
            TurnRow(
                turn=number + 1,
                prompt_tokens=int(statistics.median(t.prompt for t in these)),
                new_tokens=int(statistics.median(t.new for t in these)),
                ttft_ms={
                    arm: statistics.median(found)
                    for arm in ARMS
                    if (found := [x for t in these if (x := t.runs[arm].end.ttft_ms) is not None])
                },
            )
        )
    return TurnsResult(
        pack=pack,
        device=device,
        depth=depth,
        conversations=len({turn.conversation for turn in taken}),
        arms=[_arm(arm, warm) for arm in ARMS],
        turns=rows,
        carry=carry,
        notes=notes,
    )


def _arm(arm: str, warm: list[_Turn]) -> ArmTurns:
    runs = [turn.runs[arm] for turn in warm]
    tally = OutcomesTally()
    for run in runs:
        for round in run.rounds:
            tally.add(1, round.slots[0])
    carried = [c for run in runs if (c := run.reused and run.reused.carry) is not None]
    seconds = math.fsum(run.end.decode_s or 0.0 for run in runs if run.end.rate is not None)
    rated = sum(run.end.rated_tokens for run in runs if run.end.rate is not None)
    times = [run.end.ttft_ms for run in runs if run.end.ttft_ms is not None]
    return ArmTurns(
        arm=arm,
        turns=len(runs),
        same_text=sum(turn.runs[arm].tokens == turn.runs[COLD].tokens for turn in warm),
        reused_tokens=sum(run.reused.tokens for run in runs if run.reused),
        prompt_tokens=sum(turn.prompt for turn in warm),
        adopted=sum(getattr(carry, "rows", 0) for carry in carried),
        appended=sum(getattr(carry, "appended", 0) for carry in carried),
        ttft_ms=statistics.median(times) if times else None,
        ttft=_ratio(arm, warm, lambda run: run.end.ttft_ms),
        tokens_per_s=rated / seconds if seconds else None,
        speed=_ratio(arm, warm, lambda run: run.end.rate),
        acceptance=tally.positions(),
    )


def _ratio(
    arm: str, warm: list[_Turn], value: Callable[[TimedRun], float | None]
) -> Interval | None:
    """Geometric mean of this arm over cold, paired by turn; a conversation is one observation."""
    if arm == COLD:
        return None
    by_talk: dict[int, list[float]] = {}
    for turn in warm:
        mine, cold = value(turn.runs[arm]), value(turn.runs[COLD])
        if mine and cold:
            by_talk.setdefault(turn.conversation, []).append(math.log(mine / cold))
    means = [statistics.fmean(logs) for logs in by_talk.values()]
    if not means:
        return None
    if len(means) < 2:
        return Interval(math.exp(means[0]), None, None)
    mean, low, high = t_interval(means, CONFIDENCE)
    return Interval(math.exp(mean), math.exp(low), math.exp(high))
