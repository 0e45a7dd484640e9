"""How often drafts stand, as a policy learns it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.errors import PolicyError
from mtpx.policy.acceptance import AcceptanceModel, expected_tokens, optimistic_tokens
from mtpx.policy.drift import BEGINNING, CARRIED, DriftingAcceptance


def test_the_first_observation_sets_a_rate_and_later_ones_weigh_a_tenth() -> None:
    model = AcceptanceModel()
    model.observe(1, 1)
    assert model.rates == [1.0]
    model.observe(1, 0)
    assert model.rates == [pytest.approx(0.9)]


def test_a_position_is_observed_only_where_all_before_it_stood() -> None:
    model = AcceptanceModel()
    model.observe(2, 1)
    model.observe(1, 0)
    assert model.counts == [2, 1]


def test_an_undersampled_position_inherits_the_deepest_trusted_rate_or_one() -> None:
    model = AcceptanceModel()
    assert model.rate(3) == 1.0
    for i in range(10):
        model.observe(2 if i < 5 else 1, 2 if i < 5 else 0)
    assert model.frontier == 1
    assert model.rate(0) == model.rates[0] < 1.0
    assert model.rate(1) == model.rates[0]
    assert model.committed(2) == pytest.approx(1 + model.rates[0] + model.rates[0] ** 2)


def test_a_stationary_rate_is_known_within_its_error_and_rarely_alarms() -> None:
    random = np.random.default_rng(0)
    model = DriftingAcceptance()
    for _ in range(3000):
        model.advance()
        stood = int(random.random() < 0.8)
        model.observe(
            2, stood + (stood and int(random.random() < 0.6))
        ) if stood else model.observe(1, 0)
    assert abs(model.rates[0] - 0.8) < 4 * math.sqrt(0.16 / 200)
    assert abs(model.rates[1] - 0.6) < 4 * math.sqrt(0.24 / 200)
    assert model.alarms <= 2


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.3), (0.2, 0.85)])
def test_changed_content_is_followed_within_fifteen_rounds(before: float, after: float) -> None:
    random = np.random.default_rng(1)
    model = DriftingAcceptance()

    def round(rate: float) -> None:
        model.advance()
        accepted = 0
        while accepted < 3 and random.random() < rate:
            accepted += 1
        model.observe(min(3, accepted + 1), accepted)

    for _ in range(500):
        round(before)
    for _ in range(15):
        round(after)
    assert abs(model.rates[0] - after) < abs(model.rates[0] - before)


def alarmed() -> DriftingAcceptance:
    """Two thirds of its drafts stood for long; then enough fell for an alarm."""
    model = DriftingAcceptance()
    for i in range(600):
        model.advance()
        model.observe(1, int(i % 3 > 0))
    while not model.alarms:
        model.advance()
        model.observe(1, 0)
    return model


def test_after_an_alarm_the_rate_is_between_what_was_just_seen_and_the_long_mean() -> None:
    assert 0.05 < alarmed().rates[0] < 0.5


def test_after_an_alarm_the_rate_before_stays_possible_until_drafts_have_settled_it() -> None:
    model = alarmed()
    rates = model.expected(1)
    high = rates[0] + 1.3 * math.sqrt(model.errors(rates)[0])
    assert high > 0.5
    for _ in range(8):
        model.advance()
        model.observe(1, 0)
    rates = model.expected(1)
    assert rates[0] + 1.3 * math.sqrt(model.errors(rates)[0]) < 0.4


def test_an_alarm_that_was_luck_is_taken_back() -> None:
    model = alarmed()
    for i in range(15):
        model.advance()
        model.observe(1, int(i % 3 > 0))
    assert model.expected(1)[0] == pytest.approx(0.67, abs=0.06)
    assert model.hoped(1) is None


def test_the_rates_before_an_alarm_are_no_hope_once_drafts_have_settled_it_but_again_after_a_while() -> (
    None
):
    model = alarmed()
    assert model.hoped(2) == [pytest.approx(0.65, abs=0.03)] * 2
    for _ in range(6):
        model.advance()
        model.observe(1, 0)
    assert model.hoped(2) is None
    model.advance(700)
    assert model.hoped(2) is not None


def test_a_rate_learned_anew_leaves_no_question_of_what_it_was() -> None:
    model = alarmed()
    for i in range(80):
        model.advance()
        model.observe(1, int(i % 4 == 0))
    model.advance(5000)
    assert model.hoped(1) is None


def test_positions_that_were_not_reached_move_with_the_others_at_an_alarm() -> None:
    model = DriftingAcceptance()
    for _ in range(50):
        model.observe(3, 3)
        model.observe(3, 2)
    deep = model.rates[2]
    while not model.alarms:
        model.observe(1, 0)
    assert model.rates[2] < deep - 0.1


def test_the_end_of_one_answer_says_little_of_the_next() -> None:
    model = DriftingAcceptance()
    for i in range(400):
        model.observe(1, int(i % 5 < 2))
    while not model.alarms:
        model.observe(1, 0)
    assert model.expected(1)[0] < 0.15
    model.begin()
    assert 0.25 < model.expected(1)[0] < 0.4


def test_an_answer_like_those_before_keeps_what_is_known() -> None:
    model = DriftingAcceptance()
    for i in range(400):
        model.observe(1, int(i % 5 < 2))
    before = model.expected(1)[0]
    model.begin()
    assert model.expected(1)[0] == pytest.approx(before, abs=0.01)
    assert model.worth(0) == BEGINNING + CARRIED


def test_an_answer_unlike_all_before_is_still_met() -> None:
    model = DriftingAcceptance()
    for i in range(2000):
        model.observe(1, int(i % 5 < 4))
    model.begin()
    for i in range(40):
        model.observe(1, int(i % 10 < 1))
    assert model.expected(1)[0] < 0.3


@given(rounds=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=80))
def test_rates_stay_probabilities_however_answers_follow_each_other(
    rounds: list[tuple[int, int, bool]],
) -> None:
    model = DriftingAcceptance()
    for judged, accepted, begins in rounds:
        if begins:
            model.begin()
        model.observe(judged, min(accepted, judged))
        model.advance()
        assert all(0.0 <= rate <= 1.0 for rate in model.expected(8))
    again = DriftingAcceptance()
    again.restore(model.state())
    assert again.state() == model.state()


@pytest.mark.parametrize("model", [AcceptanceModel(), DriftingAcceptance()])
def test_more_accepted_than_judged_is_refused(model: Any) -> None:
    for judged, accepted in ((2, 3), (0, -1)):
        with pytest.raises(PolicyError, match="accepted"):
            model.observe(judged, accepted)


@given(st.lists(st.floats(0.0, 1.0), max_size=8), st.floats(0.0, 3.0), st.integers(0, 8))
def test_optimism_never_takes_tokens_away_nor_promises_more_than_all(
    rates: list[float], z: float, known: int
) -> None:
    plain = expected_tokens(rates)
    high = optimistic_tokens(rates, [0.01] * len(rates), z, known)
    assert len(high) == len(plain)
    assert all(h >= p - 1e-9 for h, p in zip(high, plain, strict=True))
    assert all(h <= depth + 1 + 1e-9 for depth, h in enumerate(high))
