"""Sampling on the device is the numpy reference, filter by filter and rule by rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_cases import VOCAB, logits, samplings, tokens

from mtpx import sampling as reference
from mtpx.sampling import History, Sampling
from mtpx_torch import sample
from mtpx_torch.sample import Counts

uniform = st.floats(0.0, 1.0, exclude_max=True)


def on_device(
    rows: list[list[float]], how: Sampling, history: History, drafts: list[int]
) -> torch.Tensor:
    counts = Counts.of(list(history.prompt), VOCAB, torch.device("cpu"))
    counts.add(torch.tensor(history.generated, dtype=torch.long))
    seen = counts.rows(torch.tensor(drafts, dtype=torch.long))
    scored = sample.penalise(torch.tensor(rows), how, counts.prompt, seen)
    return sample.distribution(scored, how)


@given(logits, samplings, tokens.filter(bool), tokens)
def test_a_distribution_is_the_reference(
    row: list[float], how: Sampling, prompt: list[int], made: list[int]
) -> None:
    history = History(prompt, made)
    expected = reference.distribution(np.array(row), how, history)
    found = on_device([row], how, history, [])[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-9)


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
        expected = reference.distribution(np.array(row), how, history.followed_by(drafts[:j]))
        np.testing.assert_allclose(found[j].numpy(), expected, atol=1e-9)


@given(
    st.lists(logits, min_size=3, max_size=3),
    st.lists(logits, min_size=2, max_size=2),
    samplings,
    st.lists(uniform, min_size=9, max_size=9),
    st.lists(uniform, min_size=2, max_size=2),
)
@settings(max_examples=300)
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
        torch.tensor(np.array(p)), torch.tensor(np.array(q)), torch.tensor(drafts), torch.tensor(u)
    )
    assert (int(accepted), int(token)) == reference.accept(p, q, drafts, u)


@given(logits, uniform)
def test_a_draw_is_the_reference(row: list[float], u: float) -> None:
    p = reference.distribution(np.array(row), Sampling(temperature=1.0, top_k=4), History([], []))
    found = sample.draw(torch.tensor(p).unsqueeze(0), torch.tensor([u], dtype=torch.float64))
    assert int(found) == reference.draw(p, u)


def test_a_draw_never_gives_a_token_of_no_mass() -> None:
    p = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64)
    for u in (0.0, 0.4999999, 0.5, 1.0 - 2**-53):
        assert int(sample.draw(p, torch.tensor([u], dtype=torch.float64))) in (1, 3)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999999])
def test_top_p_of_a_large_vocabulary_is_the_reference(top_p: float) -> None:
    """Both ways to find the nucleus: among the likeliest, and by a sort of everything."""
    rng = np.random.default_rng(0)
    for scale in (0.01, 1.0, 6.0):
        row = rng.normal(size=5000) * scale
        how = Sampling(temperature=1.0, top_p=top_p)
        expected = reference.distribution(row, how, History([], []))
        found = sample.distribution(torch.tensor(row).unsqueeze(0), how)[0].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-12)
