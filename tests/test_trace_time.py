"""Depth over time, hindsight, where the time went: against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_traces import simulated_trace, tokens_per_ms
from test_trace_summary import anomaly_counts, mtp_run, only
from trace_makers import a_round, bench_trace, request, run_record, slot, small_trace

from mtpx.carry import Adopted
from mtpx.policy import FixedDepth
from mtpx.round import Decision, SlotRound
from mtpx.simulate import Regime
from mtpx.trace.acceptance import OutcomesTally
from mtpx.trace.durations import EXACT, Durations, percentiles
from mtpx.trace.hindsight import HindsightTally, cost_at, delivered
from mtpx.trace.schema import EndRecord, Record
from mtpx.trace.timeline import MOST, Pace


def hindsight_of(slots: list[SlotRound], costs: dict[int, float], rates: list[float | None]):  # type: ignore[no-untyped-def]
    outcomes = OutcomesTally()
    for one in slots:
        outcomes.add(1, one)
    return HindsightTally().estimate(1, outcomes.at(1), costs, rates)


# -- times in bounded memory -------------------------------------------------------------------------


def test_few_times_have_their_exact_percentiles() -> None:
    times = Durations()
    for i, ms in enumerate([12.0, 30.0, 14.0]):
        times.add(ms, i)
    assert percentiles([times], [10, 50, 90]) == pytest.approx([12.4, 14.0, 26.8])
    assert times.above(13.0) == (2, 1)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), spread=st.floats(0.01, 2.0))
def test_many_times_have_their_percentiles_to_a_tenth_of_a_per_cent(
    seed: int, spread: float
) -> None:
    values = np.exp(spread * np.random.default_rng(seed).standard_normal(EXACT + 500))
    times = Durations()
    for i, ms in enumerate(values.tolist()):
        times.add(ms, i)
    wanted = np.percentile(values, [10, 50, 90]).tolist()
    assert percentiles([times], [10, 50, 90]) == pytest.approx(wanted, rel=1.5e-3)
    assert (times.count, times.total) == (len(values), pytest.approx(float(values.sum())))


# -- depth over time -----------------------------------------------------------------------------------


def test_the_timeline_holds_depth_selection_and_speed() -> None:
    run = mtp_run(
        a_round(0, slot(2, 1), ms=20.0, decision=Decision(selected=2, reason="selected")),
        a_round(1, slot(1, 0), ms=10.0, decision=Decision(selected=2, reason="probe")),
    )
    first, second = run.timeline
    assert (first.first, first.rounds, first.depth, first.selected) == (0, 1, 2.0, 2.0)
    assert first.tokens_per_s == pytest.approx(100.0)
    assert (second.first, second.depth, second.selected) == (1, 1.0, 2.0)


@pytest.mark.parametrize("rounds", [1, 511, 512, 513, 1024, 1025, 5000])
def test_a_timeline_has_every_round_in_at_most_512_stretches(rounds: int) -> None:
    run = mtp_run(*(a_round(i, slot(i % 3, 0)) for i in range(rounds)))
    assert len(run.timeline) <= MOST
    assert sum(s.rounds for s in run.timeline) == rounds
    assert sum(s.rounds * s.depth for s in run.timeline) == pytest.approx(
        sum(i % 3 for i in range(rounds))
    )


def test_plain_rounds_are_not_on_the_timeline() -> None:
    assert sum(s.rounds for s in only(small_trace()).timeline) == 4


def test_what_a_probe_cost_is_its_time_beyond_the_selected_depths() -> None:
    said = Decision(selected=1, reason="selected", cost_sample=True)
    probe = Decision(selected=1, reason="probe", cost_sample=True)
    run = mtp_run(
        *(a_round(i, slot(1, i % 2), ms=10.0, decision=said) for i in range(4)),
        a_round(4, slot(2, 0), ms=15.0, decision=probe),
    )
    found = {choice.reason: choice for choice in run.choices}
    # Position 1 stood in 2 of 5: 1.4 tokens in 10 ms at depth 1. The probe's one token would have
    # taken 10 / 1.4 ms.
    assert found["probe"].extra_ms == pytest.approx(15.0 - 10.0 / 1.4)
    assert found["selected"].extra_ms is None
    assert (found["probe"].rounds, found["probe"].tokens, found["probe"].ms) == (1, 1, 15.0)


def test_a_probe_whose_selected_depth_never_ran_has_no_price() -> None:
    run = mtp_run(a_round(0, slot(1, 1), decision=Decision(selected=3, reason="probe")))
    assert run.choices[0].extra_ms is None


def test_rounds_that_taught_no_cost_are_counted_by_why() -> None:
    run = mtp_run(
        *(
            a_round(i, slot(1, 1), ms=10.0, decision=Decision(selected=1, excluded=why))
            for i, why in enumerate(["transition", "stall", "transition", ""])
        )
    )
    assert [(u.excluded, u.rounds, u.ms) for u in run.unsampled] == [
        ("stall", 1, 10.0),
        ("transition", 2, 20.0),
    ]


# -- hindsight -----------------------------------------------------------------------------------------


def test_a_shallower_depth_delivers_what_the_same_drafts_say() -> None:
    seen = (3, 2, False)  # 2 of 3 drafts stood, the third fell
    assert [delivered(d, seen, [0.5, 0.5, 0.5]) for d in range(4)] == [1.0, 2.0, 3.0, 3.0]


def test_beyond_drafts_that_all_stood_the_rates_speak() -> None:
    seen = (1, 1, True)
    assert delivered(3, seen, [0.9, 0.5, 0.4]) == pytest.approx(2.0 + 0.5 + 0.5 * 0.4)


def test_the_best_fixed_depth_by_hand() -> None:
    slots = [slot(2, 2), slot(2, 0), slot(2, 1), slot(2, 2)]
    found = hindsight_of(slots, {0: 10.0, 1: 12.0, 2: 20.0}, [0.75, 2 / 3])
    assert [s.tokens_per_round for s in found.depths] == pytest.approx([1.0, 1.75, 2.25])
    assert found.best_depth == 1
    assert found.best_tokens_per_s == pytest.approx(1750 / 12)
    # The seer: 20 ms for 3 tokens loses to 12 ms for 2, so it drafts one where one stands, else none.
    assert found.oracle_tokens_per_s == pytest.approx(1e3 * 7 / (3 * 12 + 10))


@given(
    outcomes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30),
    costs=st.lists(st.floats(1.0, 100.0), min_size=2, max_size=5),
)
def test_no_fixed_depth_beats_the_seer(outcomes: list[tuple[int, int]], costs: list[float]) -> None:
    slots = [slot(v, min(a, v)) for v, a in outcomes]
    found = hindsight_of(slots, dict(enumerate(costs)), [0.5] * 4)
    assert found.oracle_tokens_per_s is not None
    for static in found.depths:
        assert static.tokens_per_s <= found.oracle_tokens_per_s * (1 + 1e-9)


def test_a_depth_never_run_is_priced_between_its_neighbours() -> None:
    costs = {0: 10.0, 2: 14.0}
    assert cost_at(costs, 1) == (12.0, True)
    assert cost_at(costs, 2) == (14.0, False)
    assert cost_at(costs, 3) == (16.0, True)


def test_one_depth_alone_has_no_rival() -> None:
    found = mtp_run(a_round(0, slot(1, 1))).hindsight
    assert found is not None
    assert (found.best_depth, found.oracle_tokens_per_s) == (None, None)
    assert "only one depth" in found.reason


def test_a_run_without_mtp_rounds_has_no_hindsight() -> None:
    assert only([run_record(), request(0, "plain"), a_round(0, slot(0, 0))]).hindsight is None


def test_each_arm_has_its_regret() -> None:
    found = only(small_trace()).hindsight
    assert found is not None
    (arm,) = found.arms
    # Depth 1: 1.75 tokens in 15 ms; depth 0: one in 10 ms.
    assert (arm.arm, arm.regret) == ("mtp", pytest.approx(0.0, abs=1e-12))


REGIME = Regime(
    acceptance=(0.8, 0.7, 0.6), cost_ms={1: (10.0, 11.5, 13.0, 20.0)}, noise=0.02, stall=0.01
)


class Cycle(FixedDepth):
    """Every depth in turn, ten rounds each."""

    name = "cycle"

    def __init__(self, deepest: int) -> None:
        super().__init__(deepest)
        self.deepest, self.round = deepest, 0

    def propose(self, batch: object) -> int:
        self.depth = self.round // 10 % (self.deepest + 1)
        self.round += 1
        return self.depth


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_hindsight_on_a_run_of_all_depths_is_what_a_fixed_depth_delivers(depth: int) -> None:
    explored = only(simulated_trace(REGIME, Cycle(3), tokens=6000, requests=1)).hindsight
    assert explored is not None
    real = tokens_per_ms(
        simulated_trace(REGIME, FixedDepth(depth), tokens=6000, requests=1, seed=3)
    )
    assert explored.depths[depth].tokens_per_s / 1e3 == pytest.approx(real, rel=0.05)


# -- where the time went -------------------------------------------------------------------------------


def test_time_is_split_into_its_parts_and_shares() -> None:
    records: list[Record] = [
        run_record(),
        request(0, prefill_ms=10.0),
        a_round(0, slot(1, 1), ms=20.0, draft_ms=4.0, verify_ms=15.0, host_ms=0.5),
        a_round(1, slot(1, 1), ms=8.0),
        a_round(2, slot(1, 1), ms=12.0, compiled_now=True),
    ]
    found = {part.part: (part.ms, part.share) for part in only(records).spent}
    assert found == {
        "prefill": (10.0, pytest.approx(0.2)),
        "draft": (4.0, pytest.approx(0.08)),
        "verify": (15.0, pytest.approx(0.3)),
        "host": (0.5, pytest.approx(0.01)),
        "rest": (0.5, pytest.approx(0.01)),
        "rounds": (8.0, pytest.approx(0.16)),
        "compiling": (12.0, pytest.approx(0.24)),
    }


def test_speed_is_told_by_length_of_context() -> None:
    run = mtp_run(
        *(
            a_round(i, SlotRound(0, position, 1, 1, 1, 2), ms=ms)
            for i, (position, ms) in enumerate([(100, 10.0), (200, 20.0), (255, 40.0), (256, 50.0)])
        )
    )
    assert [(row.low, row.high, row.rounds) for row in run.context] == [
        (0, 127, 1),
        (128, 255, 2),
        (256, 511, 1),
    ]
    assert run.context[1].tokens_per_s == pytest.approx(4 / 0.06)


def test_plain_speed_is_told_in_weights_read_a_second() -> None:
    records = small_trace()
    records[0] = run_record(plain_step_bytes=200_000_000)
    plain, mtp = only(records).arms
    assert plain.weights_gb_s == pytest.approx(0.2 * 100)  # GB a step, steps a second
    assert mtp.weights_gb_s is None


def test_energy_is_per_token_and_absent_unless_every_request_was_metered() -> None:
    ends = [EndRecord(i, tokens=10, stop="end", energy_j=j) for i, j in enumerate([5.0, 7.0])]
    whole: list[Record] = [run_record(), request(0), request(1), *ends]
    assert only(whole).arms[0].token_energy_j == pytest.approx(0.6)
    ends[1].energy_j = None
    assert only(whole).arms[0].token_energy_j is None


def test_a_requests_carry_is_kept() -> None:
    carry = Adopted(4, 2, 5)
    (one,) = only([run_record(), request(0, session=3, reused_tokens=5, carry=carry)]).requests
    assert (one.session, one.reused_tokens, one.carry) == (3, 5, str(carry))


# -- what should not be there --------------------------------------------------------------------------


def test_a_machine_that_slows_down_is_said() -> None:
    run = mtp_run(*(a_round(i, slot(1, 1), ms=10.0 * (1 + i / 400)) for i in range(400)))
    assert "slowing down" in anomaly_counts(run)
    assert run.drift is not None
    # Quarters around 1.125 and 1.875 times the first round.
    assert run.drift.change == pytest.approx(1.875 / 1.125 - 1, rel=0.03)


def test_deeper_rounds_late_in_a_run_are_no_drift() -> None:
    pace = Pace()
    for i in range(400):
        depth = 3 if i % 4 < (1 if i < 200 else 3) else 1
        pace.add(depth, 10.0 * depth)
    drift = pace.drift()
    assert drift is not None
    assert drift.change == pytest.approx(0.0, abs=1e-9)


def test_looping_output_is_an_anomaly() -> None:
    records: list[Record] = [run_record(), request(0), EndRecord(0, 0, "length", looped=True)]
    assert anomaly_counts(only(records)) == {"looping output": 1}


def test_a_round_recorded_twice_counts_once() -> None:
    run = mtp_run(a_round(0, slot(1, 1)), a_round(1, slot(1, 0)), a_round(1, slot(1, 0)))
    assert run.rounds[0].rounds == 2
    assert run.acceptance[0].conditional is not None
    assert run.acceptance[0].conditional.trials == 2


def test_block_ratios_are_what_the_verdict_rests_on() -> None:
    run = only(bench_trace())
    mean = sum(math.log(b.ratio or 0.0) for b in run.blocks) / len(run.blocks)
    assert run.verdicts[0].ratio == pytest.approx(math.exp(mean))
