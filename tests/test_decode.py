"""The round loop: budgets, caps, what a policy may answer, what a consumer sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decode_makers import Scripted, engine_of, finish, plain, request_on
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpx.backend import FloatArray
from mtpx.decode import decode
from mtpx.errors import NonFiniteLogits, PolicyError
from mtpx.policy import Batch, DepthPolicy, FixedDepth
from mtpx.round import Decision, Route
from mtpx.sampling import Sampling
from mtpx.simulate import Language


@given(depth=st.integers(0, 6), budget=st.integers(1, 20), sampled=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_budget_is_spent_exactly_and_no_draft_could_overshoot_it(
    depth: int, budget: int, sampled: bool
) -> None:
    engine = engine_of()
    request = request_on(engine, budget, sampling=Sampling(temperature=0.8 * sampled))
    left = budget
    for round in decode(engine, FixedDepth(depth), [request], clock=engine.clock):
        (slot,) = round.slots
        assert slot.drafted <= min(depth, 3, left - 1)
        left -= slot.committed
        assert left == request.remaining
    assert len(request.delivered) == budget
    assert request.stop == "length"


def test_an_empty_budget_stops_without_a_round() -> None:
    engine = engine_of()
    request = request_on(engine, 0)
    assert finish(engine, FixedDepth(1), request) == []
    assert request.stop == "length"


@given(depth=st.integers(1, 3))
@settings(deadline=None)
def test_greedy_text_does_not_depend_on_the_depth(depth: int) -> None:
    engine = engine_of()
    request = request_on(engine, 40)
    finish(engine, FixedDepth(depth), request)
    assert request.delivered == plain(40)


def test_a_parked_request_never_drafts_beside_one_that_does() -> None:
    engine = engine_of(width=2)
    parked = request_on(engine, 12, parked="log-probabilities")
    free = request_on(engine, 12, id=1, prompt=(4, 5))
    rounds = finish(engine, FixedDepth(3), parked, free)
    drafted = {id: [s.drafted for r in rounds for s in r.slots if s.request == id] for id in (0, 1)}
    assert set(drafted[0]) == {0}
    assert max(drafted[1]) == 3


def test_a_parked_request_shows_the_policy_a_cap_of_zero() -> None:
    engine = engine_of()
    policy = Scripted()
    finish(engine, policy, request_on(engine, 4, parked="by rule"))
    assert [batch.caps for batch in policy.batches] == [[0]] * 4


def test_a_policy_sees_caps_contexts_sampling_and_routes() -> None:
    engine = engine_of(width=2)
    policy = Scripted()
    greedy = request_on(engine, 2)
    sampled = request_on(engine, 9, id=1, prompt=(4, 5), sampling=Sampling(temperature=1.0))
    next(decode(engine, policy, [greedy, sampled], clock=engine.clock))
    (batch,) = policy.batches
    assert (batch.caps, batch.contexts, batch.greedy) == ([1, 3], [3, 2], [True, False])
    assert (batch.width, batch.limit) == (2, 3)


def test_the_route_a_policy_asks_for_is_that_of_the_capped_rows() -> None:
    engine = engine_of(width=2)
    seen: list[Route] = []
    policy = Scripted(lambda batch: seen.append(batch.route(3)) or 0)
    short = request_on(engine, 2)
    long = request_on(engine, 9, id=1)
    next(decode(engine, policy, [short, long], clock=engine.clock))
    assert seen == [engine.route([2, 4])]


def test_requests_of_different_lengths_each_get_what_they_get_alone() -> None:
    prompts = [(1, 2, 3), (9, 8), (4, 4, 4, 4)]
    budgets = [5, 17, 11]
    engine = engine_of(width=3)
    requests = [
        request_on(engine, budget, id=i, prompt=prompt)
        for i, (budget, prompt) in enumerate(zip(budgets, prompts, strict=True))
    ]
    rounds = finish(engine, FixedDepth(2), *requests)
    assert [r.delivered for r in requests] == [
        plain(budget, prompt=prompt) for budget, prompt in zip(budgets, prompts, strict=True)
    ]
    widths = [round.width for round in rounds]
    assert widths == sorted(widths, reverse=True)
    assert set(widths) == {1, 2, 3}


@pytest.mark.parametrize("answer", [-1, 1.0, True, None, "2", np.float64(1.0)])
def test_a_proposal_that_is_no_depth_names_the_policy(answer: object) -> None:
    engine = engine_of()
    with pytest.raises(PolicyError, match="'scripted' proposed"):
        finish(engine, Scripted(lambda batch: answer), request_on(engine, 4))


@pytest.mark.parametrize("answer", [[3], [1, 1], [], [-1], [True], [1.0], 2, None])
def test_a_verify_answer_that_does_not_fit_the_drafts_names_the_policy(answer: object) -> None:
    engine = engine_of()
    policy = Scripted(lambda batch: 2, lambda confidence: answer)
    with pytest.raises(PolicyError, match="'scripted'"):
        finish(engine, policy, request_on(engine, 9))


def boom(*_: object) -> Any:
    raise ZeroDivisionError("no cost yet")


@pytest.mark.parametrize("method", ["propose", "verify", "decision", "observe"])
def test_a_policy_that_raises_becomes_a_policy_error_that_names_it(method: str) -> None:
    engine = engine_of()
    policy = Scripted(lambda batch: 2, lambda confidence: [1])
    setattr(policy, method, boom)
    with pytest.raises(PolicyError, match="'scripted' raised ZeroDivisionError: no cost yet"):
        finish(engine, policy, request_on(engine, 9))


def test_what_was_committed_is_delivered_though_the_policy_raised_on_it() -> None:
    engine = engine_of()
    policy = Scripted()
    policy.observe = boom  # type: ignore[method-assign]
    request = request_on(engine, 9)
    with pytest.raises(PolicyError):
        finish(engine, policy, request)
    assert request.delivered == list(request.slot.tokens)[3:]
    assert request.delivered


def test_an_engine_error_passes_and_leaves_what_was_delivered() -> None:
    engine = engine_of()
    request = request_on(engine, 50)
    loop = decode(engine, FixedDepth(2), [request], clock=engine.clock)
    next(loop)
    before = list(request.delivered)
    engine.poison(request.slot)
    with pytest.raises(NonFiniteLogits):
        next(loop)
    assert request.delivered == before


def test_a_deeper_proposal_than_the_head_can_is_capped() -> None:
    engine = engine_of()
    rounds = finish(engine, FixedDepth(99), request_on(engine, 30))
    assert max(r.depth for r in rounds) == 3


def test_confidences_are_not_asked_for_unless_the_policy_wants_them() -> None:
    engine = engine_of()
    policy = Scripted(lambda batch: 2, boom)
    policy.wants_confidence = False
    assert finish(engine, policy, request_on(engine, 9))


def test_a_cut_verifies_fewer_drafts_than_were_made() -> None:
    engine = engine_of()
    policy = Scripted(lambda batch: 3, lambda confidence: [1])
    rounds = finish(engine, policy, request_on(engine, 30))
    deep = [r.slots[0] for r in rounds if r.slots[0].drafted == 3]
    assert deep
    assert {s.verified for s in deep} == {1}


def test_cutting_every_draft_is_a_plain_round_that_says_what_was_drafted() -> None:
    engine = engine_of()
    policy = Scripted(lambda batch: 2, lambda confidence: [0])
    request = request_on(engine, 8)
    rounds = finish(engine, policy, request)
    assert request.delivered == plain(8)
    assert (rounds[0].slots[0].drafted, rounds[0].slots[0].verified) == (2, 0)


def test_a_cut_may_differ_from_slot_to_slot() -> None:
    engine = engine_of(width=2)
    policy = Scripted(lambda batch: 3, lambda confidence: [0, 2])
    requests = [request_on(engine, 20), request_on(engine, 20, id=1)]
    round = next(decode(engine, policy, requests, clock=engine.clock))
    assert [s.verified for s in round.slots] == [0, 2]


def test_confidences_shown_are_nan_where_a_slot_has_no_draft() -> None:
    engine = engine_of(width=2)
    seen: list[FloatArray] = []

    def look(confidence: FloatArray) -> list[int]:
        seen.append(confidence)
        return [int(np.isfinite(row).sum()) for row in confidence]

    requests = [request_on(engine, 2), request_on(engine, 20, id=1)]
    next(decode(engine, Scripted(lambda batch: 3, look), requests, clock=engine.clock))
    assert np.isfinite(seen[0]).tolist() == [[True, False, False], [True, True, True]]


def test_a_consumer_that_stops_a_request_ends_it_before_the_next_round() -> None:
    engine = engine_of(width=2)
    first, second = request_on(engine, 40), request_on(engine, 40, id=1)
    for round in decode(engine, FixedDepth(1), [first, second], clock=engine.clock):
        if round.index == 2:
            first.stop = "stop"
        assert (round.width == 2) == (round.index <= 2)
    assert len(first.delivered) < 40
    assert (first.stop, second.stop) == ("stop", "length")


def test_a_consumer_that_leaves_early_keeps_what_it_saw() -> None:
    engine = engine_of()
    request = request_on(engine, 40)
    seen = 0
    for round in decode(engine, FixedDepth(2), [request], clock=engine.clock):
        seen += round.committed
        if round.index == 3:
            break
    assert len(request.delivered) == seen
    assert request.stop is None


def test_an_end_id_stops_a_request_and_the_others_go_on() -> None:
    end = plain(20)[7]
    engine = engine_of(width=2)
    ends = request_on(engine, 20, end_ids=frozenset({end}))
    goes = request_on(engine, 20, id=1)
    finish(engine, FixedDepth(3), ends, goes)
    assert ends.stop == "end"
    assert ends.delivered == plain(20)[: plain(20).index(end) + 1]
    assert goes.delivered == plain(20)


@given(depth=st.integers(0, 3), sampled=st.booleans())
@settings(max_examples=20, deadline=None)
def test_a_round_says_what_happened(depth: int, sampled: bool) -> None:
    engine = engine_of(language=Language(vocab=8))
    request = request_on(
        engine, 60, sampling=Sampling(temperature=1.0 * sampled), end_ids=frozenset({7})
    )
    rounds = finish(engine, FixedDepth(depth), request, first_index=10)
    assert [r.index for r in rounds] == list(range(10, 10 + len(rounds)))
    position = 3
    for round in rounds:
        (slot,) = round.slots
        assert slot.position == position
        assert slot.accepted <= slot.verified <= slot.drafted == round.depth
        assert slot.accepted <= slot.judged <= slot.verified
        if slot.ended:
            assert slot.committed in (slot.accepted, slot.accepted + 1)
        else:
            assert slot.committed == slot.accepted + 1
        assert len(slot.confidences or []) == slot.drafted
        position += slot.committed
    assert position == 3 + len(request.delivered)


def test_times_of_a_round_are_those_of_the_clock_given() -> None:
    engine = engine_of()
    rounds = finish(engine, FixedDepth(2), request_on(engine, 30))
    full = [r for r in rounds if r.depth == 2]
    assert {round(r.round_ms, 6) for r in full} == {13.0}
    assert (full[0].draft_ms, full[0].verify_ms, full[0].host_ms) == (1.0, 12.0, 0.0)
    assert full[1].start_ns - full[0].start_ns == 13_000_000


def test_a_round_carries_the_policys_decision_and_the_policy_observes_it() -> None:
    engine = engine_of()
    policy = Scripted()
    rounds = finish(engine, policy, request_on(engine, 9))
    assert policy.rounds == rounds
    assert rounds[0].decision == policy.decision()


def test_logprobs_come_with_the_tokens_they_belong_to() -> None:
    engine = engine_of()
    request = request_on(engine, 6, sampling=Sampling(logprobs=2), parked="log-probabilities")
    finish(engine, FixedDepth(2), request)
    assert [entry.token for entry in request.logprobs] == request.delivered


def test_a_negative_fixed_depth_is_refused() -> None:
    with pytest.raises(PolicyError, match="depth must be 0 or more"):
        FixedDepth(-1)


def test_fixed_depth_proposes_its_depth_and_verifies_every_draft_there_is() -> None:
    policy = FixedDepth(2)
    batch = Batch(caps=[3], contexts=[1], greedy=[True], route=lambda k: Route())
    assert policy.propose(batch) == 2
    assert policy.verify(np.array([[-0.1, np.nan], [-0.1, -0.2]])) == [1, 2]


def test_fixed_depth_explains_itself_and_learns_nothing() -> None:
    policy = FixedDepth(2)
    assert isinstance(policy, DepthPolicy)
    assert policy.decision() == Decision(
        selected=2, reason="fixed", cost_sample=False, excluded="fixed"
    )
    assert policy.parameters() == {"depth": 2}
    policy.restore({"depth": 5})
    assert (policy.depth, policy.state(), policy.explain()) == (2, {}, {})
