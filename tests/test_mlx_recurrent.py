"""Taking rows back from GatedDeltaNet layers: whatever was rejected, what follows is what mlx-lm's own
layer computes when it sees the accepted rows only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

import mlx.core as mx
import numpy as np

from mtpx_mlx import recurrent
from mtpx_mlx.models import light
from mtpx_mlx.recurrent import DeltaCache, DeltaLayer, DeltaMixer

H = 24
SIZES: dict[str, Any] = {
    "hidden_size": H,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
}


def mlx_layer(kind: str, **changes: int) -> Any:
    """mlx-lm's own layer with random weights."""
    module = light(f"models.{kind}")
    sizes = SIZES | changes
    mx.random.seed(3)
    if kind == "qwen3_5":
        return module.GatedDeltaNet(module.TextModelArgs(**sizes))

    class Config:
        pass

    config = Config()
    config.__dict__.update(sizes)
    return module.Qwen3NextGatedDeltaNet(config)


LAYERS = {
    "qwen3_5": mlx_layer("qwen3_5"),
    "qwen3_next": mlx_layer("qwen3_next"),
    # On Metal mlx-lm has one kernel for keys of a multiple of 32, another for those of 128, and none for others.
    "qwen3_5, keys of 64": mlx_layer("qwen3_5", linear_key_head_dim=64),
    "qwen3_5, keys of 128": mlx_layer("qwen3_5", linear_key_head_dim=128, linear_value_head_dim=8),
}


def inputs(rows: int, seed: int) -> Any:
    return mx.array(np.random.default_rng(seed).standard_normal((1, rows, H)).astype(np.float32))


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_the_mixer_computes_what_mlx_lms_layer_computes(kind: str) -> None:
    layer = LAYERS[kind]
    cache = light("models.cache").ArraysCache(size=2)
    mine = DeltaCache()
    mixer = DeltaMixer(layer)
    for seed, rows in enumerate((5, 1, 3, 70, 1)):
        x = inputs(rows, seed)
        expected, found = layer(x, None, cache), mixer(x, None, mine)
        np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-5, atol=1e-6)
        mine.at += rows
    after = mine.steps[-1].after
    assert after is not None
    np.testing.assert_allclose(np.array(after.window), np.array(cache[0]), rtol=1e-6)
    np.testing.assert_allclose(np.array(after.state), np.array(cache[1]), rtol=1e-4, atol=1e-6)


ROUNDS = st.lists(
    st.integers(1, 5).flatmap(lambda rows: st.tuples(st.just(rows), st.integers(0, rows))),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("kind", sorted(LAYERS))
@settings(max_examples=25, deadline=None)
@given(rounds=ROUNDS)
def test_rejected_rows_leave_no_mark(kind: str, rounds: list[tuple[int, int]]) -> None:
    layer, mixer = LAYERS[kind], DeltaMixer(LAYERS[kind])
    state = DeltaLayer(DeltaCache())
    stood: list[Any] = []
    position = 0
    for seed, (rows, accepted) in enumerate(rounds):
        x = inputs(rows, seed)
        state.begin(position, rows)
        mixer(x, None, state.cache)
        assert state.reach(position + accepted) == position + accepted
        state.keep(position + accepted)
        stood.append(x[:, :accepted])
        position += accepted
    last = inputs(2, 99)
    state.begin(position, 2)
    found = mixer(last, None, state.cache)
    expected = layer(mx.concatenate([*stood, last], axis=1), None, None)[:, -2:]
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-4, atol=1e-5)


def test_what_was_rejected_would_be_seen() -> None:
    """The control: a state that keeps a rejected row gives other outputs by far more than rounding."""
    mixer = DeltaMixer(LAYERS["qwen3_5"])
    outputs = []
    for kept in (2, 3):
        state = DeltaLayer(DeltaCache())
        state.begin(0, 3)
        mixer(inputs(3, 0), None, state.cache)
        state.keep(kept)
        state.begin(kept, 1)
        outputs.append(np.array(mixer(inputs(1, 1), None, state.cache)))
    assert np.abs(outputs[0] - outputs[1]).max() > 100 * 1e-5


def test_rows_can_be_taken_back_one_after_another() -> None:
    """A draft is rejected, then the person rewinds further into the same round."""
    mixer = DeltaMixer(LAYERS["qwen3_5"])
    x, last = inputs(4, 0), inputs(1, 1)
    state = DeltaLayer(DeltaCache())
    state.begin(0, 4)
    mixer(x, None, state.cache)
    state.keep(3)
    state.keep(1)
    state.begin(1, 1)
    found = mixer(last, None, state.cache)
    expected = LAYERS["qwen3_5"](mx.concatenate([x[:, :1], last], axis=1), None, None)[:, -1:]
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-4, atol=1e-5)


def test_only_the_last_forwards_rows_can_be_taken_back() -> None:
    mixer = DeltaMixer(LAYERS["qwen3_5"])
    state = DeltaLayer(DeltaCache())
    for before, rows in ((0, 4), (4, 3)):
        state.begin(before, rows)
        mixer(inputs(rows, rows), None, state.cache)
        state.keep(before + rows)
    assert [state.reach(p) for p in (9, 7, 6, 4, 3, 0)] == [7, 7, 6, 4, 0, 0]


def test_a_long_piece_of_a_prompt_is_not_kept_row_by_row() -> None:
    mixer = DeltaMixer(LAYERS["qwen3_5"])
    state = DeltaLayer(DeltaCache())
    rows = recurrent.REPLAYED_ROWS + 1
    state.begin(0, rows)
    mixer(inputs(rows, 0), None, state.cache)
    (step,) = state.cache.steps
    assert step.rows is None
    assert [state.reach(rows), state.reach(rows - 1)] == [rows, 0]


LONG = recurrent.REPLAYED_ROWS + 5


@pytest.mark.parametrize("rows", [3, LONG], ids=["a round", "a piece of a prompt"])
@pytest.mark.parametrize("ran", [False, True], ids=["before it ran", "after it ran"])
def test_a_forward_that_was_broken_off_is_taken_back(rows: int, ran: bool) -> None:
    """Of the layers of one forward some have run by then, and some have not."""
    mixer = DeltaMixer(LAYERS["qwen3_5"])
    x, last = inputs(4, 0), inputs(2, 1)
    state = DeltaLayer(DeltaCache())
    state.begin(0, 4)
    mixer(x, None, state.cache)
    state.keep(3)
    state.begin(3, rows)
    if ran:
        mixer(inputs(rows, 9), None, state.cache)
    assert state.reach(3) == 3
    state.keep(3)
    state.begin(3, 2)
    found = mixer(last, None, state.cache)
    expected = LAYERS["qwen3_5"](mx.concatenate([x[:, :3], last], axis=1), None, None)[:, -2:]
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [4, 5, 6])
def test_a_step_launched_ahead_is_taken_back_with_the_one_before_it(kept: int) -> None:
    mixer = DeltaMixer(LAYERS["qwen3_5"])
    x, last = inputs(6, 0), inputs(1, 1)
    state = DeltaLayer(DeltaCache())
    for before, rows, ahead in ((0, 4, 0), (4, 1, 0), (5, 1, 1)):
        state.begin(before, rows, ahead)
        mixer(x[:, before : before + rows], None, state.cache)
    assert state.reach(kept) == kept
    state.keep(kept)
    state.begin(kept, 1)
    found = mixer(last, None, state.cache)
    expected = LAYERS["qwen3_5"](mx.concatenate([x[:, :kept], last], axis=1), None, None)[:, -1:]
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-4, atol=1e-5)


def test_a_copy_goes_its_own_way() -> None:
    mixer = DeltaMixer(LAYERS["qwen3_5"])
    x, last = inputs(3, 0), inputs(1, 1)
    state = DeltaLayer(DeltaCache())
    state.begin(0, 3)
    mixer(x, None, state.cache)
    twin = state.copy()
    state.keep(1)
    state.begin(1, 1)
    mixer(last, None, state.cache)
    twin.keep(2)
    twin.begin(2, 1)
    found = mixer(last, None, twin.cache)
    expected = LAYERS["qwen3_5"](mx.concatenate([x[:, :2], last], axis=1), None, None)[:, -1:]
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-4, atol=1e-5)
