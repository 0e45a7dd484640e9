"""Which depth and which rows: the planner's pure arithmetic."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_makers import (
    by_confidence,
    by_position,
    calibrations,
    confidence,
    drafts_of_a_batch,
    table,
    tables,
)

from mtpx.errors import PolicyError
from mtpx.policy.calibration import Calibration
from mtpx.policy.planner import Objective, plan_rows, propose_depth, sequence_depths
from mtpx.policy.published import published
from mtpx.policy.table import CostTable

objectives = st.sampled_from(["speed", "balanced", "energy"])
slacks = st.floats(0.0, 0.9)

GB10_SPEED = {
    1: [12.5, 19.1, 21.4, 22.1],
    2: [24.0, 39.3, 43.8, 44.0],
    4: [47.0, 73.0, 63.7, 65.7],
    8: [80.0, 104.7, 100.9, 102.3],
}
GB10_ENERGY = {
    1: [0.249, 0.298, 0.327, 0.463],
    2: [0.417, 0.707, 0.809, 0.774],
    4: [0.920, 1.115, 1.255, 1.284],
    8: [1.539, 1.829, 1.765, 1.767],
}
"""tok/s and tok/J by width and depth: the published table with its own priors (Metrale, 2026-10-04)."""


# -- the depth to propose --------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "depth"), [(1, 3), (2, 2), (4, 1), (8, 1)])
def test_the_published_table_gives_its_golden_depths(n: int, depth: int) -> None:
    costs, calibration = published("gb10-qwen3.8-27b")
    assert propose_depth(costs, calibration, n, 0.0, 32).depth == depth


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_the_published_table_gives_its_golden_rates(n: int) -> None:
    costs, calibration = published("gb10-qwen3.8-27b")
    options = propose_depth(costs, calibration, n, 0.0, 32).options
    assert [o.tokens_per_s for o in options] == pytest.approx(GB10_SPEED[n], abs=0.051)
    assert [o.tokens_per_j for o in options] == pytest.approx(GB10_ENERGY[n], abs=0.00051)


def test_cheap_rows_go_deep() -> None:
    costs = table({1: [10.0, 10.1, 10.2, 10.3]}, draft=0.1)
    assert propose_depth(costs, by_position(0.9), 1, 0.0, 8).depth == 3


def test_a_second_row_that_does_not_pay_stays_at_one() -> None:
    costs = table({1: [10.0, 11.0, 20.0]}, draft=0.5)
    assert propose_depth(costs, by_position(0.7), 1, 0.0, 8).depth == 1


def test_above_the_cap_the_cap_wins() -> None:
    costs = table({1: [10.0, 10.1], 4: [10.0, 10.1]}, draft=0.1)
    assert propose_depth(costs, by_position(0.9), 4, 0.0, 4).depth == 1
    capped = propose_depth(costs, by_position(0.9), 5, 0.0, 4)
    assert (capped.depth, capped.zero, capped.options) == (0, "by_cap", [])


def test_no_drafting_when_it_is_neither_faster_nor_cheaper() -> None:
    costs = table({1: [10.0, 25.0]}, draft=1.0)
    choice = propose_depth(costs, by_position(0.5), 1, 0.0, 8)
    assert (choice.depth, choice.zero) == (0, "by_cost")


def test_a_depth_that_is_chosen_is_no_zero() -> None:
    choice = propose_depth(table({1: [10.0, 10.1]}, draft=0.1), by_position(0.9), 1, 0.0, 8)
    assert (choice.depth, choice.zero) == (1, "")


def test_slack_admits_a_slower_depth_that_saves_energy() -> None:
    costs = table({1: [10.0, 10.0, 16.0]}, draft=0.01, joules={1: [3.0, 3.0, 3.2]})
    calibration = by_position(0.9)
    assert propose_depth(costs, calibration, 1, 0.0, 8).depth == 1
    assert propose_depth(costs, calibration, 1, 0.15, 8).depth == 2


def test_balanced_holds_its_floor_against_the_fastest_depth() -> None:
    costs = table({1: [10.0, 10.0, 8.0]}, draft=0.01, joules={1: [3.0, 1.0, 3.0]})
    calibration = by_position(0.5)
    assert propose_depth(costs, calibration, 1, 0.1, 8, objective="energy").depth == 1
    assert propose_depth(costs, calibration, 1, 0.1, 8, objective="balanced").depth == 2


def test_speed_takes_the_fastest_depth_whatever_it_draws() -> None:
    costs = table({1: [10.0, 10.0, 9.0]}, draft=0.01, joules={1: [1.0, 1.0, 90.0]})
    assert propose_depth(costs, by_position(0.9), 1, 0.0, 8, objective="speed").depth == 2


def test_ties_stay_shallower() -> None:
    costs = table({1: [10.0, 15.0, 17.5]}, draft=1e-300)
    assert propose_depth(costs, by_position(0.5), 1, 0.0, 8, objective="speed").depth == 0


def test_a_table_without_depth_one_compares_with_depth_zero() -> None:
    choice = propose_depth(table({1: [10.0]}), by_position(0.9), 1, 0.0, 8)
    assert (choice.depth, choice.zero, len(choice.options)) == (0, "by_cost", 1)


def test_a_budgets_end_bounds_the_depth() -> None:
    costs = table({1: [10.0, 10.1, 10.2, 10.3]}, draft=0.1)
    assert propose_depth(costs, by_position(0.9), 1, 0.0, 8, limit=2).depth == 2


def test_the_constraint_is_on_the_whole_batch_at_its_own_width() -> None:
    costs, calibration = published("gb10-qwen3.8-27b")
    one, eight = (propose_depth(costs, calibration, n, 0.0, 8).options[0].tokens for n in (1, 8))
    assert eight == 8 * one


@given(tables(), calibrations(), st.integers(1, 10), slacks, objectives)
def test_the_chosen_depth_is_the_best_that_is_fast_enough(
    costs: CostTable, calibration: Calibration, n: int, slack: float, objective: Objective
) -> None:
    choice = propose_depth(costs, calibration, n, slack, 10, objective=objective)
    at = costs.costs(n)
    tokens, rates, scores = [], [], []
    for k in range(costs.max_k + 1):
        expected = n * (
            1 + sum(prod(calibration.prior(t + 1) for t in range(j + 1)) for j in range(k))
        )
        ms = at.verify_ms[k] + at.draft_ms[k]
        joules = at.verify_j[k] + at.draft_j[k]  # type: ignore[index]
        tokens.append(expected)
        rates.append(expected / ms)
        scores.append(expected / (ms if objective == "speed" else joules))
    reference = max(rates) if objective == "balanced" else rates[min(1, costs.max_k)]
    floor = 0.0 if objective == "speed" else (1 - slack) * reference
    allowed = [k for k, rate in enumerate(rates) if rate >= floor * (1 - 1e-9)]
    assert choice.depth in allowed
    assert scores[choice.depth] >= max(scores[k] for k in allowed) * (1 - 1e-9)


# -- the rows to verify ----------------------------------------------------------------------------

FREE = table({n: [10.0, 10.0, 10.0, 10.0, 10.0] for n in (1, 8)}, draft=0.1)
"""Rows cost nothing."""

DEAR = table({n: [10.0, 20.0, 30.0, 40.0, 50.0] for n in (1, 8)}, draft=0.1)
"""Every row costs a whole step."""


def test_every_cap_is_respected() -> None:
    said = [[-0.01] * 4, [-0.01] * 2, [], [-0.01] * 3]
    counts = [4, 2, 0, 3]
    assert sequence_depths(FREE, by_confidence(), said, counts, 3, 99, 0.0) == [3, 2, 0, 3]
    assert sum(sequence_depths(FREE, by_confidence(), said, counts, 3, 5, 0.0)) == 5
    shallow = table({1: [10.0, 10.0]}, draft=0.1)
    assert sequence_depths(shallow, by_confidence(), said, counts, 3, 99, 0.0) == [1, 1, 0, 1]


def test_nothing_is_verified_at_depth_zero() -> None:
    assert sequence_depths(FREE, by_confidence(), [[-0.01]], [1], 0, 9, 0.0) == [0]


def test_a_contested_row_goes_to_the_more_confident() -> None:
    said = [[-0.3, -0.3], [-0.01, -0.01]]
    assert sequence_depths(FREE, by_confidence(), said, [2, 2], 2, 3, 0.0) == [1, 2]


def test_a_tie_goes_to_the_earlier_sequence_then_to_the_shallower_row() -> None:
    sure = by_confidence([1.0] * 10)
    said = [[-0.01] * 3, [-0.01] * 3]
    assert sequence_depths(FREE, sure, said, [3, 3], 3, 3, 0.0) == [2, 1]
    assert sequence_depths(FREE, sure, said, [3, 3], 3, 4, 0.0) == [3, 1]


def test_a_row_that_does_not_pay_is_not_the_last_one_tried() -> None:
    costs = table({1: [10.0, 11.0, 25.0, 11.0]}, draft=0.1)
    assert sequence_depths(costs, by_position(0.8), [[]], [3], 3, 3, 0.0) == [3]


def test_rows_that_never_pay_keep_one_draft_each() -> None:
    said = [[-0.01] * 4, [-0.2] * 4, [-3.0] * 4]
    assert sequence_depths(DEAR, by_confidence(), said, [4, 4, 4], 4, 12, 0.0) == [1, 1, 1]


def test_drafts_without_confidences_are_judged_by_their_position() -> None:
    said: list[list[float]] = [[], [-0.3, -0.3]]
    likely = by_confidence(priors=(0.99,))
    assert sequence_depths(FREE, likely, said, [2, 2], 2, 3, 0.0) == [2, 1]
    unlikely = by_confidence(priors=(0.1,))
    assert sequence_depths(FREE, unlikely, said, [2, 2], 2, 3, 0.0) == [1, 2]


def test_the_budget_counts_draft_rows_and_not_the_pending_tokens_own() -> None:
    said = [[-0.01]] * 4
    assert sequence_depths(FREE, by_confidence(), said, [1] * 4, 1, 4, 0.0) == [1] * 4


def test_base_rows_over_the_budget_make_a_plain_step() -> None:
    plan = plan_rows(FREE, by_confidence(), [[-0.01]] * 4, [1] * 4, 1, 3, 0.0)
    assert (plan.depths, plan.over_budget) == ([0] * 4, True)


def test_a_sequence_without_drafts_takes_no_base_row() -> None:
    said = [[-0.01], [], [-0.01]]
    assert sequence_depths(FREE, by_confidence(), said, [1, 0, 1], 1, 2, 0.0) == [1, 0, 1]


def test_drafts_already_made_are_paid_for() -> None:
    # Alone, a second draft is not worth its head step; once it is there, only its row is to be paid.
    costs = table({1: [10.0, 10.0, 13.0]}, draft=8.0)
    calibration = by_position(0.7)
    assert propose_depth(costs, calibration, 1, 0.0, 8, objective="speed").depth < 2
    assert sequence_depths(costs, calibration, [[]], [2], 2, 2, 0.0, objective="speed") == [2]


def test_the_depths_follow_their_sequences_when_these_change_places() -> None:
    said = [[-0.01] * 3, [-3.0] * 3, [-0.2] * 3]
    depths = sequence_depths(FREE, by_confidence(), said, [3] * 3, 3, 6, 0.0)
    assert len(set(depths)) == 3, "the example tells the sequences apart"
    for order in ([2, 0, 1], [1, 2, 0], [2, 1, 0]):
        moved = sequence_depths(FREE, by_confidence(), [said[i] for i in order], [3] * 3, 3, 6, 0.0)
        assert moved == [depths[i] for i in order]


def test_raising_a_sequences_confidence_never_shortens_it() -> None:
    for low, high in ((-3.0, -0.6), (-0.6, -0.15), (-0.15, -0.01)):
        one = sequence_depths(FREE, by_confidence(), [[low] * 3, [-0.2] * 3], [3, 3], 3, 4, 0.0)
        other = sequence_depths(FREE, by_confidence(), [[high] * 3, [-0.2] * 3], [3, 3], 3, 4, 0.0)
        assert other[0] >= one[0]


@given(
    st.lists(st.lists(confidence, min_size=1, max_size=4), min_size=2, max_size=4),
    st.data(),
)
def test_raising_a_confidence_never_takes_a_row_at_an_equal_total(
    said: list[list[float]], data: st.DataObject
) -> None:
    counts = [len(row) for row in said]
    budget = data.draw(st.integers(len(said), sum(counts)))
    i = data.draw(st.integers(0, len(said) - 1))
    j = data.draw(st.integers(0, counts[i] - 1))
    raised = [list(row) for row in said]
    raised[i][j] = data.draw(st.floats(said[i][j], 0.0))
    # Free rows and rates above 0: every row of the budget is used, so the totals are equal.
    before, after = (
        sequence_depths(FREE, by_confidence(), rows, counts, 4, budget, 0.0)
        for rows in (said, raised)
    )
    assert sum(before) == sum(after) == budget
    assert after[i] >= before[i]


@given(
    tables(), calibrations(), drafts_of_a_batch, st.integers(0, 5), st.integers(0, 14), slacks,
    objectives,
)  # fmt: skip
def test_no_limit_is_ever_exceeded(
    costs: CostTable,
    calibration: Calibration,
    batch: list[tuple[list[float], int]],
    k_max: int,
    budget: int,
    slack: float,
    objective: Objective,
) -> None:
    said, counts = [s for s, _ in batch], [c for _, c in batch]
    depths = sequence_depths(
        costs, calibration, said, counts, k_max, budget, slack, objective=objective
    )
    assert len(depths) == len(batch)
    assert all(0 <= d <= min(c, k_max, costs.max_k) for d, c in zip(depths, counts, strict=True))
    assert sum(depths) <= budget
    base = [min(c, k_max, costs.max_k, 1) for c in counts]
    if sum(base) <= budget:
        assert all(d >= b for d, b in zip(depths, base, strict=True))
    else:
        assert depths == [0] * len(batch)


@given(tables(), calibrations(), drafts_of_a_batch, st.integers(0, 14), slacks, objectives)
def test_the_same_question_has_the_same_answer(
    costs: CostTable,
    calibration: Calibration,
    batch: list[tuple[list[float], int]],
    budget: int,
    slack: float,
    objective: Objective,
) -> None:
    said, counts = [s for s, _ in batch], [c for _, c in batch]
    first, second = (
        sequence_depths(costs, calibration, said, counts, 4, budget, slack, objective=objective)
        for _ in range(2)
    )
    assert first == second


@settings(deadline=None)
@given(tables(), calibrations(), drafts_of_a_batch, st.integers(0, 9), slacks, objectives)
def test_no_other_allocation_of_rows_is_better(
    costs: CostTable,
    calibration: Calibration,
    batch: list[tuple[list[float], int]],
    budget: int,
    slack: float,
    objective: Objective,
) -> None:
    said, counts = [s for s, _ in batch], [c for _, c in batch]
    n, k_max = len(batch), 3
    caps = [min(c, k_max, costs.max_k) for c in counts]
    base = [min(cap, 1) for cap in caps]
    depths = sequence_depths(
        costs, calibration, said, counts, k_max, budget, slack, objective=objective
    )
    if sum(base) > budget:
        return

    def tokens(allocation: tuple[int, ...]) -> float:
        total = float(n)
        for i, depth in enumerate(allocation):
            for upto in range(1, depth + 1):
                total += prod(
                    calibration.probability(said[i][j], j + 1)
                    if said[i]
                    else calibration.prior(j + 1)
                    for j in range(upto)
                )
        return total

    at = costs.costs(n)
    sunk = min(k_max, costs.max_k)

    def cost(cells: list[float], draft: list[float], rows: int) -> float:
        below = min(int(rows / n), len(cells) - 1)
        above = min(below + 1, len(cells) - 1)
        part = rows / n - below
        return (1 - part) * cells[below] + part * cells[above] + draft[sunk]

    def rate(a: tuple[int, ...]) -> float:
        return tokens(a) / cost(at.verify_ms.tolist(), at.draft_ms.tolist(), sum(a))

    def score(a: tuple[int, ...]) -> float:
        if objective == "speed":
            return rate(a)
        assert at.verify_j is not None
        assert at.draft_j is not None
        return tokens(a) / cost(at.verify_j.tolist(), at.draft_j.tolist(), sum(a))

    every = [
        a
        for a in product(*(range(b, cap + 1) for b, cap in zip(base, caps, strict=True)))
        if sum(a) <= budget
    ]
    fastest = max(map(rate, every))
    floor = {
        "speed": 0.0,
        "energy": (1 - slack) * rate(tuple(base)),
        "balanced": (1 - slack) * fastest,
    }[objective]
    assert rate(tuple(depths)) >= floor * (1 - 1e-9)
    # Clearly fast enough, so that rounding at the floor decides nothing.
    allowed = [a for a in every if rate(a) >= floor * (1 + 1e-9)]
    if allowed:
        assert score(tuple(depths)) >= max(map(score, allowed)) * (1 - 1e-9)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("slack", [-0.1, 1.0, 1.5, float("nan")])
def test_a_slack_outside_its_range_is_refused(slack: float) -> None:
    with pytest.raises(PolicyError, match="slack is a fraction from 0 up to but not 1"):
        propose_depth(FREE, by_position(0.5), 1, slack, 8)


@pytest.mark.parametrize("objective", ["energy", "balanced"])
def test_an_objective_in_joules_is_refused_without_joules(objective: Objective) -> None:
    costs = table({1: [10.0, 11.0]}, metered=False)
    with pytest.raises(PolicyError, match=f"objective {objective} needs joules"):
        propose_depth(costs, by_position(0.5), 1, 0.0, 8, objective=objective)
    with pytest.raises(PolicyError, match=f"objective {objective} needs joules"):
        sequence_depths(costs, by_position(0.5), [[]], [1], 1, 1, 0.0, objective=objective)


def test_speed_works_without_joules() -> None:
    costs = table({1: [10.0, 10.5]}, metered=False)
    assert propose_depth(costs, by_position(0.9), 1, 0.0, 8, objective="speed").depth == 1


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(PolicyError, match="there is no objective 'thrift'"):
        propose_depth(FREE, by_position(0.5), 1, 0.0, 8, objective="thrift")  # type: ignore[arg-type]


def test_a_width_of_nobody_is_refused() -> None:
    with pytest.raises(PolicyError, match="1 or more sequences"):
        propose_depth(FREE, by_position(0.5), 0, 0.0, 8)


def test_a_confidence_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(PolicyError, match="not a number"):
        sequence_depths(FREE, by_confidence(), [[float("nan")]], [1], 1, 1, 0.0)


def test_confidences_and_counts_of_different_batches_are_refused() -> None:
    with pytest.raises(PolicyError, match="2 sequences"):
        sequence_depths(FREE, by_confidence(), [[-0.1], [-0.1]], [1], 1, 2, 0.0)


def test_a_total_may_fall_where_the_base_rows_became_surer() -> None:
    # Why the test above holds the total fixed. Three sequences, one of them without drafts; odd
    # totals are dear, so the choice is between 2 and 4 rows, and 4 pays only just.
    costs = table({3: [1.0, 10.0, 5.71]}, draft=1e-9)
    calibration = by_confidence([0.2, 0.5, 0.9, *[0.95] * 7])
    unsure, half, sure, surest = -5.0, -3.0, -1.5, -0.7
    counts = [2, 2, 0]
    before = [[half, unsure], [surest, surest], []]
    raised = [[sure, unsure], [surest, surest], []]
    assert sequence_depths(costs, calibration, before, counts, 2, 4, 0.5) == [2, 2, 0]
    assert sequence_depths(costs, calibration, raised, counts, 2, 4, 0.5) == [1, 1, 0]
