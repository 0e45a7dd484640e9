"""Which depth is worth a trial."""

from __future__ import annotations

import pytest

from mtpx.policy.acceptance import expected_tokens
from mtpx.policy.cost import MeasuredCosts
from mtpx.policy.trial import Trial, choose

CERTAIN = [1e-4] * 3


def timed(*cells: tuple[int, float], rounds: int = 0) -> MeasuredCosts:
    costs = MeasuredCosts()
    for depth, ms in cells:
        for _ in range(30):
            costs.sample(depth, ms)
    costs.advance(rounds)
    return costs


def trial(costs: MeasuredCosts, rates: list[float], credit: float, **more: object) -> Trial | None:
    tokens = expected_tokens(rates)
    return choose(costs, rates, CERTAIN, tokens, 0, credit=credit, measured_too=True, **more)  # type: ignore[arg-type]


def test_behind_a_dead_head_nothing_is_tried_however_cheap_it_may_be() -> None:
    costs = timed((0, 10.0), (1, 14.0), rounds=4000)
    assert trial(costs, [0.02, 0.02, 0.02], credit=10.0) is None


def test_a_depth_that_may_be_a_dip_is_tried() -> None:
    costs = timed((0, 10.0), (1, 20.0))
    found = trial(costs, [0.8, 0.75, 0.7], credit=10.0)
    assert found is not None
    assert found.depth > 1
    assert not found.known


def test_without_credit_a_depth_never_timed_is_tried_once_missing_it_is_dearer_than_the_trial() -> (
    None
):
    soon, late = (timed((0, 10.0), (1, 20.0), rounds=n) for n in (1, 1000))
    assert trial(soon, [0.8, 0.75, 0.7], credit=0.0) is None
    assert trial(late, [0.8, 0.75, 0.7], credit=0.0) is not None


def test_without_credit_a_timed_depth_is_not_tried_again() -> None:
    costs = timed((0, 10.0), (1, 19.0), (2, 22.0), (3, 26.0), rounds=1000)
    rates = [0.75, 0.7, 0.7]
    assert trial(costs, rates, credit=10.0) is not None
    assert trial(costs, rates, credit=0.0) is None


@pytest.mark.parametrize(("hoped", "tried"), [(None, False), ([0.9, 0.9, 0.9], True)])
def test_what_acceptance_may_be_just_as_well_is_a_reason(
    hoped: list[float] | None, *, tried: bool
) -> None:
    costs = timed((0, 10.0), (1, 15.0), (2, 20.0), (3, 25.0))
    found = trial(costs, [0.2, 0.2, 0.2], credit=10.0, hoped=hoped)
    assert (found is not None) is tried


def test_luck_in_tokens_and_luck_in_cost_are_not_both_counted_whole() -> None:
    """Each alone, or their sum, would make depth 3 worth it; together they are one chance in a hundred."""
    costs = timed((0, 10.0), (1, 14.0))
    rates, errors = [0.05] * 3, [0.02] * 3
    tokens = expected_tokens(rates)
    found = choose(costs, rates, errors, tokens, 0, credit=10.0, measured_too=False)
    assert found is None
