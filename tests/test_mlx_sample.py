"""Sampling on MLX is the numpy reference, filter by filter and rule by rule, in float32."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_cases import VOCAB, logits, samplings, tokens

from mtpx import sampling as reference
from mtpx.sampling import History, Sampling
from mtpx_mlx import sample
from mtpx_mlx.sample import Counts, to_device

CLOSE = 1e-5
"""Sums of float32 probabilities come this near to those of float64."""

quick = settings(deadline=None, max_examples=60)
"""A compiled kernel's first call takes longer than hypothesis allows an example."""

# Between the multiples of 1/64: not on a threshold that two precisions see from different sides.
uniform = st.integers(0, 63).map(lambda k: (2 * k + 1) / 128)


def on_device(
    rows: list[list[float]], how: Sampling, history: History, drafts: list[int]
) -> np.ndarray:
    counts = Counts.of(list(history.prompt), VOCAB)
    counts.add(history.generated)
    seen = counts.rows(mx.array(drafts, dtype=mx.uint32))
    scored = sample.penalise(mx.array(rows), how, counts.prompt, seen)
    return np.array(sample.distribution(scored, how))


def assert_is_the_reference(
    found: np.ndarray, row: list[float], how: Sampling, history: History
) -> None:
    """A nucleus may end on either side of a token whose mass before it is top_p to float32."""
    edges = [how.top_p, max(how.top_p - CLOSE, CLOSE), min(how.top_p + CLOSE, 1.0)]
    possible = [
        reference.distribution(np.array(row), replace_top_p(how, edge), history) for edge in edges
    ]
    assert min(float(np.abs(found - p).max()) for p in possible) < CLOSE


def replace_top_p(how: Sampling, top_p: float) -> Sampling:
    values = {name: getattr(how, name) for name in how.__struct_fields__}
    return Sampling(**{**values, "top_p": top_p})


@quick
@given(logits, samplings, tokens.filter(bool), tokens)
def test_a_distribution_is_the_reference(
    row: list[float], how: Sampling, prompt: list[int], made: list[int]
) -> None:
    history = History(prompt, made)
    assert_is_the_reference(on_device([row], how, history, [])[0], row, how, history)


@quick
@given(
    st.lists(logits, min_size=3, max_size=3),
    samplings,
    tokens,
    st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=2),
)
def test_a_row_sees_the_drafts_before_it(
    rows: list[list[float]], how: Sampling, made: list[int], drafts: list[int]
) -> None:
    history = History([0], made)
    found = on_device(rows, how, history, drafts)
    for j, row in enumerate(rows):
        assert_is_the_reference(found[j], row, how, history.followed_by(drafts[:j]))


@quick
@given(
    st.lists(logits, min_size=3, max_size=3),
    st.lists(logits, min_size=2, max_size=2),
    samplings,
    st.lists(uniform, min_size=9, max_size=9),
    st.lists(uniform, min_size=2, max_size=2),
)
def test_acceptance_is_the_reference(
    target: list[list[float]],
    drafter: list[list[float]],
    how: Sampling,
    us: list[float],
    draws: list[float],
) -> None:
    none = History([], [])
    p = [reference.distribution(np.array(row), how, none) for row in target]
    q = [reference.distribution(np.array(row), Sampling(temperature=1.0), none) for row in drafter]
    drafts = [reference.draw(row, u) for row, u in zip(q, draws, strict=True)]
    u = np.array(us).reshape(3, 3)
    accepted, token = sample.accept(
        mx.array(np.array(p, dtype=np.float32)),
        mx.array(np.array(q, dtype=np.float32)),
        mx.array(drafts, dtype=mx.uint32),
        to_device(u),
    )
    assert (accepted.tolist(), token.tolist()) == tuple(
        [value] for value in reference.accept(p, q, drafts, u)
    )


@quick
@given(logits, uniform)
def test_a_draw_is_the_reference(row: list[float], u: float) -> None:
    p = reference.distribution(np.array(row), Sampling(temperature=1.0, top_k=4), History([], []))
    found = sample.draw(mx.array(p.astype(np.float32))[None], mx.array([u]))
    assert found.tolist() == [reference.draw(p, u)]


def test_a_draw_never_gives_a_token_of_no_mass() -> None:
    p = mx.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    for u in (0.0, 0.4999999, 0.5, 1.0 - 2**-53):
        (token,) = sample.draw(p, to_device(np.array([u]))).tolist()
        assert token in (1, 3)


@quick
@given(st.floats(0.0, 1.0, exclude_max=True))
def test_a_uniform_stays_below_one_and_never_grows_on_its_way_to_the_device(u: float) -> None:
    (found,) = to_device(np.array([u])).tolist()
    assert found < 1.0
    assert u - 2**-24 < found <= u


def test_a_draft_of_no_mass_is_never_accepted_however_small_its_uniform() -> None:
    p, q = mx.array([[0.0, 1.0], [0.5, 0.5]]), mx.array([[1.0, 0.0]])
    accepted, token = sample.accept(p, q, mx.array([0], dtype=mx.uint32), mx.zeros((2, 3)))
    assert (accepted.tolist(), token.tolist()) == ([0], [1])


@pytest.mark.parametrize("top_p", [0.3, 0.9])
def test_top_p_of_a_large_vocabulary_is_the_reference(top_p: float) -> None:
    rng = np.random.default_rng(0)
    for scale in (1.0, 6.0):
        row = rng.normal(size=5000) * scale
        how = Sampling(temperature=1.0, top_p=top_p)
        found = np.array(sample.distribution(mx.array(row.astype(np.float32))[None], how))[0]
        expected = reference.distribution(row, how, History([], []))
        # One token more or less at the edge is all that float32 sums may change.
        assert abs(int((found > 0).sum()) - int((expected > 0).sum())) <= 1
        assert np.abs(found - expected).sum() < 1e-3
