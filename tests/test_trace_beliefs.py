"""What a head said of its drafts, and a policy of its depths, as the summary tells it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_traces import simulated_trace
from test_trace_summary import mtp_run
from test_trace_time import REGIME
from trace_makers import a_round, slot

from mtpx.policy import FixedDepth
from mtpx.policy.calibration import EDGES, CalibrationTally
from mtpx.round import Round
from mtpx.trace.acceptance import proportion
from mtpx.trace.beliefs import MOST
from mtpx.trace.schema import BeliefRecord
from mtpx.trace.summary import summarise


def test_drafts_are_counted_by_how_sure_the_head_was() -> None:
    run = mtp_run(
        a_round(0, slot(2, 2, confidences=[-0.01, -0.3])),
        a_round(1, slot(2, 1, confidences=[-0.01, -0.4])),
        a_round(2, slot(2, 0, confidences=[-9.0, -0.01])),
    )
    least, middle, most = run.reliability
    assert (least.lower, least.upper, least.stood) == (None, -4.0, proportion(0, 1))
    assert (middle.lower, middle.upper, middle.stood) == (-0.5, -0.25, proportion(1, 2))
    assert middle.said == pytest.approx((math.exp(-0.3) + math.exp(-0.4)) / 2)
    # The last round's second draft was never reached.
    assert (most.upper, most.stood) == (-0.005, proportion(2, 2))


def test_without_confidences_there_is_no_reliability() -> None:
    assert mtp_run(a_round(0, slot(2, 1))).reliability == []


def test_the_report_counts_what_a_calibration_counts() -> None:
    records = simulated_trace(REGIME, FixedDepth(3), tokens=9000)
    tally = CalibrationTally()
    for record in records:
        if isinstance(record, Round):
            tally.add(record)
    (run,) = summarise(records)
    found = {row.upper: (row.stood.trials, row.stood.successes) for row in run.reliability}
    assert found == {
        upper: (n, a) for upper, n, a in zip(EDGES, tally.reached, tally.accepted, strict=True) if n
    }


def belief(index: int, said: dict[str, Any]) -> BeliefRecord:
    return BeliefRecord(index, "any", said)


def test_a_belief_stands_after_the_rounds_before_it() -> None:
    run = mtp_run(
        belief(0, {"selected": 0, "tokens_per_s": {"0": 30.0}}),
        a_round(0, slot(1, 1)),
        a_round(1, slot(1, 1)),
        belief(1, {"selected": 1, "tokens_per_s": {"1": 40.0, "0": 31.0}}),
    )
    assert run.beliefs == 2
    assert [(p.after, p.selected) for p in run.belief_over_time] == [(0, 0), (2, 1)]
    assert list(run.belief_over_time[1].tokens_per_s.items()) == [(0, 31.0), (1, 40.0)]


def test_a_planners_options_are_a_belief_too() -> None:
    options = [{"depth": 0, "tokens": 1.0, "ms": 20.0}, {"depth": 1, "tokens": 1.5, "ms": 25.0}]
    (point,) = mtp_run(belief(0, {"depth": 1, "options": options})).belief_over_time
    assert (point.selected, point.tokens_per_s) == (1, {0: 50.0, 1: 60.0})


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"tokens_per_s": 7, "selected": "deep"},
        {"tokens_per_s": {"x": 1.0, "1": "fast", "2": -1.0, "3": True, "-1": 2.0}},
        {
            "options": [
                None,
                {"depth": 1},
                {"depth": "1", "tokens": 1, "ms": 1},
                {"depth": 1, "ms": 0},
            ]
        },
    ],
)
def test_a_belief_nobody_can_read_is_no_point(said: dict[str, Any]) -> None:
    run = mtp_run(belief(0, said))
    assert (run.beliefs, run.belief_over_time) == (1, [])


@given(count=st.integers(1, 5 * MOST))
def test_beliefs_are_thinned_evenly_and_the_last_one_stays(count: int) -> None:
    said = [belief(i, {"tokens_per_s": {"0": 1.0 + i}}) for i in range(count)]
    points = mtp_run(*said).belief_over_time
    speeds = [point.tokens_per_s[0] for point in points]
    assert len(points) <= MOST + 1
    assert (speeds[0], speeds[-1]) == (1.0, float(count))
    assert len({b - a for a, b in pairwise(speeds[:-1])}) <= 1
