"""How much of the turn before holds for a prompt, and which recurrent states are kept for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx import snapshots
from mtpx.errors import SettingsError
from mtpx.reuse import plan_reuse
from mtpx.snapshots import (
    SNAPSHOT_EVERY,
    kept_snapshots,
    set_snapshot_min_tokens,
    snapshot_due,
    snapshot_min_tokens,
)

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


@given(TOKENS, TOKENS, st.integers(0, 12), st.none() | st.lists(st.integers(0, 12), max_size=4))
def test_what_is_reused_was_computed_for_these_very_tokens(
    prompt: list[int], kept: list[int], filled: int, states: list[int] | None
) -> None:
    filled = min(filled, len(kept))
    found = plan_reuse(prompt, kept, filled, snapshots=states)
    assert prompt[: found.tokens] == kept[: found.tokens]
    assert found.tokens <= min(filled, len(prompt) - 1)
    if states is not None:
        assert found.tokens == 0 or found.tokens in states


def test_a_prompt_that_goes_on_reuses_all_that_was_computed() -> None:
    assert plan_reuse([1, 2, 3, 4, 5], [1, 2, 3], 2) == plan_reuse([1, 2, 3, 9], [1, 2, 3], 2)
    assert (found := plan_reuse([1, 2, 3, 4, 5], [1, 2, 3], 2)).tokens == 2
    assert found.why == ""


def test_a_prompt_that_parts_says_where() -> None:
    found = plan_reuse([1, 2, 9, 4], [1, 2, 3], 3)
    assert (found.tokens, found.common) == (2, 2)
    assert found.why == "the prompt leaves the earlier one at token 3"


def test_a_regenerated_answer_needs_no_prompt_token_but_the_last() -> None:
    assert plan_reuse([1, 2, 3], [1, 2, 3, 4, 5, 6], 5).tokens == 2


def test_a_recurrent_state_is_restored_at_or_below_the_match_only() -> None:
    prompt, kept = [*range(2000), 7], list(range(3000))
    found = plan_reuse(prompt, kept, 3000, snapshots=[1024, 2048, 3000], floor=256)
    assert found.tokens == 1024
    assert found.why == (
        "the prompt leaves the earlier one at token 2,001; the deepest state kept before that is "
        "after 1,024"
    )


def test_a_state_shallower_than_the_floor_is_not_restored() -> None:
    found = plan_reuse([1] * 300, [1] * 300, 300, snapshots=[100], floor=256)
    assert found.tokens == 0
    assert "not worth it (under 256)" in found.why
    assert plan_reuse([1] * 300, [1] * 300, 300, snapshots=[100], floor=0).tokens == 100


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_snapshots_are_due_at_every_multiple_on_the_way(before: int, more: int) -> None:
    stops, at = [], before
    while (stop := snapshot_due(before + more, at)) is not None:
        stops.append(stop)
        at = stop
    want = [n for n in range(before + 1, before + more + 1) if n % SNAPSHOT_EVERY == 0]
    assert stops == want


@given(
    st.lists(st.tuples(st.integers(1, 9999), st.integers(1, 100)), min_size=1, max_size=30),
    st.integers(1, 400),
    st.integers(1, 20),
)
def test_kept_snapshots_stay_within_their_bounds_and_the_deepest_is_one_of_them(
    taken: list[tuple[int, int]], budget: int, count: int
) -> None:
    positions, sizes = [p for p, _ in taken], [s for _, s in taken]
    kept = kept_snapshots(positions, sizes, budget=budget, count=count)
    assert max(positions) in [positions[i] for i in kept]
    assert len(kept) <= count
    assert len(kept) == 1 or sum(sizes[i] for i in kept) <= budget
    if len(taken) <= count and sum(sizes) <= budget:
        assert kept == list(range(len(taken)))


# The floor


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots._Pinned, "value", None)
    monkeypatch.delenv("MTPX_SNAPSHOT_MIN_TOKENS", raising=False)


@pytest.mark.usefixtures("unpinned")
def test_the_floor_is_256_unless_something_is_set() -> None:
    assert snapshot_min_tokens() == 256


@pytest.mark.usefixtures("unpinned")
def test_what_is_set_wins_over_the_variable_and_holds() -> None:
    assert set_snapshot_min_tokens(0)
    assert snapshot_min_tokens() == 0
    assert not set_snapshot_min_tokens(5)
    assert snapshot_min_tokens() == 0


@pytest.mark.usefixtures("unpinned")
def test_the_first_read_pins_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPX_SNAPSHOT_MIN_TOKENS", "12")
    assert snapshot_min_tokens() == 12
    monkeypatch.setenv("MTPX_SNAPSHOT_MIN_TOKENS", "13")
    assert snapshot_min_tokens() == 12
    assert not set_snapshot_min_tokens(13)


@pytest.mark.usefixtures("unpinned")
def test_a_floor_that_is_no_number_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPX_SNAPSHOT_MIN_TOKENS", "many")
    with pytest.raises(SettingsError, match="MTPX_SNAPSHOT_MIN_TOKENS cannot be 'many'"):
        snapshot_min_tokens()
    with pytest.raises(SettingsError, match="0 or more"):
        set_snapshot_min_tokens(-1)
