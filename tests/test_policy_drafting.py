"""What drafts cost: head steps, readings, changed shapes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.errors import PolicyError
from mtpx.policy.drafting import LATELY, TRANSITION, DraftCosts, beside_ms
from mtpx.round import Round


def chains(reads: bool = True) -> DraftCosts:
    """A first step of 1.1 ms, further ones of 0.5, 0.2 of the host's, and 0.1 a reading."""
    costs = DraftCosts()
    for _ in range(30):
        for steps in range(4):
            costs.note(steps, 0.2 + (0.6 + 0.5 * steps if steps else 0.0), 0, stepwise=False)
            if reads and steps:
                costs.note(steps, 0.8 + 0.6 * steps, steps, stepwise=True)
                costs.note(steps, 0.9 + 0.5 * steps, 1, stepwise=False)
    return costs


def test_a_first_step_that_is_dear_does_not_price_the_others() -> None:
    assert chains().table(5) == pytest.approx([0.2, 1.3, 1.8, 2.3, 2.8, 3.3])


def test_what_a_reading_adds_is_told_by_rounds_with_and_without_it() -> None:
    costs = chains()
    assert costs.price[True] == pytest.approx(0.1, abs=0.01)
    assert costs.price[False] == pytest.approx(0.1, abs=0.01)


def test_chains_that_are_not_made_unread_any_more_change_as_those_that_are_read() -> None:
    """A slower machine: the price of a reading stays, and the unread chain is not taken for a bargain."""
    costs = chains()
    for _ in range(LATELY + 60):
        costs.note(1, 2.0 * 1.4, 1, stepwise=True)
    assert costs.price[True] < 0.8
    assert costs.table(1)[1] == pytest.approx(2.8 - costs.price[True], abs=0.05)


def test_what_asking_took_is_its_price_where_it_is_timed_by_itself() -> None:
    """Chains unread were timed while the machine was fast: their difference to read ones says nothing."""
    costs = chains(reads=False)
    for i in range(60):
        # One question in ten waits for something.
        asked = 0.04 if i % 10 else 2.0
        costs.note(2, 2.6 + asked, 2, stepwise=True, asked=asked)
    assert 0.02 <= costs.price[True] < 0.03
    assert costs.price[False] == costs.price[True], "until that way has been seen, too"
    assert costs.table(2)[2] == pytest.approx(2.6, rel=0.02), "read chains time the unread"


def test_a_time_of_asking_that_cannot_be_is_not_believed() -> None:
    costs = chains(reads=False)
    costs.note(2, 2.6, 2, stepwise=True, asked=9.0)
    costs.note(2, 2.6, 2, stepwise=True, asked=0.0)
    assert costs.price[True] < 0.5


def test_a_stall_moves_a_mean_by_a_fortieth() -> None:
    costs = chains(reads=False)
    costs.note(1, 60.0, 0, stepwise=False)
    assert costs.table(1)[1] < 1.3 * 1.03


def test_where_only_read_rounds_tell_head_steps_are_a_mean() -> None:
    costs = DraftCosts()
    assert not costs.known
    for _ in range(20):
        costs.note(2, 3.0, 2, stepwise=True)
    assert costs.known
    assert not costs.apart
    assert costs.table(3) == pytest.approx([0.0, 1.5, 3.0, 4.5])


def test_changes_are_told_by_depths_that_are_well_known_and_not_by_stalls() -> None:
    costs = DraftCosts()
    costs.note_transition(20.0, 10.0, 0.0)
    costs.note_transition(12.0, 10.0, 0.2)
    assert costs.transition == TRANSITION
    for _ in range(60):
        costs.note_transition(10.2, 10.0, 0.01)
    assert costs.transition == pytest.approx(0.02, abs=0.01)


def test_beside_the_forward_is_what_the_round_took_but_for_it() -> None:
    round = Round(0, 0, 1, [], 10.0, draft_ms=1.0, verify_ms=8.5)
    assert beside_ms(round) == pytest.approx(1.5)
    round.verify_ms = None
    assert beside_ms(round) == 1.0
    round.draft_ms = None
    assert beside_ms(round) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(-1.0, 100.0), st.integers(0, 3))))
def test_a_state_comes_back(notes: list[tuple[int, float, int]]) -> None:
    costs = DraftCosts()
    for steps, ms, reads in notes:
        costs.note(steps, ms, reads if steps else 0, stepwise=reads > 1)
    state = json.loads(json.dumps(costs.state()))
    again = DraftCosts()
    again.restore(state)
    assert again.state() == costs.state()
    assert again.table(4) == costs.table(4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transition", float("nan")),
        ("transition", 7.0),
        ("step_ms", -1.0),
        ("price", [0.0, float("inf")]),
        ("changes", -3),
        ("unread", {"ms": {"1": [0.0, 1]}}),
        ("read", [{"ms": {}}, {"ms": {"99": [1.0, 1]}}]),
    ],
)
def test_a_state_out_of_range_is_refused(field: str, value: object) -> None:
    state = chains().state()
    state[field] = value
    with pytest.raises(PolicyError):
        DraftCosts().restore(state)
