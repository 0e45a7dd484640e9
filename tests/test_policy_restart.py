"""A process that takes over what another learned believes what that one did: a restart is no event."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_policy_stretch import Driven

from mtpx.errors import PolicyError
from mtpx.policy import cost
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.asking import Asking
from mtpx.policy.cost import MeasuredCosts
from mtpx.policy.drift import DriftingAcceptance


def restarted(model: Any) -> Any:
    """Another one, that was told the state as a file holds it."""
    again = type(model)()
    again.restore(json.loads(json.dumps(model.state())))
    return again


# -- costs -----------------------------------------------------------------------------------------


def test_costs_of_depths_not_in_use_survive_hundreds_of_restarts_on_a_noisy_machine() -> None:
    """Its level goes up and down: the smaller of factor and difference, taken anew by each process, came to
    nothing."""
    rng = random.Random(3)
    costs, level = MeasuredCosts(), 0.0
    for depth in range(5):
        for _ in range(20):
            costs.advance()
            costs.sample(depth, 10.0 + 3.0 * depth)
    for _ in range(300):
        costs = restarted(costs)
        for _ in range(30):
            level = 0.98 * level + 0.02 * rng.gauss(0.0, 1.0)
            costs.advance()
            costs.sample(1, 13.0 * math.exp(level + 0.05 * rng.gauss(0.0, 1.0)))
    # Where one process does all of it, it is 16.
    assert 14.0 < (costs.cost(4) or 0.0) < 30.0


def test_a_depth_that_was_timed_in_a_disturbed_minute_does_not_keep_blaming_the_machine() -> None:
    """Depth 3 is believed to take 6 ms and takes 12: each answer began with a machine twice as slow, and the end of
    its budget, at depth 1, found it as fast as ever."""
    costs = MeasuredCosts()
    for depth, ms in ((1, 9.0), (3, 6.0)):
        for _ in range(20):
            costs.advance()
            costs.sample(depth, ms)
    for _ in range(3):
        costs = restarted(costs)
        for _ in range(35):
            costs.advance()
            costs.sample(3, 12.0)
        costs.advance()
        costs.bound(1, 9.0)
    assert costs.cost(1) == pytest.approx(9.0, rel=0.05)
    assert costs.cost(3) == pytest.approx(12.0, rel=0.05)


STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1, 1, 1, 2, 3]), st.floats(0.9, 1.1), st.booleans()),
    min_size=1,
    max_size=60,
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_costs_learn_on_as_if_nothing_had_happened(
    steps: list[tuple[int, float, bool]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Another process may find the machine slower; here it is the same one.
        patch.setattr(cost, "RESTORED", 0.0)
        costs = MeasuredCosts()
        for depth in range(4):
            for _ in range(3):
                costs.advance()
                costs.sample(depth, 10.0 + 4.0 * depth)
        other = costs
        for depth, noise, restart in steps:
            if restart and not any(c.held for c in other.depths.values()):
                other = restarted(other)
            for model in (costs, other):
                model.advance(7)
                model.sample(depth, (10.0 + 4.0 * depth) * noise)
            for d in range(4):
                assert other.cost(d) == pytest.approx(costs.cost(d), rel=1e-9)
                assert other.deviation(d) == pytest.approx(costs.deviation(d), rel=1e-9)


def test_the_route_of_a_cost_and_the_costs_of_other_routes_are_kept() -> None:
    """A process whose compiled steps are not ready yet times others; they are no samples of the compiled ones."""
    costs = MeasuredCosts()
    for route, ms in (("eager", 30.0), ("compiled", 10.0)):
        costs.take_route(1, route)
        costs.sample(1, ms)
        costs.sample(1, ms)
        costs.take_route(1, route)
    again = restarted(costs)
    again.take_route(1, "eager")
    assert again.cost(1) == 30.0
    again.take_route(1, "compiled")
    assert again.cost(1) == 10.0
    again.take_route(1, "captured")
    assert again.cost(1) is None


GOOD: dict[str, Any] = {
    "ms": {"0": [10.0, 3, 0.01, 5, 10.0, 10.0, 10.0, 900]},
    "routes": {"0": "eager"},
    "aside": [["compiled", {"0": [8.0, 3, 0.01, 5, 8.0, 8.0, 8.0, 900]}]],
    "rounds": 9,
    "spread": 0.05,
}


def row(at: int, number: Any) -> dict[str, Any]:
    return {"0": [number if i == at else cell for i, cell in enumerate(GOOD["ms"]["0"])]}


BAD_TABLES: list[Any] = [
    None,
    [],
    {"0": []},
    {"0": 10.0},
    {"0": [1.0] * 7},
    {"x": GOOD["ms"]["0"]},
    {"-1": GOOD["ms"]["0"]},
    {"99": GOOD["ms"]["0"]},
    *[row(at, math.nan) for at in range(8)],
    *[row(at, -1.0) for at in range(8)],
    *[row(at, 0.0) for at in (0, 4, 5)],
    row(1, math.inf),
    row(0, "a"),
]


def test_a_stored_table_is_read() -> None:
    costs = MeasuredCosts()
    costs.restore(GOOD)
    assert costs.cost(0) == 10.0


@pytest.mark.parametrize("table", BAD_TABLES, ids=repr)
def test_a_stored_cost_table_that_is_none_is_refused(table: Any) -> None:
    for field in ({"ms": table}, {"aside": [["compiled", table]]}):
        with pytest.raises(PolicyError):
            MeasuredCosts().restore(GOOD | field)


@pytest.mark.parametrize(
    "field",
    [
        {"rounds": -1},
        {"rounds": 2.5},
        {"spread": math.nan},
        {"spread": 2.0},
        {"spread": None},
        {"routes": None},
        {"aside": None},
        {"aside": [1]},
        {"aside": [["eager"]]},
    ],
)
def test_stored_costs_of_no_age_noise_or_route_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        MeasuredCosts().restore(GOOD | field)


# -- acceptance ------------------------------------------------------------------------------------

ROUNDS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 3), st.sampled_from(["", "", "", "answer", "restart"])
    ),
    max_size=150,
)


@given(ROUNDS, st.booleans())
@settings(max_examples=100, deadline=None)
def test_acceptance_goes_on_as_if_nothing_had_happened(
    rounds: list[tuple[int, int, str]], alarmed: bool
) -> None:
    model = DriftingAcceptance()
    if alarmed:
        for i in range(60):
            model.advance()
            model.observe(2, 2 if i < 45 else 0)
        assert model.alarms
    other = model
    for judged, accepted, what in rounds:
        if what:
            if what == "restart":
                other = restarted(other)
            # A process begins with an answer.
            model.begin()
            if other is not model:
                other.begin()
        for one in {id(model): model, id(other): other}.values():
            one.advance(40)
            one.observe(judged, min(accepted, judged))
        assert other.expected(4) == pytest.approx(model.expected(4))
        assert other.errors([0.5] * 4) == pytest.approx(model.errors([0.5] * 4))
        hoped = model.hoped(4)
        assert other.hoped(4) == (None if hoped is None else pytest.approx(hoped))


def test_a_head_that_one_unlucky_text_parked_is_tried_by_one_of_the_next_processes() -> None:
    """Twelve drafts fell in a row in the first answer ever; drafts of the others stand."""
    driven = Driven(AdaptiveDepth(cuts=False), rate=0.0)
    while driven.policy.seen.acceptance["greedy"].worth(0) < 12.0 or driven.policy.selected:
        driven.round()
        assert driven.index < 200
    driven.rate = 0.8
    for answer in range(12):  # noqa: B007
        driven.policy = restarted(driven.policy)
        driven.request += 1
        for _ in range(40):
            driven.round()
        if driven.policy.selected:
            break
    assert answer <= 8


@pytest.mark.parametrize(
    "change",
    [
        {"ages": None},
        {"ages": [1.0, 2.0]},
        {"ages": [-1.0]},
        {"reached": [math.nan]},
        {"idle": -1},
        {"idle": None},
        {"alarm": None},
        {"alarm": {"before": [0.5], "after": [], "held": 0.3, "age": 1}},
        {"alarm": {"before": [0.5], "after": [1.5], "held": 0.3, "age": 1}},
        {"alarm": {"before": [0.5], "after": [0.5], "held": 2.0, "age": 1}},
        {"alarm": {"before": [0.5], "after": [0.5], "held": 0.3, "age": None}},
        {"alarm": {"before": [0.5, 0.5], "after": [0.5, 0.5], "held": 0.3, "age": 1}},
    ],
    ids=repr,
)
def test_stored_acceptance_that_is_none_is_refused(change: dict[str, Any]) -> None:
    model = DriftingAcceptance()
    model.observe(1, 1)
    with pytest.raises(PolicyError):
        DriftingAcceptance().restore(model.state() | change)


# -- trials ----------------------------------------------------------------------------------------


def test_answers_shorter_than_the_time_between_trials_do_not_put_them_off_for_good() -> None:
    asking = Asking()
    asking.interval = 512
    for _ in range(20):
        asking.tick(30)
        asking = restarted(asking)
    assert asking._since == asking._calm == 600


@pytest.mark.parametrize(
    "change", [{"since": -1}, {"calm": -1}, {"since": "x"}, {"calm": math.inf}, {"since": None}]
)
def test_a_stored_cadence_that_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((PolicyError, TypeError, ValueError, OverflowError)):
        Asking().restore(Asking().state() | change)
