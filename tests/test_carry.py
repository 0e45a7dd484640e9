"""The carry's functions: the formulas, and a model that knows which rows are truly valid."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.carry import (
    Adopted,
    CarriedHead,
    ForeignHiddens,
    ForeignSession,
    NoCarry,
    NoHiddens,
    PrefixMismatch,
    StoreRange,
    appended,
    carry_armed,
    carry_state,
    hidden_row_offset,
    merge_interval,
    plan_append,
    refusal,
    stamped_merge,
)

SMALL = st.integers(0, 12)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
SESSION = st.integers(0, 2)


def test_configured_is_not_armed_where_several_sequences_may_run() -> None:
    assert carry_armed(True, False)
    assert not any((carry_armed(True, True), carry_armed(False, False), carry_armed(False, True)))
    assert carry_state(True, False) == "armed"
    assert carry_state(True, True).startswith("configured, not armed")


@pytest.mark.parametrize(
    ("given_", "plan"),
    [
        ((97, 200, 97, 200), (98, 101)),
        ((97, 200, 150, 200), (150, 49)),
        ((97, 200, 97, 198), None),
        ((97, 200, 97, 199), (98, 101)),
        ((198, 200, 0, 200), None),
        ((-1, 1, 0, 1), None),
        ((-1, 2, 0, 1), (0, 1)),
    ],
)
def test_what_is_appended_reads_up_to_the_last_pair_of_the_prompt(
    given_: tuple[int, int, int, int], plan: tuple[int, int] | None
) -> None:
    assert plan_append(*given_) == plan


@given(st.integers(-1, 12), SMALL, SMALL, SMALL)
def test_an_append_ends_at_the_last_pair_and_reads_stored_hidden_states_only(
    last: int, length: int, lo: int, hi: int
) -> None:
    plan = plan_append(last, length, lo, hi)
    if plan is None:
        assert length < 2 or hi <= length - 2 or max(last + 1, lo) > length - 2
        return
    first, count = plan
    assert count >= 1
    assert first + count == length - 1
    assert first > last
    assert lo <= first < first + count <= hi


@given(SMALL, SMALL, SMALL, SMALL)
def test_a_merged_interval_claims_written_rows_only_and_all_of_the_last_write(
    lo: int, size: int, start: int, count: int
) -> None:
    written = set(range(lo, lo + size)) | set(range(start, start + count))
    found = merge_interval(lo, lo + size, start, count)
    assert set(range(*found)) <= written
    assert set(range(start, start + count)) <= set(range(*found))
    if size and count and start <= lo + size and start + count >= lo:
        assert set(range(*found)) == written


def test_only_the_owner_sees_a_range() -> None:
    held = StoreRange(3, 5, 9)
    assert held.visible_to(3) == (5, 9)
    assert held.visible_to(4) == (0, 0)
    assert StoreRange(0, 5, 9).visible_to(0) == (0, 0)


def test_another_writer_replaces_the_range_and_an_empty_write_changes_nothing() -> None:
    held = StoreRange(3, 5, 9)
    assert stamped_merge(held, 3, 9, 2) == StoreRange(3, 5, 11)
    assert stamped_merge(held, 4, 9, 2) == StoreRange(4, 9, 11)
    assert stamped_merge(StoreRange(0, 5, 9), 0, 9, 2) == StoreRange(0, 9, 11)
    assert stamped_merge(held, 4, 9, 0) == held


def test_a_row_lies_where_the_ones_before_it_end() -> None:
    assert hidden_row_offset(1000, 3, 64, 2) == 1000 + 3 * 64 * 2


def test_a_foreign_session_adopts_nothing() -> None:
    entry = CarriedHead(4, 3, [1, 2, 3, 4, 5], 7)
    assert entry.usable_by([1, 2, 3, 4, 5], 8) is None
    assert entry.usable_by([1, 2, 3, 4, 5], 0) is None
    assert CarriedHead(4, 3, [1, 2, 3, 4, 5], 0).usable_by([1, 2, 3, 4, 5], 0) is None
    assert refusal(entry, [1, 2], 8) == ForeignSession(7, 8)


def test_a_truncated_history_shortens_the_rows() -> None:
    entry = CarriedHead(4, 3, [1, 2, 3, 4, 5], 7)
    assert entry.usable_by([1, 2, 3, 9, 9], 7) == CarriedHead(2, 1, [1, 2, 3], 7)
    assert entry.usable_by([1, 9], 7) is None
    assert refusal(entry, [1, 9], 7) == PrefixMismatch(1, 4)


def test_rows_after_a_skipped_key_are_dropped_before_one_too_many_is_kept() -> None:
    entry = CarriedHead(10, 10, list(range(12)), 7)  # keys 0..5 and 7..10: key 6 was skipped
    assert entry.usable_by(list(range(8)), 7) == CarriedHead(6, 6, list(range(8)), 7)
    assert entry.usable_by(list(range(6)), 7) == CarriedHead(4, 4, list(range(6)), 7)


@pytest.mark.parametrize(
    ("store", "outcome"),
    [
        (StoreRange(5, 4, 9), Adopted(4, 5, 4)),
        (StoreRange(5, 6, 9), Adopted(4, 3, 6)),
        (StoreRange(6, 4, 9), ForeignHiddens(6, 5)),
        (StoreRange(5, 4, 8), NoHiddens()),
        (StoreRange(), NoHiddens()),
    ],
)
def test_the_outcome_says_what_the_hidden_states_allowed(
    store: StoreRange, outcome: object
) -> None:
    adopted = CarriedHead(4, 3, [1, 2, 3, 4, 5], 7)
    assert appended(adopted, 10, store, 5) == outcome


def test_a_regenerated_turn_appends_nothing() -> None:
    assert appended(CarriedHead(9, 8, [1] * 10, 7), 10, StoreRange(), 5) == Adopted(9, 0, 9)


@pytest.mark.parametrize(
    "outcome",
    [
        Adopted(1812, 118, 1811),
        NoCarry("nothing was kept"),
        PrefixMismatch(3, 40),
        ForeignHiddens(2, 3),
        ForeignSession(17, 0),
        NoHiddens(),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_every_outcome_says_itself_in_one_line(outcome: object) -> None:
    assert str(outcome).startswith("head: ")
    assert "\n" not in str(outcome)


# Against a model that knows which rows are truly valid


@dataclass
class Truth:
    """A store and a head as they really are: who wrote hidden state i for which tokens, and which pair
    every row of the head's holds."""

    store: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    rows: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)

    def write(self, ticket: int, tokens: list[int], start: int, count: int) -> None:
        for i in range(start, start + count):
            self.store[i] = ticket, tuple(tokens[: i + 1])

    def append(self, ticket: int, session: int, tokens: list[int], first: int, count: int) -> None:
        for key in range(first, first + count):
            assert self.store[key] == (ticket, tuple(tokens[: key + 1])), (
                "a hidden state not its own"
            )
            self.rows.append((key, session, tuple(tokens[: key + 2])))


TURNS = st.lists(st.tuples(SESSION, TOKENS, st.integers(0, 14), st.booleans()), max_size=8)


@given(TURNS)
def test_no_row_is_claimed_that_its_owner_did_not_write_for_these_tokens(
    turns: list[tuple[int, list[int], int, bool]],
) -> None:
    """Turns of several sessions over one store and one slot for the carry, each computing hidden
    states from wherever the target's prefix ends; a turn may not run the head at all."""
    truth, held, entry = Truth(), StoreRange(), None
    for ticket, (session, tokens, reused, runs_head) in enumerate(turns, 1):
        filled = min(reused, len(tokens) - 1)
        adopted = entry.usable_by(tokens, session) if entry is not None else None
        truth.rows = truth.rows[: adopted.rows] if adopted else []
        last = adopted.last_pair_key if adopted else -1
        for key, whose, made_of in truth.rows:
            assert whose == session != 0
            assert made_of == tuple(tokens[: key + 2])
            assert key <= last
        if runs_head:
            held = stamped_merge(held, ticket, filled, len(tokens) - 1 - filled)
            truth.write(ticket, tokens, filled, len(tokens) - 1 - filled)
            plan = plan_append(last, len(tokens), *held.visible_to(ticket))
            if plan is not None:
                truth.append(ticket, session, tokens, *plan)
                last = plan[0] + plan[1] - 1
        entry = CarriedHead(len(truth.rows), last, tokens, session)
