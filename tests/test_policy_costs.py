"""What a round costs, as a policy learns it, and which rounds may teach it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from trace_makers import a_round, slot

from mtpx.errors import PolicyError
from mtpx.policy.cost import CostModel, MeasuredCosts
from mtpx.policy.gate import Gate
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
