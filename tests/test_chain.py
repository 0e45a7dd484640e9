"""Which slots make another draft."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.backend import FloatArray
from mtpx.chain import Chain, among, lengths
from mtpx.testing.stopping import LoneQuestions, Questions

CAPS = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def counts(caps: list[int], chain: Chain) -> list[int]:
    made = [0] * len(caps)
    while chain.live:
        for i in chain.live:
            made[i] += 1
        live = list(chain.live)
        chain.step(lambda: [-float(i) for i in live])  # noqa: B023
    return made


@given(CAPS)
def test_without_a_question_every_slot_makes_as_many_drafts_as_it_may(caps: list[int]) -> None:
    assert counts(caps, Chain(caps)) == caps


@given(CAPS, st.data())
def test_a_slot_stops_where_it_is_told_to_and_never_beyond_its_room(
    caps: list[int], data: st.DataObject
) -> None:
    stops = data.draw(st.lists(st.integers(1, 6), min_size=len(caps), max_size=len(caps)))

    def go_on(confidence: FloatArray) -> list[bool]:
        return [confidence.shape[1] < stop for stop in stops]

    expected = [min(cap, stop) for cap, stop in zip(caps, stops, strict=True)]
    assert counts(caps, Chain(caps, go_on)) == expected


def test_a_question_shows_a_row_for_every_slot_and_nan_where_there_is_no_draft() -> None:
    shown: list[FloatArray] = []

    def go_on(confidence: FloatArray) -> list[bool]:
        shown.append(np.array(confidence))
        return [True] * len(confidence)

    counts([0, 1, 3], Chain([0, 1, 3], go_on))
    nan = np.nan
    np.testing.assert_array_equal(shown[0], [[nan], [-1.0], [-2.0]])
    np.testing.assert_array_equal(shown[1], [[nan, nan], [-1.0, nan], [-2.0, -2.0]])
    assert len(shown) == 2, "the last draft there is room for is not asked about"


@given(st.integers(0, 6), st.integers(1, 7))
def test_a_lone_slot_is_asked_about_by_number_where_that_is_possible(cap: int, stop: int) -> None:
    by_number = LoneQuestions([stop])
    by_array = Questions([stop])
    assert counts([cap], Chain([cap], by_number)) == counts([cap], Chain([cap], by_array))
    for told, shown in zip(by_number.shown, by_array.shown, strict=False):
        np.testing.assert_array_equal(told, shown)
    assert len(by_number.shown) == min(cap, stop), (
        "of the last draft there is room for it is told, too"
    )


def test_several_slots_are_asked_about_by_array() -> None:
    asked = LoneQuestions([3, 2])
    asked.alone = pytest.fail  # type: ignore[assignment]
    assert counts([3, 3], Chain([3, 3], asked)) == [3, 2]


def test_nothing_is_read_where_nobody_is_asked() -> None:
    def read() -> list[float]:
        raise AssertionError("read without need")

    chain = Chain([2])
    assert chain.step(read) == [0]
    asked = Chain([1], lambda confidence: [True])
    assert asked.step(read) == []


def test_a_question_about_some_slots_is_put_as_one_about_all() -> None:
    def go_on(confidence: FloatArray) -> list[bool]:
        assert np.isnan(confidence[1]).all()
        return [bool(row[0] > 0.5) for row in confidence]

    assert among(go_on, [0, 2], 3)(np.array([[0.1], [0.9]])) == [False, True]


def test_known_beforehand_confidences_make_chains_as_long_as_asking_for_them_would() -> None:
    sure = np.array([[-0.1, -3.0, -0.1], [-3.0, -0.1, -0.1], [-0.1, -0.1, -0.1]])
    assert lengths(lambda seen: [bool(row[-1] > -1.0) for row in seen], sure) == [2, 1, 3]
