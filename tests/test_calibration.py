"""Calibrations: fitted from rounds, monotone, of one head, and the way to a file and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_makers import by_confidence, by_position, calibrations

from mtpx.errors import PolicyError
from mtpx.policy.calibration import (
    EDGES,
    ENOUGH,
    Calibration,
    CalibrationTally,
    HeadIdentity,
    fit_calibration,
    histogram_priors,
    monotone_rates,
    parse_calibration,
    read_calibration,
)
from mtpx.policy.published import published
from mtpx.round import Round, SlotRound

HEAD = HeadIdentity("abc", 32, "none")


def round_of(accepted: int, said: list[float] | None, verified: int | None = None) -> Round:
    drafted = len(said) if said is not None else 3
    slot = SlotRound(
        request=0,
        position=9,
        drafted=drafted,
        verified=drafted if verified is None else verified,
        accepted=accepted,
        committed=accepted + 1,
        confidences=said,
    )
    return Round(index=0, start_ns=0, depth=drafted, slots=[slot], round_ms=1.0)


def test_only_drafts_that_were_reached_count() -> None:
    # The first draft always falls: the second and third were never reached, whatever became of them.
    rounds = [round_of(0, [-0.3, -0.001, -0.001])] * 150
    fitted = fit_calibration(rounds, HEAD)
    assert fitted.priors == (0.0,)
    assert sum(fitted.reached) == 150


def test_a_draft_that_was_cut_is_no_rejection() -> None:
    rounds = [round_of(1, [-0.3, -0.3], verified=1)] * 200 + [round_of(2, [-0.3, -0.3])] * 100
    assert fit_calibration(rounds, HEAD).priors == (1.0, 1.0)


def test_what_lies_after_an_accepted_end_is_no_rejection() -> None:
    ended = round_of(1, [-0.3, -0.3])
    ended.slots[0].committed, ended.slots[0].ended = 1, True
    fitted = fit_calibration([ended] * 200, HEAD)
    assert (fitted.priors, sum(fitted.reached)) == ((1.0,), 200)


def test_the_prior_of_a_position_is_its_conditional_rate() -> None:
    rounds = [round_of(a, [-0.3] * 3) for a in [3] * 120 + [2] * 40 + [1] * 80 + [0] * 160]
    assert fit_calibration(rounds, HEAD).priors == (240 / 400, 160 / 240, 120 / 160)


def test_priors_stop_where_outcomes_run_out_and_later_positions_take_the_last() -> None:
    rounds = [round_of(3, [-0.3] * 3)] * 60 + [round_of(1, [-0.3] * 3)] * 60
    fitted = fit_calibration(rounds, HEAD)
    # Position 3 was reached 60 times only.
    assert fitted.priors == (1.0, 0.5)
    assert fitted.prior(7) == fitted.prior(2) == 0.5


@pytest.mark.parametrize("count", [0, 99])
def test_too_few_outcomes_are_refused(count: int) -> None:
    with pytest.raises(PolicyError, match=f"{count} drafts .* needs 100 or more"):
        fit_calibration([round_of(0, [-0.3])] * count, HEAD)


def test_a_hundred_outcomes_are_enough() -> None:
    assert fit_calibration([round_of(0, [-0.3])] * 100, HEAD).priors == (0.0,)


def test_rounds_without_confidences_make_no_calibration() -> None:
    with pytest.raises(PolicyError, match="0 drafts with a known confidence"):
        fit_calibration([round_of(1, None)] * 500, HEAD)


@pytest.mark.parametrize(
    ("said", "bucket"),
    [(-9.0, 0), (-4.0, 0), (-3.9, 1), (-0.5, 3), (-0.49, 4), (0.0, 9), (1e-7, 9)],
)
def test_buckets_are_open_below_and_closed_above(said: float, bucket: int) -> None:
    tally = CalibrationTally()
    tally.add(round_of(1, [said]))
    assert tally.reached[bucket] == tally.accepted[bucket] == 1
    rates = [i / 10 for i in range(10)]
    assert by_confidence(rates).probability(said, 1) == rates[bucket]


def test_buckets_are_pooled_from_the_most_confident_down() -> None:
    # 60 + 50 at the top make one pool, 100 the next, and the 30 at the bottom join that.
    rates = monotone_rates([30, 100, 50, 60], [0, 50, 50, 54])
    assert rates == pytest.approx([50 / 130, 50 / 130, 104 / 110, 104 / 110])


def test_a_dip_is_levelled_by_the_weights_of_its_neighbours() -> None:
    assert monotone_rates([100, 300], [80, 120]) == pytest.approx([0.5, 0.5])


counted = st.lists(
    st.integers(0, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    min_size=10,
    max_size=10,
).filter(lambda rows: sum(n for n, _ in rows) >= ENOUGH)


@given(counted)
def test_a_more_confident_draft_is_never_predicted_to_stand_less_often(
    rows: list[tuple[int, int]],
) -> None:
    rates = monotone_rates([n for n, _ in rows], [a for _, a in rows])
    assert rates == sorted(rates)
    assert all(0.0 <= rate <= 1.0 for rate in rates)


@given(counted)
def test_pooling_keeps_the_number_of_accepted_drafts(rows: list[tuple[int, int]]) -> None:
    reached, accepted = [n for n, _ in rows], [a for _, a in rows]
    predicted = sum(n * p for n, p in zip(reached, monotone_rates(reached, accepted), strict=True))
    assert predicted == pytest.approx(sum(accepted), abs=1e-6)


def test_the_reliability_curve_sets_observed_beside_predicted() -> None:
    rounds = [round_of(1, [-0.3])] * 150 + [round_of(0, [-0.3])] * 50
    (row,) = [r for r in fit_calibration(rounds, HEAD).reliability() if r.reached]
    assert (row.lower, row.upper, row.observed, row.predicted) == (-0.5, -0.25, 0.75, 0.75)


def test_a_calibration_by_position_ignores_confidences() -> None:
    assert by_position(0.7, 0.5).probability(-9.0, 2) == 0.5


@given(calibrations())
def test_what_is_rendered_parses_back_equal(calibration: Calibration) -> None:
    assert parse_calibration(calibration.render().encode()) == calibration


def test_a_calibration_is_written_and_read_back(tmp_path: Path) -> None:
    fitted = fit_calibration([round_of(1, [-0.3, -0.3, -0.1])] * 300, HEAD, {"how": "a test"})
    fitted.write(tmp_path / fitted.file_name())
    assert read_calibration(tmp_path / fitted.file_name(), HEAD) == fitted


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (HeadIdentity("abd", 32, "none"), "sha256"),
        (HeadIdentity("abc", 33, "none"), "vocab_size"),
        (HeadIdentity("abc", 32, "Q4_1"), "quantisation"),
    ],
)
def test_a_calibration_of_another_head_is_refused(
    head: HeadIdentity, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.calibration.toml"
    fit_calibration([round_of(1, [-0.3])] * 100, HEAD).write(path)
    with pytest.raises(PolicyError, match=f"of another head: {name} "):
        read_calibration(path, head)


def test_a_vocabulary_that_was_not_stated_is_no_mismatch() -> None:
    assert HeadIdentity("abc", None, "none").differences(HEAD) == []
    assert HeadIdentity(None, 32, "none").differences(HEAD) == ["sha256"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"priors": ()}, "no rate for draft position 1"),
        ({"priors": (1.1,)}, "no probability"),
        ({"priors": (float("nan"),)}, "no probability"),
        ({"accept": (0.5,) * 9 + (0.4,)}, "stands less often"),
        ({"accept": (0.5,) * 9}, "one entry for every bucket edge"),
        ({"edges": EDGES[::-1]}, "not finite and ascending"),
        ({"accepted": (2,) * 10}, "more drafts accepted than reached"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused(
    fields: dict[str, tuple[float, ...]], sentence: str
) -> None:
    good = {
        "priors": (0.5,),
        "edges": EDGES,
        "accept": (0.5,) * 10,
        "reached": (1,) * 10,
        "accepted": (1,) * 10,
    }
    with pytest.raises(PolicyError, match=sentence):
        Calibration(HEAD, **(good | fields))  # type: ignore[arg-type]


@given(st.binary(max_size=200))
def test_bytes_that_are_no_calibration_never_leave_a_traceback(data: bytes) -> None:
    with pytest.raises(PolicyError):
        parse_calibration(data)


def test_a_histogram_gives_the_published_priors() -> None:
    # Published with the GB10 table (Metrale, 2026-10-04): .7091, .5013, .4578.
    _, calibration = published("gb10-qwen3.8-27b")
    assert calibration.priors == pytest.approx((0.7091, 0.5013, 0.4578), abs=5e-5)
    histogram = [int(count) for count in calibration.about["accepted_3_2_1_0"].split(",")]
    assert histogram_priors([histogram]) == calibration.priors


@pytest.mark.parametrize("windows", [[], [[5]], [[1, 2], [1, 2, 3]], [[-1, 2]], [[0, 0]]])
def test_a_histogram_that_says_nothing_is_refused(windows: list[list[int]]) -> None:
    with pytest.raises(PolicyError, match="histogram"):
        histogram_priors(windows)
