"""The round loop asks a policy between head steps: which sequences go on, by array or, of one, by number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from decode_makers import REGIME, Scripted, engine_of, finish, plain, request_on

from mtpx.backend import FloatArray, Forward
from mtpx.errors import PolicyError
from mtpx.simulate import SimulatedEngine


class Stepping(Scripted):
    """Asked between head steps; `further` answers."""

    wants_steps = True

    def __init__(self, further: Callable[[FloatArray], Any]) -> None:
        super().__init__(lambda batch: 3)
        self.further = further

    def go_on(self, confidence: FloatArray) -> list[bool]:
        answer: list[bool] = self.further(confidence)
        return answer


def test_a_policy_that_is_asked_ends_a_chain_and_what_was_made_is_verified() -> None:
    engine = engine_of()
    request = request_on(engine, 40)
    rounds = finish(engine, Stepping(lambda sure: [sure.shape[1] < 2]), request)
    assert max(r.slots[0].drafted for r in rounds) == 2
    assert all(r.slots[0].verified == r.slots[0].drafted == r.depth for r in rounds)
    assert request.delivered == plain(40)


class ByNumber(Stepping):
    """Asked about a lone sequence by number."""

    def __init__(self, further: Callable[[float], Any], verified: Any = 0) -> None:
        super().__init__(lambda sure: [True] * len(sure))
        self.by_number, self.verified = further, verified

    def verify(self, confidence: FloatArray) -> list[int]:
        raise AssertionError("asked by array")

    def lone_verify(self) -> int:
        depth: int = self.verified
        return depth

    def lone_goes_on(self, confidence: float) -> bool:
        answer: bool = self.by_number(confidence)
        return answer


def test_a_policy_that_answers_by_number_is_asked_so_about_a_lone_sequence() -> None:
    asked: list[float] = []

    def once(sure: float) -> bool:
        asked.append(sure)
        return len(asked) % 2 == 1

    engine = engine_of()
    request = request_on(engine, 40)
    rounds = finish(engine, ByNumber(once), request)
    assert max(r.slots[0].drafted for r in rounds) == 2
    assert asked == [c for r in rounds for c in (r.slots[0].confidences or [])]
    assert all(r.slots[0].verified == r.slots[0].drafted for r in rounds)
    assert request.delivered == plain(40)


def test_what_it_was_told_of_by_number_it_may_cut_without_seeing_an_array() -> None:
    policy = ByNumber(lambda sure: True, verified=1)
    policy.wants_confidence = True
    engine = engine_of()
    request = request_on(engine, 40)
    rounds = finish(engine, policy, request)
    assert {(r.slots[0].drafted, r.slots[0].verified) for r in rounds[:-3]} == {(3, 1)}
    assert request.delivered == plain(40)


@pytest.mark.parametrize("verified", [4, -1, True, None, [1]])
def test_a_number_to_verify_that_is_no_depth_of_the_chain_is_refused(verified: Any) -> None:
    policy = ByNumber(lambda sure: True, verified=verified)
    policy.wants_confidence = True
    engine = engine_of()
    with pytest.raises(PolicyError, match=r"not a depth|of \[3\] drafts"):
        finish(engine, policy, request_on(engine, 12))


def test_a_round_tells_what_asking_took_where_the_engine_does() -> None:
    class Timed(SimulatedEngine):
        def _forward(self, *args: Any) -> Forward:
            return replace(super()._forward(*args), ask_ms=0.25)

    engine = Timed(REGIME)
    rounds = finish(engine, ByNumber(lambda sure: True), request_on(engine, 12))
    assert [r.ask_ms for r in rounds] == [0.25] * len(rounds), (
        "no time passes here while it decides"
    )
    engine = engine_of()
    rounds = finish(engine, ByNumber(lambda sure: True), request_on(engine, 12))
    assert {r.ask_ms for r in rounds} == {None}


def test_two_sequences_are_asked_about_by_array() -> None:
    def never(sure: float) -> bool:
        raise AssertionError("not to be asked")

    engine = engine_of(width=2)
    finish(engine, ByNumber(never), request_on(engine, 8), request_on(engine, 8, id=1))


def test_a_policy_that_does_not_want_to_be_asked_now_is_not() -> None:
    policy = Stepping(lambda sure: [False])
    policy.wants_steps = False
    engine = engine_of()
    rounds = finish(engine, policy, request_on(engine, 12))
    assert max(r.depth for r in rounds) == 3


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        *[(Stepping, answer) for answer in ([], [True, True], [1], [None], ["yes"])],
        *[(ByNumber, answer) for answer in (1, None, "yes", [True])],
    ],
)
def test_an_answer_that_is_not_one_bool_a_sequence_is_refused(kind: Any, answer: Any) -> None:
    engine = engine_of()
    with pytest.raises(PolicyError, match="True or False for each"):
        finish(engine, kind(lambda sure: answer), request_on(engine, 12))


@pytest.mark.parametrize("kind", [Stepping, ByNumber])
def test_a_policy_that_raises_when_asked_is_named(kind: Any) -> None:
    def fails(sure: Any) -> Any:
        raise ZeroDivisionError("division by zero")

    engine = engine_of()
    with pytest.raises(PolicyError, match="'scripted' raised ZeroDivisionError"):
        finish(engine, kind(fails), request_on(engine, 12))
