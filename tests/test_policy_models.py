"""The small models a depth policy is made of: costs, the gate, confidence, cuts."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_acceptance_rule import EXACT, Path, World, bias, worlds
from trace_makers import a_round, slot

from mtpx.errors import PolicyError
from mtpx.policy.confidence import EDGES, Calibration, isotonic
from mtpx.policy.cost import CostModel, MeasuredCosts
from mtpx.policy.cut import chain_cut, free_cut, goes_on, stopping_cut
from mtpx.policy.gate import Gate
from mtpx.policy.rehearsal import Prices, chain_length, rehearse, seen
from mtpx.round import Route

# -- costs -----------------------------------------------------------------------------------------


def test_a_new_sample_weighs_three_tenths_and_moves_a_quarter_at_most() -> None:
    model = CostModel()
    model.sample(0, 10.0)
    model.sample(0, 11.0)
    assert model.cost(0) == pytest.approx(10.3)
    model.sample(0, 1000.0)
    assert model.cost(0) == pytest.approx(10.3 * 1.075)


def test_costs_are_straight_between_samples_and_flat_outside() -> None:
    model = CostModel()
    model.sample(1, 10.0)
    assert not model.ready
    model.sample(3, 20.0)
    assert model.ready
    assert [model.cost(d) for d in (0, 1, 2, 3, 9)] == [10.0, 10.0, 15.0, 20.0, 20.0]


def test_an_empty_cost_model_has_no_cost() -> None:
    with pytest.raises(PolicyError):
        CostModel().cost(0)


@pytest.mark.parametrize("ms", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(ms: float) -> None:
    for model in (CostModel(), MeasuredCosts()):
        with pytest.raises(PolicyError, match="clock"):
            model.sample(0, ms)


def settled(*cells: tuple[int, float]) -> MeasuredCosts:
    costs = MeasuredCosts()
    for depth, ms in cells:
        for _ in range(20):
            costs.advance()
            costs.sample(depth, ms)
    return costs


def cost(costs: MeasuredCosts, depth: int) -> float:
    found = costs.cost(depth)
    assert found is not None
    return found


def test_one_stall_is_shrugged_off() -> None:
    costs = settled((0, 10.0))
    assert not costs.sample(0, 60.0)
    assert cost(costs, 0) == 10.0


def test_a_slower_machine_is_believed_after_four_rounds_and_at_every_depth() -> None:
    costs = settled((0, 10.0), (3, 20.0), (1, 12.0))
    for _ in range(4):
        costs.advance()
        costs.sample(1, 12.0 * 1.6)
    assert cost(costs, 1) == pytest.approx(19.2)
    assert cost(costs, 0) == pytest.approx(16.0, rel=0.02)
    # Deeper ones by the smaller of factor and difference.
    assert cost(costs, 3) == pytest.approx(20.0 + 7.2, rel=0.02)


def test_a_longer_context_ages_the_depths_that_are_not_visited() -> None:
    costs = settled((3, 20.0), (0, 10.0))
    for i in range(100):
        costs.advance()
        costs.sample(0, 10.0 + 0.1 * (i + 1))
    assert cost(costs, 0) == pytest.approx(20.0, rel=0.05)
    assert cost(costs, 3) == pytest.approx(30.0, rel=0.05)


def test_noise_at_one_depth_does_not_ratchet_another() -> None:
    random = np.random.default_rng(2)
    costs = settled((3, 20.0), (0, 10.0))
    for _ in range(3000):
        costs.advance()
        costs.sample(0, 10.0 * float(np.exp(0.03 * random.standard_normal())))
    assert cost(costs, 3) / cost(costs, 0) == pytest.approx(2.0, rel=0.1)


def test_a_noisy_machine_that_changes_shape_often_makes_no_depth_dearer() -> None:
    """Rounds that changed shape only correct downwards; what makes up for it must not be taken for the machine."""
    for seed in range(6):
        random = np.random.default_rng(seed)
        true = {1: 10.0, 2: 12.0, 3: 15.0}
        costs = settled(*true.items())
        last, wave, slow = 1, 0.0, 0
        for _ in range(6000):
            costs.advance()
            depth = last if random.random() < 0.6 else 3 - last
            wave = 0.98 * wave + 0.01 * float(random.standard_normal())
            slow = slow - 1 if slow else 30 * int(random.random() < 0.001)
            pace = math.exp(wave + 0.06 * float(random.standard_normal())) * (1.6 if slow else 1.0)
            ms = true[depth] * pace
            if depth == last:
                costs.sample(depth, ms)
            else:
                costs.bound(depth, ms)
            last = depth
        known = {depth: cost(costs, depth) / ms for depth, ms in true.items()}
        assert known[1] == pytest.approx(known[2], rel=0.2)
        assert known[3] / known[1] < 1.4


def test_a_machine_that_is_fast_again_is_so_at_every_depth() -> None:
    costs = settled((0, 10.0), (1, 12.0), (3, 20.0))
    for _ in range(8):
        costs.advance()
        costs.sample(1, 12.0)
    for _ in range(20):
        costs.advance()
        costs.sample(1, 19.2)
    assert cost(costs, 3) > 26.0
    costs.advance()
    costs.bound(1, 12.3)
    assert cost(costs, 1) == pytest.approx(12.3)
    assert cost(costs, 3) == pytest.approx(20.0, rel=0.06)


def test_what_a_slower_machine_added_is_forgotten_where_nothing_is_timed() -> None:
    costs = settled((0, 10.0), (3, 20.0))
    for _ in range(4000):
        costs.advance()
        costs.sample(0, 16.0)
    assert 20.0 <= cost(costs, 3) < 25.0


def test_a_stalled_first_sample_is_kept_only_once_confirmed() -> None:
    costs = settled((0, 10.0))
    assert not costs.sample(2, 60.0)
    assert not costs.measured(2)
    assert costs.sample(2, 12.0)
    assert cost(costs, 2) == 12.0


def test_a_first_sample_far_above_the_round_that_went_there_is_a_stall() -> None:
    """It is no dearer than other depths are, so without that round it would hide a dip for good."""
    costs = MeasuredCosts()
    for depth, ms in ((0, 10.0), (1, 30.0)):
        costs.sample(depth, ms)
        costs.sample(depth, ms)
    costs.bound(2, 13.0)
    assert not costs.sample(2, 36.0)
    assert not costs.measured(2)
    assert costs.sample(2, 12.0)
    assert costs.cost(2) == 12.0


def test_another_route_starts_anew_and_the_first_one_is_remembered() -> None:
    costs = settled((0, 10.0), (2, 30.0))
    costs.take_route(2, "eager")
    costs.take_route(2, "compiled")
    assert costs.cost(2) is None
    costs.sample(2, 15.0)
    costs.take_route(2, "compiled")
    costs.take_route(2, "eager")
    assert cost(costs, 2) == pytest.approx(30.0)


def test_what_was_learned_in_another_process_is_not_learned_from_its_first_rounds_anew() -> None:
    """A run of another process begins with noise, and a machine that is slower is so at every depth."""
    random = np.random.default_rng(4)
    costs = MeasuredCosts()
    for depth, ms in ((0, 10.0), (1, 12.0), (2, 15.0)):
        for _ in range(200):
            costs.advance()
            costs.sample(depth, ms * math.exp(0.08 * float(random.standard_normal())))
    again = MeasuredCosts()
    again.restore(json.loads(json.dumps(costs.state())))
    assert again.rounds == 600
    assert again.age(0) == costs.age(0)
    before = cost(again, 1) / cost(again, 2)
    for _ in range(10):
        again.advance()
        again.sample(2, 15.0 * 1.3)
    assert cost(again, 2) == pytest.approx(15.0 * 1.3, rel=0.1)
    assert cost(again, 1) / cost(again, 2) == pytest.approx(before, rel=0.1)


# -- the gate --------------------------------------------------------------------------------------


def test_the_gate_lets_the_second_of_two_equal_rounds_through() -> None:
    gate = Gate()
    rounds = [
        a_round(0, slot(1, 0)),
        a_round(1, slot(1, 1)),
        a_round(2, slot(2, 1)),
        a_round(3, slot(2, 1)),
        a_round(4, slot(2, 1), route=Route("compiled")),
        a_round(5, slot(2, 1), route=Route("compiled"), compiled_now=True),
        a_round(6, slot(2, 1), route=Route("compiled"), ms=-4.0),
        a_round(9, slot(2, 1), route=Route("compiled")),
        a_round(10, slot(2, 1, id=1), route=Route("compiled")),
    ]
    assert [gate.excluded(round) for round in rounds] == [
        "resume",
        "",
        "transition",
        "",
        "transition",
        "compile",
        "clock",
        "resume",
        "resume",
    ]


def test_a_cut_round_has_another_shape_than_a_full_one() -> None:
    gate = Gate()
    for index, verified in enumerate((3, 3, 2)):
        excluded = gate.excluded(a_round(index, slot(verified, 0, drafted=3)))
    assert excluded == "transition"


# -- confidence ------------------------------------------------------------------------------------


def test_a_cold_calibration_predicts_the_rate_whatever_the_confidence() -> None:
    calibration = Calibration()
    assert not calibration.ready
    assert {calibration.accepts(0, c, 0.6) for c in (-9.0, -1.0, 0.0, math.nan)} == {0.6}


def test_a_calibrated_confidence_comes_near_the_truth() -> None:
    random = np.random.default_rng(3)
    calibration = Calibration()
    for _ in range(4000):
        p = float(random.uniform(0.1, 1.0))
        calibration.observe([math.log(p)], 1, int(random.random() < p))
    for p in (0.25, 0.5, 0.75, 0.97):
        assert calibration.accepts(0, math.log(p), 0.55) == pytest.approx(p, abs=0.15)


@given(st.lists(st.tuples(st.floats(-8.0, 0.0), st.booleans()), max_size=120), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_more_confidence_is_never_predicted_less_acceptable(
    drafts: list[tuple[float, bool]], rate: float
) -> None:
    calibration = Calibration()
    for confidence, stood in drafts:
        calibration.observe([confidence], 1, int(stood))
    values = [calibration.accepts(0, c, rate) for c in sorted([*EDGES, 0.0, -9.0])]
    assert values == sorted(values)
    assert all(0.0 <= v <= 1.0 for v in values)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 9)), min_size=1, max_size=12))
def test_isotonic_regression_keeps_the_weighted_mean_and_never_falls(
    cells: list[tuple[float, float]],
) -> None:
    values, weights = [v for v, _ in cells], [w for _, w in cells]
    fitted = isotonic(values, weights)
    assert all(a <= b + 1e-12 for a, b in pairwise(fitted))
    assert np.dot(fitted, weights) == pytest.approx(np.dot(values, weights))


# -- cuts ------------------------------------------------------------------------------------------


def test_a_draft_that_does_not_pay_is_cut_and_a_wall_is_seen_past() -> None:
    assert free_cut([0.9, 0.1, 0.1], [10.0, 12.0, 14.0, 16.0], 0.1) == 1
    assert free_cut([0.9, 0.9, 0.9], [10.0, 20.0, 20.0, 12.0], 0.1) == 3
    assert stopping_cut([0.9, 0.1], [0.9, 0.9], [10.0, 12.0, 14.0], 0.1) == 1
    assert stopping_cut([0.9, 0.9, 0.9], [0.9] * 3, [10.0, 20.0, 20.0, 12.0], 0.1) == 3


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6),
    st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6),
    st.lists(st.floats(1.0, 50.0), min_size=7, max_size=7),
    st.floats(0.0, 1.0),
    st.data(),
)
def test_a_stopping_cut_never_looks_ahead(
    accepts: list[float],
    rates: list[float],
    verify: list[float],
    rate: float,
    data: st.DataObject,
) -> None:
    depth = stopping_cut(accepts, rates, verify, rate)
    unseen = len(accepts) - depth - 1
    if unseen > 0:
        other = data.draw(st.lists(st.floats(0.0, 1.0), min_size=unseen, max_size=unseen))
        assert stopping_cut([*accepts[: depth + 1], *other], rates, verify, rate) == depth
    for j in range(depth):
        # The decision for each verified draft stands whatever comes after it.
        tail = data.draw(st.lists(st.floats(0.0, 1.0), min_size=len(accepts) - j - 1,
                                  max_size=len(accepts) - j - 1))  # fmt: skip
        assert stopping_cut([*accepts[: j + 1], *tail], rates, verify, rate) > j


def sure_of(world: World, drafts: Path) -> list[float]:
    """Top-1 probability of the head at each draft: a function of the drafts before it."""
    return [float(world.q[drafts[:j]].max()) for j in range(len(drafts))]


VERIFY = [10.0, 11.0, 14.0, 15.0]


@given(worlds(), st.floats(0.02, 0.5))
@settings(max_examples=40, deadline=None)
def test_the_stopping_cut_commits_the_targets_joint(world: World, rate: float) -> None:
    def rule(drafts: Path) -> int:
        return stopping_cut(sure_of(world, drafts), [0.7] * len(drafts), VERIFY, rate)

    assert bias(world, rule) < EXACT


@given(worlds(point=True), st.floats(0.02, 0.5))
@settings(max_examples=20, deadline=None)
def test_the_free_cut_commits_the_targets_joint_for_argmax_drafts(
    world: World, rate: float
) -> None:
    def rule(drafts: Path) -> int:
        return free_cut([0.3 + 0.2 * t for t in drafts], VERIFY, rate)

    assert bias(world, rule) < EXACT


def test_the_free_cut_on_drawn_drafts_is_caught() -> None:
    """Negative control: it looks at a later confidence, which depends on the token drawn before."""
    half = np.array([0.5, 0.5])
    p = {(): half, (0,): half, (1,): half, (0, 0): half, (0, 1): half, (1, 0): half, (1, 1): half}
    q = {(): half, (0,): np.array([0.99, 0.01]), (1,): half}
    world = World(vocab=2, depth=2, p=p, q=q)

    def rule(drafts: Path) -> int:
        return free_cut(sure_of(world, drafts), [10.0, 18.0, 18.5], 0.11)

    assert {rule((0, 0)), rule((1, 0))} == {0, 2}
    assert bias(world, rule) > 0.01


def test_a_cut_on_the_drawn_token_is_caught() -> None:
    """Negative control: whether draft 1 is verified depends on which token it is."""
    half = np.array([0.5, 0.5])
    world = World(vocab=2, depth=1, p={(): half, (0,): half, (1,): half}, q={(): half})

    def rule(drafts: Path) -> int:
        return stopping_cut([0.9 if drafts[0] == 0 else 0.1], [0.5], [10.0, 13.0], 0.1)

    assert bias(world, rule) > 0.1


# -- chains that stop ------------------------------------------------------------------------------


def test_a_chain_goes_on_while_one_more_draft_pays_and_sees_past_a_wall() -> None:
    verify = [10.0, 10.5, 11.0, 11.5]
    draft = [0.0, 1.0, 2.0, 3.0]
    assert goes_on([0.9], [0.5] * 3, verify, draft, 0.1)
    assert not goes_on([0.2], [0.5] * 3, verify, draft, 0.1)
    assert goes_on([0.9], [0.9] * 3, [10.0, 10.5, 14.0, 11.5], [0.0, 0.5, 1.0, 1.5], 0.1)
    assert not goes_on([0.9], [0.9] * 1, verify, [0.0] * 4, 0.1), "there is no room for another"
    # A first step that is dear is paid for already.
    assert goes_on([0.9], [0.5] * 3, verify, [0.0, 20.0, 21.0, 22.0], 0.1)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5),
    st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5),
    st.lists(st.floats(1.0, 50.0), min_size=6, max_size=6),
    st.floats(0.0, 1.0),
    st.floats(0.0, 5.0),
)
def test_dearer_head_steps_never_make_a_chain_longer(
    accepts: list[float], rates: list[float], verify: list[float], rate: float, step: float
) -> None:
    draft = [step * d for d in range(6)]
    if goes_on(accepts, rates, verify, draft, rate):
        assert goes_on(accepts, rates, verify, [ms / 2.0 for ms in draft], rate)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5),
    st.floats(0.0, 1.0),
    st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5),
    st.lists(st.floats(1.0, 50.0), min_size=6, max_size=6),
    st.floats(0.0, 1.0),
)
def test_a_surer_draft_never_ends_a_chain(
    accepts: list[float], surer: float, rates: list[float], verify: list[float], rate: float
) -> None:
    draft = [0.5 * d for d in range(6)]
    if goes_on(accepts, rates, verify, draft, rate):
        more = [*accepts[:-1], max(surer, accepts[-1])]
        # Give or take rounding, on what is a tie.
        assert goes_on(more, rates, verify, [ms - 1e-6 * d for d, ms in enumerate(draft)], rate)


def test_the_last_draft_of_a_chain_is_cut_where_its_row_costs_more_than_it_brings() -> None:
    assert chain_cut([0.9, 0.1], [10.0, 11.0, 14.0], 0.1) == 1
    assert chain_cut([0.9, 0.9], [10.0, 11.0, 14.0], 0.1) == 2
    assert chain_cut([], [10.0], 0.1) == 0


def chained(world: World, drafts: Path, rate: float) -> tuple[int, int]:
    """(drafts made, drafts verified) of a chain asked step by step."""
    sure, rates = sure_of(world, drafts), [0.7] * len(drafts)
    made = chain_length(
        sure, rates, VERIFY, Prices(VERIFY, [0.5 * d for d in range(len(VERIFY))], 1.0, rate)
    )
    return made, chain_cut(sure[:made], VERIFY, rate)


@given(worlds(), st.floats(0.02, 0.5))
@settings(max_examples=40, deadline=None)
def test_a_chain_that_stops_and_cuts_its_last_draft_commits_the_targets_joint(
    world: World, rate: float
) -> None:
    assert bias(world, lambda drafts: chained(world, drafts, rate)[1]) < EXACT


@given(worlds(), st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_ends_a_chain_its_drafts_may_all_be_verified(
    world: World, data: st.DataObject
) -> None:
    """Even the drawn tokens: what was never made is not discarded."""
    further = {
        path: data.draw(st.booleans()) for n in range(1, world.depth) for path in world.prefixes(n)
    }

    def rule(drafts: Path) -> int:
        return next((j for j in range(1, world.depth) if not further[drafts[:j]]), world.depth)

    assert bias(world, rule) < EXACT


def fair_first() -> World:
    """Two tokens, each as likely; after the first of them the head is sure, after the other it is not."""
    half = np.array([0.5, 0.5])
    p = {(): half, (0,): half, (1,): half, (0, 0): half, (0, 1): half, (1, 0): half, (1, 1): half}
    return World(2, 2, p, {(): half, (0,): np.array([0.99, 0.01]), (1,): half})


def test_dropping_a_draft_that_was_gone_on_from_is_caught() -> None:
    """Negative control: the chain went on, and what the next step said throws both drafts away."""
    world = fair_first()

    def rule(drafts: Path) -> int:
        return free_cut(sure_of(world, drafts), [10.0, 18.0, 18.5], 0.11)

    assert {rule((0, 0)), rule((1, 0))} == {0, 2}
    assert bias(world, rule) > 0.01


def test_dropping_the_draft_a_chain_stopped_at_for_its_token_is_caught() -> None:
    """Negative control: the chain stops after token 1, and takes it with it."""
    assert bias(fair_first(), lambda drafts: 2 if drafts[0] == 0 else 0) > 0.01


def test_a_rehearsal_counts_the_head_steps_a_chain_saves_and_what_asking_costs() -> None:
    rows = seen([("greedy", [-0.1]), ("greedy", [-3.0])], 2, lambda m, j, c, r: float(c > -1.0),
                lambda m, k: [0.5] * k)  # fmt: skip
    prices = Prices([10.0, 10.0, 10.0], [0.0, 2.0, 4.0], 1.0, 0.1)
    # The sure row makes two drafts (1 + 1 + 0.5 tokens), the other one.
    through = rehearse(rows, 2, prices, stepwise=False, read_ms=0.0)
    steps = rehearse(rows, 2, prices, stepwise=True, read_ms=0.0)
    assert through == pytest.approx((2.5 + 1.0) / (14.0 + 14.0))
    assert steps == pytest.approx((2.5 + 1.0) / (14.0 + 12.0))
    asked = rehearse(rows, 2, prices, stepwise=True, read_ms=1.0)
    assert asked == pytest.approx((2.5 + 1.0) / (16.0 + 13.0))
