"""What a slot holds of mlx-lm's caches can be taken back by rows, or says that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_makers import make_pack

from mtpx.backend import EngineOptions
from mtpx.packs import Pack
from mtpx.sampling import Sampling
from mtpx.testing import Subject
from mtpx.testing.greedy import (
    a_plain_run_gives_the_parked_text,
    every_accepted_count_leaves_a_plain_state,
    every_depth_gives_the_plain_text,
    plain_is_the_same_pipelined,
)
from mtpx.testing.rules import a_snapshot_outlives_its_slot, rewinding_restores_the_state
from mtpx_mlx import MlxBackend
from mtpx_mlx.hidden import HiddenRows
from mtpx_mlx.inspect import InspectableEngine
from mtpx_mlx.models import light
from mtpx_mlx.state import GroupLayer, OpaqueLayer, TargetState, WindowLayer, layer_states

PROMPTS = [[1, 2, 3, 4, 5], [7, 3, 9, 11, 2, 2, 5, 8], [4, *range(16), *range(16)] * 2]

caches = light("models.cache")

KINDS: dict[str, Callable[[], Any]] = {
    "keys and values": lambda: caches.KVCache(),
    "a window": lambda: caches.RotatingKVCache(max_size=8, keep=0),
    "a group": lambda: caches.CacheList(caches.KVCache(), caches.RotatingKVCache(max_size=8)),
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("pack"), head_dim=32)


def subject(pack: Pack, **extra: str) -> Subject:
    def load(options: EngineOptions) -> InspectableEngine:
        asked = EngineOptions(
            max_width=options.max_width, pipeline=options.pipeline, context=512, extra=extra
        )
        return InspectableEngine.of(MlxBackend().load(pack, asked))

    return Subject(pack.name, load, PROMPTS, tolerance=1e-3, depth=2, tokens=24)


@pytest.mark.parametrize(
    "check",
    [
        every_depth_gives_the_plain_text,
        every_accepted_count_leaves_a_plain_state,
        plain_is_the_same_pipelined,
        rewinding_restores_the_state,
        a_snapshot_outlives_its_slot,
    ],
)
@pytest.mark.parametrize("extra", [{"window": "16"}, {"kv_bits": "8"}], ids=["window", "quantised"])
def test_windowed_and_quantised_caches_draft_and_roll_back(
    pack: Pack, extra: dict[str, str], check: Callable[[Subject], Any]
) -> None:
    assert check(subject(pack, **extra)).compared > 0


def test_a_window_forgets_what_lies_before_it(pack: Pack) -> None:
    """The control of the test above: with so short a window the text is another one."""
    texts = []
    for extra in ({}, {"window": "16"}):
        with subject(pack, **extra).engine() as engine:
            slot = engine.open(PROMPTS[2], Sampling(), 0, head=False)
            while not engine.prefill(slot, 512):
                pass
            texts.append([t for _ in range(24) for t in engine.plain([slot])[0].committed])
    assert texts[0] != texts[1]


def state_of(kind: str) -> TargetState:
    def make() -> Any:
        return layer_states([KINDS[kind]()])

    return TargetState(make(), make)


def feed(state: TargetState, values: list[int], ahead: int = 0) -> list[np.ndarray]:
    """One forward over these rows (a row's key is its value); what every cache then holds, oldest
    first, of the window only."""
    state.begin(len(values), ahead)
    rows = mx.array(values, dtype=mx.float32).reshape(1, 1, -1, 1)
    (layer,) = state.layers
    parts = layer.cache.caches if isinstance(layer, GroupLayer) else [layer.cache]
    return [np.sort(np.array(part.update_and_fetch(rows, rows)[0]).ravel())[-8:] for part in parts]


@given(st.sampled_from(sorted(KINDS)), st.data())
@settings(deadline=None, max_examples=60)
def test_after_taking_rows_back_a_state_is_one_that_never_had_them(
    kind: str, data: st.DataObject
) -> None:
    state, told, value = state_of(kind), [], 0
    for _ in range(data.draw(st.integers(1, 8))):
        rows = data.draw(st.integers(1, 5))
        new = list(range(value, value + rows))
        value += rows
        before = len(told)
        feed(state, new)
        told += new
        stands = data.draw(st.integers(max(before, 1), len(told)))
        if data.draw(st.booleans()):
            state = state.copy() if state.reach(stands) == state.copy().reach(stands) else state
        assert state.reach(stands) == stands
        state.keep(stands)
        told = told[:stands]
    fresh = state_of(kind)
    for item in told:
        feed(fresh, [item])
    for mine, expected in zip(feed(state, [value]), feed(fresh, [value]), strict=True):
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("before", [5, 7, 8, 20])
def test_steps_launched_ahead_are_taken_back_together(kind: str, before: int) -> None:
    """The window of eight is still filling, full with the first step, with the second, and long full."""
    state, fresh = state_of(kind), state_of(kind)
    for item in range(before):
        feed(state, [item])
        feed(fresh, [item])
    for ahead, item in enumerate((50, 51)):
        feed(state, [item], ahead)
    assert state.reach(before) == before
    state.keep(before)
    for mine, expected in zip(feed(state, [99]), feed(fresh, [99]), strict=True):
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("room", [3, 256])
def test_a_cache_that_grew_by_half_is_made_even(kind: str, room: int) -> None:
    """mlx-lm's caches make room for the keys first."""
    state, fresh = state_of(kind), state_of(kind)
    for one in (state, fresh):
        feed(one, [1, 2, 3])
    state.begin(2)
    (layer,) = state.layers
    parts = layer.cache.caches if isinstance(layer, GroupLayer) else [layer.cache]
    for part in parts:
        part.keys = mx.concatenate([part.keys[..., :3, :], mx.zeros((1, 1, room, 1))], axis=2)
    state.keep(3)
    for mine, expected in zip(feed(state, [99]), feed(fresh, [99]), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_a_copy_keeps_its_values_when_the_original_goes_on() -> None:
    state = state_of("keys and values")
    feed(state, [1, 2, 3])
    twin = state.copy()
    state.keep(1)
    feed(state, [9, 9, 9])
    np.testing.assert_array_equal(feed(twin, [4])[0], [1, 2, 3, 4])


def test_a_cache_nobody_knows_takes_back_its_last_forward_only_and_says_so() -> None:
    cache = caches.ChunkedKVCache(64)
    (layer,) = layer_states([cache])
    assert isinstance(layer, OpaqueLayer)
    assert "ChunkedKVCache" in layer.why_plain
    state = TargetState([layer], lambda: layer_states([caches.ChunkedKVCache(64)]))
    for count in (3, 2):
        state.begin(count)
        rows = mx.zeros((1, 1, count, 1))
        cache.update_and_fetch(rows, rows)
    assert [state.reach(p) for p in (5, 4, 3, 2)] == [5, 3, 3, 0]
    state.keep(3)
    assert cache.offset == 3


def test_a_window_that_always_keeps_its_first_rows_is_plain_only() -> None:
    assert "first 4 positions" in WindowLayer(caches.RotatingKVCache(32, keep=4)).why_plain
    assert not WindowLayer(caches.RotatingKVCache(32, keep=0)).why_plain


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), max_size=6), st.integers(0, 16))
@settings(deadline=None, max_examples=60)
def test_hidden_states_are_one_run_whose_last_write_counts(
    writes: list[tuple[int, int]], forget: int
) -> None:
    store, known = HiddenRows(), {}
    for number, (start, count) in enumerate(writes):
        run = range(start, start + count)
        if known and (run.stop < min(known) or run.start > max(known) + 1):
            known = {}
        known |= dict.fromkeys(run, number)
        store.write(start, mx.full((count, 2), number, dtype=mx.float32))
    store.forget(forget)
    known = {p: n for p, n in known.items() if p < forget}
    for held in (store, store.copy(forget)):
        assert set(range(held.lo, held.hi)) == set(known)
        if known:
            found = np.array(held.read(held.lo, held.hi))[:, 0]
            np.testing.assert_array_equal(found, [known[p] for p in sorted(known)])


def test_plain_and_parked_text_are_the_same_over_a_window(pack: Pack) -> None:
    assert a_plain_run_gives_the_parked_text(subject(pack, window="16")).compared > 0
