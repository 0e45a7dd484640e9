"""Rounds that need no thought are learned from later, and nothing is lost by it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mtpx.policy import Batch
from mtpx.policy.acceptance import expected_tokens
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.confidence import EDGES
from mtpx.policy.cost import MeasuredCosts
from mtpx.policy.cut import free_cut, goes_on
from mtpx.policy.cutting import Cutting
from mtpx.policy.drift import DriftingAcceptance
from mtpx.policy.experience import Experience
from mtpx.policy.informed import InformedRound
from mtpx.round import Round, Route, SlotRound

MS = [10.0, 11.0, 12.5, 15.0, 18.0]
ROUTE = Route("compiled", "")


class Driven:
    """A policy and rounds for it: drafts stand with probability `rate`."""

    def __init__(self, policy: AdaptiveDepth, rate: float = 0.8, *, at_once: bool = False) -> None:
        self.policy, self.rate, self.at_once = policy, rate, at_once
        self.index = self.request = 0
        self.random = random.Random(5)

    def round(self, ms: float | None = None, depth: int | None = None) -> Round:
        batch = Batch([4], [100], [True], lambda k: ROUTE)
        proposed = self.policy.propose(batch)
        depth = proposed if depth is None else depth
        accepted = 0
        while accepted < depth and self.random.random() < self.rate:
            accepted += 1
        slot = SlotRound(self.request, 100, depth, depth, accepted, accepted + 1)
        took = MS[depth] if ms is None else ms
        round = Round(self.index, 0, depth, [slot], took, ROUTE, False, 0.5 * depth or None, None)
        round.decision = self.policy.decision()
        self.policy.observe(round)
        if self.at_once:
            self.policy.explain()
        self.index += 1
        return round

    def settle(self) -> None:
        for _ in range(300):
            self.round()


def test_rounds_of_a_stretch_teach_what_they_would_have_taught_at_once() -> None:
    later = Driven(AdaptiveDepth(cuts=False))
    at_once = Driven(AdaptiveDepth(cuts=False), at_once=True)
    for _ in range(400):
        a, b = later.round(), at_once.round()
        if a.depth != b.depth:
            break
        assert a.decision == b.decision
    assert later.index > 200, "they part when a trial begins a few rounds earlier in one of them"
    one, other = later.policy.state(), at_once.policy.state()
    for depth, (ms, *_) in one["costs"]["1/1"]["ms"].items():
        assert ms == pytest.approx(other["costs"]["1/1"]["ms"][depth][0], rel=0.01)
    rates = one["acceptance"]["greedy"]["rates"]
    assert rates == pytest.approx(other["acceptance"]["greedy"]["rates"], abs=0.02)


def test_between_two_selections_nothing_is_learned_and_state_and_explain_know_it_all() -> None:
    driven = Driven(AdaptiveDepth(cuts=False))
    driven.settle()
    driven.policy.explain()
    learned = []
    driven.policy.seen.learn = lambda slot, mode: learned.append(slot) or False  # type: ignore[method-assign, assignment, func-returns-value]
    most = 0
    for _ in range(40):
        before = len(learned)
        driven.round()
        most = max(most, len(learned) - before)
    assert most >= 6
    driven.policy.explain()
    assert len(learned) == 40
    driven.round()
    driven.policy.state()
    assert len(learned) == 41


def test_a_stall_in_a_stretch_is_looked_at_at_once() -> None:
    driven = Driven(AdaptiveDepth(cuts=False))
    driven.settle()
    for _ in range(20):
        stalled = driven.round(ms=4.0 * MS[driven.policy.selected])
        assert stalled.decision is not None
        if stalled.decision.excluded == "stall":
            break
        for _ in range(5):
            driven.round()
    else:
        pytest.fail("no stall was told")
    assert stalled.decision.cost_sample is False


def test_drafts_that_fall_in_a_row_end_a_stretch() -> None:
    driven = Driven(AdaptiveDepth(cuts=False))
    driven.settle()
    policy = driven.policy
    policy.explain()
    while policy._stretch is None or policy._stretch.left < 12:
        driven.round()
    assert policy.selected
    driven.rate = 0.0
    for _ in range(3):
        driven.round()
        if not policy._stretch.left:
            break
    assert not policy._stretch.left
    pending = len(policy._stretch.pending)
    driven.round()
    assert len(policy._stretch.pending) < pending, "it was learned from"


def test_what_changed_ends_a_stretch() -> None:
    """Another request, a sequence that may not draft, two sequences, another regime."""
    driven = Driven(AdaptiveDepth(cuts=False))
    driven.settle()
    policy = driven.policy
    route = lambda k: ROUTE  # noqa: E731
    for batch, most in (
        (Batch([0], [100], [True], route), 0),
        (Batch([1], [100], [True], route), 1),
        (Batch([4, 4], [100, 50], [True, True], route), 4),
        (Batch([4], [100], [False], route), 4),
    ):
        driven.settle()
        assert policy.propose(batch) <= most
        assert policy._stretch is None or policy._stretch.left >= 0
    driven.request += 1
    first = driven.round()
    assert first.decision is not None
    assert first.decision.excluded == "resume"


def test_an_outcome_that_is_none_is_refused_within_a_stretch() -> None:
    from mtpx.errors import PolicyError

    driven = Driven(AdaptiveDepth(cuts=False))
    driven.settle()
    driven.round()
    slot = SlotRound(driven.request, 100, 1, 1, 2, 3)
    with pytest.raises(PolicyError, match="no outcome"):
        driven.policy.observe(Round(driven.index, 0, 1, [slot], MS[1], ROUTE))


@pytest.mark.parametrize("by_number", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_lone_chain_by_its_tables_is_the_chain_by_its_rule(seed: int, by_number: bool) -> None:
    rng = np.random.default_rng(seed)
    seen, cutting, costs = Experience(), Cutting(), MeasuredCosts()
    for _ in range(600):
        sure = (-rng.exponential(1.0, 3)).tolist()
        accepted = int(np.cumprod(rng.random(3) < np.exp(sure)).sum())
        slot = SlotRound(0, 0, 3, 3, accepted, accepted + 1, False, sure)
        seen.learn(slot, "greedy")
    for depth, ms in enumerate(np.cumsum(rng.uniform(0.5, 5.0, 4)) + 10.0):
        costs.sample(depth, float(ms))
        costs.sample(depth, float(ms))
        cutting.drafts.note(depth, 0.2 + 0.7 * depth, 0, stepwise=False)
    cutting.depth, cutting.stepwise = 3, True
    for _ in range(40):
        cutting.last = int(rng.integers(0, 4))
        chain = InformedRound(cutting, seen, costs, ["greedy"], [3], 1)
        sure = -rng.exponential(1.0, 3)
        means, prices = seen.means("greedy", 3), chain._prices
        verify = prices.after(cutting.last)
        made = 1
        while made < 3:
            accepts = [seen.accepts("greedy", j, float(sure[j]), means[j]) for j in range(made)]
            further = goes_on(accepts, means, verify, prices.draft, prices.rate)
            if by_number:
                assert chain.lone_goes_on(float(sure[made - 1])) == further
            else:
                assert chain.go_on(sure[None, :made]) == [further]
            if not further:
                break
            made += 1
        accepts = [seen.accepts("greedy", j, float(sure[j]), means[j]) for j in range(made)]
        wanted = free_cut(accepts, verify, prices.rate)
        if by_number:
            if made == 3:
                chain.lone_goes_on(float(sure[2]))
            assert chain.settled == (wanted == made)
            assert chain.lone_verify() == wanted
            assert chain.cut == made - wanted
        elif chain.settled:
            assert wanted == made, "what is not asked about is verified whole"
        else:
            assert chain.verify(sure[None, :made]) == [wanted]
            assert chain.cut == made - wanted


def test_a_chain_that_ended_itself_is_not_read_again() -> None:
    seen, cutting, costs = Experience(), Cutting(), MeasuredCosts()
    for depth, ms in enumerate([10.0, 13.0, 17.0]):
        costs.sample(depth, ms)
        costs.sample(depth, ms)
        cutting.drafts.note(depth, 0.5 * depth + 0.1, 0, stepwise=False)
    for stood, sure in ((40, -0.01), (0, -3.0)):
        for i in range(40):
            seen.learn(SlotRound(0, 0, 1, 1, int(i < stood), 1, False, [sure]), "greedy")
    cutting.depth, cutting.stepwise, cutting.last = 2, True, 1
    chain = InformedRound(cutting, seen, costs, ["greedy"], [2], 1)
    assert chain.go_on(np.array([[-0.01]])) == [False]
    assert chain.settled, "a draft worth its row"
    chain.begin()
    assert chain.go_on(np.array([[-3.0]])) == [False]
    assert not chain.settled, "this one is to be cut"
    assert chain.verify(np.array([[-3.0]])) == [0]


@pytest.mark.parametrize(("reading", "hurried"), [(False, 1), (True, 0)])
def test_an_answer_hurries_a_trial_unless_chains_go_by_confidence(
    reading: bool, hurried: int
) -> None:
    driven = Driven(AdaptiveDepth())
    driven.settle()
    policy, hurries = driven.policy, []
    policy.asking.answer_begins = lambda: hurries.append(1)  # type: ignore[method-assign]
    policy.cutting.depth = 2 if reading else 0
    driven.request += 1
    driven.round()
    assert len(hurries) == hurried


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_a_machine_that_is_believed_to_be_another_has_the_use_of_confidence_looked_at_again(
    slower: float,
) -> None:
    """Chains were judged by costs that hold no longer; the next look would be up to 256 rounds off."""
    driven = Driven(AdaptiveDepth())
    driven.settle()
    policy, looks = driven.policy, []
    policy.cutting._rows.extend([("greedy", [-0.1, -0.1])] * 128)
    policy.cutting._since, policy.cutting._wait = 0, 256
    policy.cutting.depth, policy.cutting.stepwise = 2, True
    policy.cutting.look = lambda *known: looks.append(known)  # type: ignore[method-assign, assignment]
    for _ in range(20):
        driven.round(slower * MS[2], 2)
    assert bool(looks) == (slower > 1.0)


# -- what an answer says of the next one -----------------------------------------------------------


def test_answers_that_begin_count_nothing_twice() -> None:
    model = DriftingAcceptance()
    for _ in range(12):
        model.observe(1, 0)
    for _ in range(30):
        model.begin()
        assert model.worth(0) <= 12.0


def test_a_head_that_one_unlucky_text_parked_is_tried_on_one_of_the_next() -> None:
    """Twelve drafts fell in a row in the first answer ever; drafts of the others stand."""
    policy = AdaptiveDepth(cuts=False)
    driven = Driven(policy, rate=0.0)
    while policy.seen.acceptance["greedy"].worth(0) < 12.0 or policy.selected:
        driven.round()
        assert driven.index < 200
    driven.rate = 0.8
    for answer in range(12):  # noqa: B007
        driven.request += 1
        for _ in range(40):
            driven.round()
        if policy.selected:
            break
    assert answer <= 8
    assert expected_tokens(policy.seen.means("greedy", 1))[1] > 1.5


# -- confidence ------------------------------------------------------------------------------------


def test_a_position_seldom_reached_learns_from_the_others_what_confidence_means() -> None:
    seen = Experience()
    for i in range(400):
        sure = -0.01 if i % 2 else -1.5
        seen.learn(SlotRound(0, 0, 1, 1, int(sure > -1.0), 1, False, [sure]), "greedy")
    for _ in range(3):
        seen.learn(SlotRound(0, 0, 2, 2, 2, 3, False, [-0.01, -0.3]), "greedy")
    assert seen.accepts("greedy", 1, -1.5, 0.5) < 0.2
    assert seen.accepts("greedy", 1, -0.01, 0.5) > 0.8


def test_a_text_whose_drafts_fall_lowers_every_confidence_until_another_begins() -> None:
    seen = Experience()
    rng = random.Random(1)
    for _ in range(600):
        sure = -rng.expovariate(1.0)
        stood = rng.random() < 2.7182818**sure
        seen.learn(SlotRound(0, 0, 1, 1, int(stood), 1, False, [sure]), "greedy")
    usual = seen.accepts("greedy", 0, -0.4, 0.5)
    for _ in range(12):
        seen.learn(SlotRound(0, 0, 1, 1, 0, 1, False, [-0.4]), "greedy")
    lowered = seen.accepts("greedy", 0, -0.4, 0.5)
    assert lowered < usual - 0.2
    for _ in range(60):
        seen.learn(SlotRound(0, 0, 1, 0, 0, 1, False, [-0.4]), "greedy")
    assert seen.accepts("greedy", 0, -0.4, 0.5) > lowered + 0.1, "unjudged, it fades"
    seen.begin()
    seen.begin()
    assert seen.accepts("greedy", 0, -0.4, 0.5) == pytest.approx(usual, abs=0.1)
    table = seen.table("greedy", 0, 0.5)
    assert table == sorted(table)
    assert table[-1] == seen.accepts("greedy", 0, 0.0, 0.5)
    assert len(table) == len(EDGES) + 1


# -- costs that went wrong while the machine was slow ----------------------------------------------


def test_a_round_that_changed_its_shape_corrects_a_cost_that_is_too_high() -> None:
    costs = MeasuredCosts()
    for depth, ms in enumerate([10.0, 11.0, 16.0]):
        costs.sample(depth, ms)
        costs.sample(depth, ms)
    costs.bound(2, 15.0)
    assert costs.cost(2) == 16.0, "within noise"
    costs.bound(2, 12.5)
    assert costs.cost(2) == 12.5
    costs.bound(1, 20.0)
    assert costs.cost(1) == 11.0, "a change of shape is dear: it raises nothing"


def test_a_depth_that_chains_shun_is_timed_again_sometimes() -> None:
    """Timed while the machine was slow, depth 1 looks dearer than it is; a chain makes two drafts then, or none."""
    policy = AdaptiveDepth()
    driven = Driven(policy)
    driven.settle()
    policy.cutting.depth, policy.cutting.stepwise = 3, True
    costs = policy.seen.costs_of((1, 1))
    costs.depths[1].ms, costs.depths[1].seen = 30.0, costs.rounds
    shunned = costs.rounds
    for _ in range(900):
        batch = Batch([4], [100], [True], lambda k: ROUTE)
        depth = policy.propose(batch)
        made = min(depth, 2) if policy.wants_steps else depth
        slot = SlotRound(driven.request, 100, made, made, made, made + 1, False, [-0.1] * made)
        ms = MS[made]
        policy.observe(
            Round(driven.index, 0, made, [slot], ms, ROUTE, False, 0.5 * made or None, None)
        )
        driven.index += 1
        if (costs.cost(1) or 0.0) < 13.0:
            break
        policy.cutting.depth, policy.cutting.stepwise = 3, True
    assert costs.cost(1) == pytest.approx(MS[1], rel=0.1)
    assert costs.rounds - shunned < 700


def test_routes_are_looked_at_however_long_stretches_are() -> None:
    """A verifier that was compiled meanwhile is noticed within some thirty rounds."""
    driven = Driven(AdaptiveDepth(cuts=False))
    driven.settle()
    looks = []

    def route(depth: int) -> Route:
        looks.append(depth)
        return ROUTE

    for _ in range(32):
        driven.policy.propose(Batch([4], [100], [True], route))
    assert looks
