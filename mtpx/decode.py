"""The round loop: propose, verify, commit.

Knows nothing of text, terminals or files. A consumer iterates over the rounds, looks at what each
request received in `Request.delivered`, and may end a request by setting its `stop`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from mtpx.backend import Clock, Drafts, Engine, FloatArray, GoOn, Outcome, Slot, TokenLogprob
from mtpx.errors import MtpxError, PolicyError
from mtpx.policy import Batch, DepthPolicy, LoneStoppingPolicy, StoppingPolicy
from mtpx.round import Round, SlotRound
from mtpx.sampling import Sampling

Stop = Literal["end", "length", "context", "stop", "interrupt", "error"]
"""Why a request ended: an end-of-sequence id, its token budget, the context, a stop string, the
person at the keyboard, an error."""


@dataclass(slots=True)
class Request:
    """One sequence being decoded. `budget` is how many tokens it may still be given in all;
    `parked` the reason it never drafts, if there is one. `delivered` grows round by round."""

    id: int
    slot: Slot
    sampling: Sampling
    budget: int
    parked: str = ""
    delivered: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stop: Stop | None = None

    @property
    def remaining(self) -> int:
        return self.budget - len(self.delivered)

    def cap(self, limit: int) -> int:
        """Deepest depth it can use: the round's last token must still land in the budget."""
        return 0 if self.parked else max(0, min(limit, self.remaining - 1))

    def commit(self, outcome: Outcome) -> None:
        self.delivered += outcome.committed
        self.logprobs += outcome.logprobs or []
        if outcome.ended:
            self.stop = "end"
        elif self.remaining <= 0:
            self.stop = "length"


def decode(
    engine: Engine,
    policy: DepthPolicy,
    requests: Sequence[Request],
    *,
    clock: Clock = time.perf_counter_ns,
    first_index: int = 0,
) -> Iterator[Round]:
    """Decode prefilled requests together until every one of them has stopped, yielding each round.

    Raises `PolicyError` when the policy raises or answers with something that is not a depth, and
    whatever the engine raises; the requests then hold everything committed before.
    """
    index = first_index
    limit = engine.info.head_depth_limit
    answering = Answering(policy)
    questions = _Questions(policy, answering) if isinstance(policy, StoppingPolicy) else None
    for request in requests:
        if request.stop is None and request.remaining <= 0:
            request.stop = "length"
    live = [r for r in requests if r.stop is None]
    while live:
        start = clock()
        slots = [r.slot for r in live]
        batch = Batch(
            caps=[r.cap(limit) for r in live],
            contexts=[len(slot.tokens) for slot in slots],
            greedy=[r.sampling.greedy for r in live],
            route=lambda k: engine.route([min(k, r.cap(limit)) + 1 for r in live]),  # noqa: B023
        )
        with answering:
            depth = _checked(policy, policy.propose(batch))
        caps = [min(depth, cap) for cap in batch.caps]
        asked = clock()
        go_on = None if questions is None else questions.about(len(live))
        drafts = engine.propose(slots, caps, go_on) if any(caps) else None
        made = clock()
        depths = _depths(policy, drafts, len(live), answering, questions)
        reading = clock() - made
        if drafts is not None and any(depths):
            outcomes = engine.verify(slots, drafts, depths)
        else:
            outcomes = engine.plain(slots)
        end = clock()
        drafted = drafts.counts if drafts is not None else [0] * len(live)
        round = _record(index, start, end, asked, reading, live, drafted, depths, outcomes)
        for request, outcome in zip(live, outcomes, strict=True):
            request.commit(outcome)
        with answering:
            round.decision = policy.decision()
            policy.observe(round)
        yield round
        index += 1
        live = [r for r in live if r.stop is None]


class Answering:
    """While the policy answers: whatever it raises becomes a `PolicyError` that names it."""

    def __init__(self, policy: DepthPolicy) -> None:
        self._policy = policy

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, MtpxError):
            raise PolicyError(
                f"policy {self._policy.name!r} raised {type(error).__name__}: {error}"
            ) from error


def _checked(policy: DepthPolicy, depth: object) -> int:
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise PolicyError(f"policy {policy.name!r} proposed {depth!r}, which is not a depth")
    return depth


class _Questions:
    """What the engine asks between two head steps: the policy, whose answers are looked at. An `AloneGoOn`;
    `told` counts the drafts of the round that it was told of by number."""

    def __init__(self, policy: StoppingPolicy, answering: Answering) -> None:
        self._policy, self._answering = policy, answering
        self._lone = policy if isinstance(policy, LoneStoppingPolicy) else None
        self._width = self.told = 0
        self.alone: Callable[[float], bool] | None = None

    def about(self, width: int) -> GoOn | None:
        """Of this round's sequences, if the policy wants to be asked."""
        self.told = 0
        if not self._policy.wants_steps:
            return None
        if width != self._width:
            self._width = width
            self.alone = self._by_number if width == 1 and self._lone is not None else None
        return self

    def __call__(self, confidence: FloatArray) -> list[bool]:
        with self._answering:
            answer = self._policy.go_on(confidence)
        if len(answer) != self._width or not all(isinstance(one, bool) for one in answer):
            raise self._nonsense(answer)
        return answer

    def _by_number(self, confidence: float) -> bool:
        assert self._lone is not None
        self.told += 1
        try:
            answer = self._lone.lone_goes_on(confidence)
        except Exception:
            with self._answering:
                raise
        if answer is not True and answer is not False:
            raise self._nonsense(answer)
        return answer

    def lone_verify(self) -> int:
        """How many of the drafts it was told of are verified."""
        assert self._lone is not None
        with self._answering:
            return _checked(self._policy, self._lone.lone_verify())

    def _nonsense(self, answer: object) -> PolicyError:
        return PolicyError(
            f"policy {self._policy.name!r} was asked which of {self._width} sequences go on drafting and "
            f"answered {answer!r}; it must say True or False for each"
        )


def _depths(
    policy: DepthPolicy,
    drafts: Drafts | None,
    width: int,
    answering: Answering,
    questions: _Questions | None,
) -> list[int]:
    """How many drafts of each slot are verified: all, unless the policy wants to look first."""
    if drafts is None:
        return [0] * width
    counts = drafts.counts
    if not policy.wants_confidence:
        return counts
    if questions is not None and [questions.told] == counts:
        depths = [questions.lone_verify()]
    else:
        confidence = drafts.confidence
        with answering:
            depths = [_checked(policy, depth) for depth in policy.verify(confidence)]
    if len(depths) != width or any(d > c for d, c in zip(depths, counts, strict=False)):
        raise PolicyError(f"policy {policy.name!r} asked to verify {depths} of {counts} drafts")
    return depths


def _record(
    index: int,
    start: int,
    end: int,
    asked: int,
    reading: int,
    live: Sequence[Request],
    drafted: Sequence[int],
    depths: Sequence[int],
    outcomes: Sequence[Outcome],
) -> Round:
    forward = outcomes[0].forward
    return Round(
        index=index,
        start_ns=start,
        depth=max(drafted),
        slots=[
            SlotRound(
                request=r.id,
                position=len(r.slot.tokens) - len(o.committed),
                drafted=n,
                verified=d,
                accepted=o.accepted,
                committed=len(o.committed),
                ended=o.ended,
                confidences=o.confidences,
            )
            for r, n, d, o in zip(live, drafted, depths, outcomes, strict=True)
        ],
        round_ms=(end - start) / 1e6,
        route=forward.route,
        compiled_now=forward.compiled_now,
        draft_ms=forward.draft_ms,
        verify_ms=forward.verify_ms,
        host_ms=(asked - start) / 1e6,
        ask_ms=None if forward.ask_ms is None else forward.ask_ms + reading / 1e6,
    )
