"""The numpy reference of sampling: filters, penalties, draws, uniforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.errors import SamplingError
from mtpx.sampling import (
    USE_ACCEPT,
    USE_COMMIT,
    Array,
    History,
    Sampling,
    accept,
    acceptance,
    distribution,
    draw,
    penalise,
    residual,
    uniforms,
)

EMPTY = History([])
LARGEST_U = np.nextafter(1.0, 0.0)

vectors = st.lists(st.floats(-30.0, 30.0), min_size=1, max_size=12).map(np.array)
units = st.floats(0.0, float(LARGEST_U))
words = st.integers(0, 2**64 - 1)


@st.composite
def distributions(draw_: Any, size: int | None = None) -> Array:
    n = size or draw_(st.integers(1, 8))
    weights = draw_(st.lists(st.sampled_from([0.0]) | st.floats(1e-6, 1.0), min_size=n, max_size=n))
    if sum(weights) == 0.0:
        weights[draw_(st.integers(0, n - 1))] = 1.0
    p = np.array(weights)
    return p / p.sum()


@st.composite
def pairs(draw_: Any) -> tuple[Array, Array]:
    n = draw_(st.integers(1, 8))
    return draw_(distributions(n)), draw_(distributions(n))


@st.composite
def samplings(draw_: Any) -> Sampling:
    return Sampling(
        temperature=draw_(st.sampled_from([0.0, 0.3, 1.0, 5.0])),
        top_p=draw_(st.floats(0.01, 1.0)),
        top_k=draw_(st.integers(0, 14)),
        min_p=draw_(st.floats(0.0, 1.0)),
        repeat_penalty=draw_(st.floats(0.5, 2.0)),
        presence_penalty=draw_(st.floats(-2.0, 2.0)),
        frequency_penalty=draw_(st.floats(-2.0, 2.0)),
    )


@given(vectors, samplings(), st.data())
def test_a_distribution_sums_to_one_whatever_the_filters(
    logits: Array, sampling: Sampling, data: st.DataObject
) -> None:
    ids = st.lists(st.integers(0, logits.size - 1), max_size=6)
    p = distribution(logits, sampling, History(data.draw(ids), data.draw(ids)))
    assert p.min() >= 0.0
    assert p.sum() == pytest.approx(1.0, abs=1e-12)


@given(vectors)
def test_temperature_zero_is_a_point_mass_on_the_argmax(logits: Array) -> None:
    p = distribution(logits, Sampling(), EMPTY)
    assert p[int(np.argmax(logits))] == 1.0
    assert np.count_nonzero(p) == 1


def test_temperature_zero_takes_the_argmax_after_the_penalties() -> None:
    p = distribution(np.array([1.0, 0.9]), Sampling(presence_penalty=0.5), History([], [0]))
    assert list(p) == [0.0, 1.0]


@given(vectors, st.floats(0.1, 5.0))
def test_temperature_divides_the_logits(logits: Array, temperature: float) -> None:
    p = distribution(logits, Sampling(temperature=temperature), EMPTY)
    best = int(np.argmax(logits))
    expected = np.exp((logits - logits[best]) / temperature)
    assert p / p[best] == pytest.approx(expected, rel=1e-9)


@given(vectors, st.integers(1, 12))
def test_top_k_keeps_exactly_those_as_likely_as_the_kth(logits: Array, k: int) -> None:
    full = distribution(logits, Sampling(temperature=1.0), EMPTY)
    kept = distribution(logits, Sampling(temperature=1.0, top_k=k), EMPTY) > 0.0
    kth = np.sort(full)[::-1][min(k, full.size) - 1]
    assert list(kept) == list(full >= kth)


@given(vectors, st.floats(0.05, 0.95))
def test_top_p_keeps_the_smallest_set_that_reaches_it(logits: Array, top_p: float) -> None:
    full = distribution(logits, Sampling(temperature=1.0), EMPTY)
    kept = distribution(logits, Sampling(temperature=1.0, top_p=top_p), EMPTY) > 0.0
    assert full[kept].sum() >= top_p - 1e-9
    assert full[kept].sum() - full[kept].min() < top_p + 1e-9
    assert full[kept].min() >= np.max(full[~kept], initial=0.0)


def test_top_p_gives_ties_to_the_lower_id() -> None:
    p = distribution(np.zeros(4), Sampling(temperature=1.0, top_p=0.5), EMPTY)
    assert list(p) == [0.5, 0.5, 0.0, 0.0]


@given(vectors, st.floats(0.01, 1.0))
def test_min_p_is_relative_to_the_likeliest(logits: Array, min_p: float) -> None:
    full = distribution(logits, Sampling(temperature=1.0), EMPTY)
    kept = distribution(logits, Sampling(temperature=1.0, min_p=min_p), EMPTY) > 0.0
    assert list(kept) == list(full >= min_p * full.max())


@given(vectors, st.integers(1, 12), st.floats(0.05, 1.0), st.floats(0.0, 1.0))
def test_filters_keep_the_odds_of_what_they_keep(
    logits: Array, k: int, top_p: float, min_p: float
) -> None:
    full = distribution(logits, Sampling(temperature=1.0), EMPTY)
    filtered = Sampling(temperature=1.0, top_k=k, top_p=top_p, min_p=min_p)
    p = distribution(logits, filtered, EMPTY)
    kept = p > 0.0
    assert p[kept] == pytest.approx(full[kept] / full[kept].sum(), rel=1e-9)


def test_top_k_comes_before_top_p() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    got = distribution(np.log(p), Sampling(temperature=1.0, top_k=2, top_p=0.55), EMPTY)
    assert list(got) == [1.0, 0.0, 0.0, 0.0]


def test_repeat_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    got = penalise(np.array([2.0, -2.0, 2.0]), Sampling(repeat_penalty=2.0), History([0], [1]))
    assert list(got) == [1.0, -4.0, 2.0]


def test_a_token_is_repeat_penalised_once_however_often_it_came() -> None:
    got = penalise(np.array([8.0]), Sampling(repeat_penalty=2.0), History([0, 0], [0]))
    assert list(got) == [4.0]


def test_presence_and_frequency_look_at_generated_tokens_only() -> None:
    sampling = Sampling(presence_penalty=1.0, frequency_penalty=0.25)
    got = penalise(np.zeros(3), sampling, History([0, 0], [1, 1]))
    assert list(got) == [0.0, -1.5, 0.0]


@given(vectors)
def test_penalties_that_are_off_change_nothing_and_copy(logits: Array) -> None:
    got = penalise(logits, Sampling(temperature=1.0), History([0], [0]))
    assert list(got) == list(logits)
    assert got is not logits


def test_drafts_before_a_row_are_history_and_the_history_stays_as_it_was() -> None:
    history = History([7], [1])
    assert history.followed_by([2, 3]).generated == [1, 2, 3]
    assert history.generated == [1]


@given(distributions(), units)
def test_a_token_without_probability_is_never_drawn(p: Array, u: float) -> None:
    assert p[draw(p, u)] > 0.0


@pytest.mark.parametrize("u", [0.0, float(LARGEST_U)])
def test_the_edges_of_the_unit_interval_draw_tokens_with_probability(u: float) -> None:
    assert draw(np.array([0.0, 0.5, 0.5, 0.0]), u) in (1, 2)


@given(distributions(), units)
def test_a_draw_is_the_inverse_of_the_cumulative_sum(p: Array, u: float) -> None:
    token = draw(p, u)
    cdf = np.cumsum(p)
    below = cdf[token] - p[token]
    assert below - 1e-12 <= u * cdf[-1] <= cdf[token] + 1e-12


@given(pairs())
def test_the_residual_is_what_p_has_over_q(pq: tuple[Array, Array]) -> None:
    p, q = pq
    r = residual(p, q)
    assert r.sum() == pytest.approx(1.0)
    if np.any(p > q):
        assert np.all((r > 0.0) <= (p > q))
        assert np.maximum(p - q, 0.0) == pytest.approx(r * np.maximum(p - q, 0.0).sum())


def test_the_residual_is_p_where_q_leaves_nothing_over() -> None:
    p = np.array([0.25, 0.75])
    assert list(residual(p, p)) == list(p)


@given(pairs(), st.data())
def test_a_draft_stands_exactly_while_u_is_below_p_over_q(
    pq: tuple[Array, Array], data: st.DataObject
) -> None:
    p, q = pq
    token = data.draw(st.sampled_from([int(t) for t in np.flatnonzero(q)]))
    value = data.draw(units)
    u = np.full((2, 3), 0.5)
    u[0, USE_ACCEPT] = value
    accepted, _ = accept([p, p], [q], [token], u)
    if abs(value - acceptance(p, q, token)) > 1e-12:
        assert accepted == int(value < acceptance(p, q, token))


def test_a_draft_the_target_excludes_is_rejected_even_by_u_zero() -> None:
    p, q = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    assert accept([p, p], [q], [0], np.zeros((2, 3))) == (0, 1)


def test_judging_stops_at_the_first_rejection_and_draws_from_that_rows_residual() -> None:
    sure, p, q = np.array([0.0, 1.0, 0.0]), np.array([0.2, 0.0, 0.8]), np.array([0.9, 0.1, 0.0])
    u = np.full((4, 3), 0.9)
    assert accept([sure, p, sure, sure], [sure, q, sure], [1, 0, 1], u) == (1, 2)


def test_when_all_drafts_stand_the_bonus_comes_from_the_row_after_them() -> None:
    a, b = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert accept([a, b], [a], [0], np.full((2, 3), 0.5)) == (1, 1)


def test_the_last_token_uses_the_commit_uniform_of_its_own_row() -> None:
    half = np.array([0.5, 0.5])
    u = np.zeros((2, 3))
    u[1, USE_COMMIT] = 0.75
    assert accept([half, half], [half], [0], u) == (1, 1)


@given(words, words, words, st.integers(0, 8))
def test_uniforms_lie_in_the_half_open_unit_interval_and_repeat(
    seed: int, request: int, index: int, depth: int
) -> None:
    u = uniforms(seed, request, index, depth)
    assert u.shape == (depth + 1, 3)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert np.array_equal(u, uniforms(seed, request, index, depth))


@given(words, words, words, st.integers(0, 7))
def test_uniforms_of_a_row_do_not_depend_on_how_deep_the_round_is(
    seed: int, request: int, index: int, depth: int
) -> None:
    deep = uniforms(seed, request, index, 8)
    assert np.array_equal(uniforms(seed, request, index, depth), deep[: depth + 1])


@given(st.lists(st.tuples(words, words, words), min_size=2, max_size=6, unique=True))
def test_uniforms_of_different_rounds_requests_and_seeds_share_no_value(
    keys: list[tuple[int, int, int]],
) -> None:
    values = np.concatenate([uniforms(*key, 8).ravel() for key in keys])
    assert np.unique(values).size == values.size


def test_neighbouring_rounds_hand_out_different_uniforms_for_thousands_of_rounds() -> None:
    values = np.concatenate([uniforms(1, 2, index, 3).ravel() for index in range(3000)])
    assert np.unique(values).size == values.size


@pytest.mark.parametrize("seed", [2**63 + 1, 2**64 - 1, -1])
def test_neighbouring_seeds_beyond_63_bits_do_not_share_uniforms(seed: int) -> None:
    assert not np.array_equal(uniforms(seed, 0, 0, 0), uniforms(seed - 1, 0, 0, 0))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("repeat_penalty", 0.0),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", 101.0),
        ("logprobs", -1),
        ("logprobs", 101),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(SamplingError, match=field.replace("_", "-")):
        Sampling(**{field: value})
