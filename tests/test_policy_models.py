"""What confidence is worth, and how much of a chain is made and verified by it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_acceptance_rule import EXACT, Path, World, bias, worlds

from mtpx.policy.confidence import EDGES, Calibration, isotonic
from mtpx.policy.cut import chain_cut, free_cut, goes_on, stopping_cut
from mtpx.policy.rehearsal import Prices, chain_length, rehearse, seen

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
