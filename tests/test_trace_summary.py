"""The summary of a trace against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_makers import a_round, bench_trace, request, run_record, slot, small_trace, written

from mtpx.errors import TraceError
from mtpx.round import Decision, Route
from mtpx.trace import docs
from mtpx.trace.acceptance import (
    OutcomesTally,
    PositionAcceptance,
    committed_tokens,
    proportion,
    uniform_acceptance,
)
from mtpx.trace.schema import EndRecord, Record
from mtpx.trace.summary import RunSummary, summarise, summarise_files


def only(records: list[Record], margin: float | None = None) -> RunSummary:
    (run,) = summarise(records, margin)
    return run


def anomaly_counts(run: RunSummary) -> dict[str, int]:
    return {a.kind: a.count for a in run.anomalies}


def mtp_run(*rounds: Record) -> RunSummary:
    return only([run_record(), request(0), *rounds])


def test_totals_by_arm_are_delivered_tokens_over_decode_time() -> None:
    plain, mtp = only(small_trace()).arms
    # plain: (5 - 1) / 0.04 s; MTP: (7 - 2) / 0.045 s.
    assert (plain.arm, plain.tokens, plain.tokens_per_s) == ("plain", 5, pytest.approx(100.0))
    assert (mtp.arm, mtp.tokens, mtp.tokens_per_s) == ("mtp", 7, pytest.approx(5 / 0.045))
    assert (mtp.tokens_per_round, mtp.accepted_share) == (1.75, 0.75)
    assert (plain.ttft_ms, mtp.ttft_ms) == (15.0, 20.0)
    assert mtp.stops == {"length": 1}


def test_an_arms_rate_weighs_requests_by_their_time() -> None:
    records: list[Record] = [run_record()]
    for id, (tokens, seconds) in enumerate([(11, 1.0), (31, 1.0), (5, None)]):
        records += [request(id, "plain"), *(a_round(i, slot(0, 0, id=id)) for i in range(tokens))]
        records.append(EndRecord(id, tokens=tokens, stop="end", decode_s=seconds, first_tokens=1))
    (arm,) = only(records).arms
    assert arm.tokens_per_s == pytest.approx(40 / 2.0)
    assert (arm.requests, arm.tokens) == (3, 47)


def test_rounds_are_counted_by_depth_and_route() -> None:
    run = mtp_run(
        a_round(0, slot(2, 2), ms=30.0, compiled_now=True, route=Route("compiled")),
        a_round(1, slot(2, 0), ms=12.0, route=Route("compiled"), draft_ms=3.0, verify_ms=9.0),
        a_round(2, slot(2, 1), ms=14.0, route=Route("compiled"), draft_ms=3.5),
        a_round(3, slot(1, 1), ms=20.0),
    )
    one, two = run.rounds
    assert (one.depth, one.route, one.rounds, one.full_cost_ms) == (1, "eager", 1, 20.0)
    assert (two.depth, two.route, two.rounds, two.compiled_now) == (2, "compiled", 3, 1)
    assert two.round_ms is not None
    # Linear interpolation in 12, 14, 30.
    assert (two.round_ms.p10, two.round_ms.median, two.round_ms.p90) == pytest.approx(
        (12.4, 14, 26.8)
    )
    assert two.tokens_per_round == 2.0
    assert two.draft_share == pytest.approx(6.5 / 26)
    assert two.verify_share == pytest.approx(9 / 12)
    assert two.host_share is None
    assert (run.routes.verify, run.routes.compiled, run.routes.eager) == (4, 3, 1)
    assert run.routes.compiled_now == 1


def test_a_full_round_is_verified_whole_and_neither_compiled_nor_called_unclean() -> None:
    cut = slot(1, 1, drafted=2)
    run = mtp_run(
        a_round(0, slot(2, 2), ms=10.0),
        a_round(1, slot(2, 2), ms=12.0, decision=Decision(excluded="fixed")),
        a_round(2, slot(2, 2), ms=90.0, compiled_now=True),
        a_round(3, cut, ms=91.0),
        *(
            a_round(4 + i, slot(2, 2), ms=92.0, decision=Decision(excluded=why))
            for i, why in enumerate(("transition", "compile", "stall", "resume"))
        ),
    )
    (row,) = run.rounds
    assert (row.full_rounds, row.full_cost_ms) == (2, 11.0)


def test_a_full_round_is_priced_in_plain_rounds() -> None:
    plain, mtp = only(small_trace()).rounds
    assert (plain.mode, plain.full_cost_ms, plain.full_cost_plain) == ("plain", 10.0, 1.0)
    assert (mtp.mode, mtp.full_cost_ms, mtp.full_cost_plain) == ("mtp", 15.0, 1.5)


def test_a_time_too_short_for_any_clock_makes_no_rate() -> None:
    least = math.ulp(0.0)
    run = only(
        [
            run_record(),
            request(0, prefill_ms=least),
            *(a_round(i, slot(1, 1), ms=least) for i in range(3)),
            EndRecord(0, tokens=6, stop="end", decode_s=least, first_tokens=2, energy_j=least),
        ]
    )
    assert anomaly_counts(run)["bad duration"] == 3
    assert run.arms[0].tokens_per_s is None
    assert b"null" in msgspec.json.encode(run)
    assert all(word not in str(run) for word in ("inf", "nan"))


def test_tokens_per_round_are_per_sequence() -> None:
    both = [request(0), request(1)]
    run = only([run_record(), *both, a_round(0, slot(2, 2, id=0), slot(2, 0, id=1))])
    (row,) = run.rounds
    assert (row.width, row.tokens_per_round) == (2, 2.0)


def test_warm_up_is_left_out_of_rounds_acceptance_and_arms() -> None:
    run = only(
        [run_record(), request(0, warmup=True), a_round(0, slot(1, 1)), EndRecord(0, 2, "end")]
    )
    assert (run.arms, run.rounds, run.acceptance) == ([], [], [])
    assert run.warmup_rounds == 1


def test_acceptance_by_position_by_hand() -> None:
    tally = OutcomesTally()
    for one in [slot(3, 3), slot(3, 1), slot(2, 0), slot(1, 1)]:
        tally.add(1, one)
    first, second, third = tally.positions()
    assert first.conditional == first.unconditional == proportion(3, 4)
    # Position 2: judged after 3,3 and 3,1; verified in the first three.
    assert (second.conditional, second.unconditional) == (proportion(1, 2), proportion(1, 3))
    assert (third.conditional, third.unconditional) == (proportion(1, 1), proportion(1, 2))


def test_drafts_after_an_accepted_end_are_not_rejections() -> None:
    tally = OutcomesTally()
    tally.add(1, slot(3, 1, ended=True))
    first, second, third = tally.positions()
    assert first.conditional == proportion(1, 1)
    assert second == PositionAcceptance(2, None, None)
    assert third == PositionAcceptance(3, None, None)


def test_a_rejection_replaced_by_an_end_is_a_rejection() -> None:
    tally = OutcomesTally()
    tally.add(1, slot(2, 1, ended=True, committed=2))
    first, second = tally.positions()
    assert (first.conditional, second.conditional) == (proportion(1, 1), proportion(0, 1))
    assert second.unconditional == proportion(0, 1)


def test_a_wilson_interval_by_hand() -> None:
    # Wilson (1927), n = 4, p = 3/4, z = 1.959964: centre (p + z²/2n) / (1 + z²/n), and its half-width.
    z, n, p = 1.959963984540054, 4, 0.75
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    found = proportion(3, 4)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half))


def test_nothing_tried_has_no_rate() -> None:
    assert proportion(0, 0) is None


def test_expected_tokens_multiply_the_conditionals() -> None:
    positions = [
        PositionAcceptance(1, proportion(4, 5), None),
        PositionAcceptance(2, proportion(1, 2), None),
        PositionAcceptance(3, None, None),
    ]
    assert committed_tokens(positions, 2) == pytest.approx(1 + 0.8 + 0.4)
    assert committed_tokens(positions, 3) is None


def test_a_position_that_is_never_reached_adds_no_tokens() -> None:
    positions = [PositionAcceptance(1, proportion(0, 5), None), PositionAcceptance(2, None, None)]
    assert committed_tokens(positions, 2) == 1.0


@given(depth=st.integers(1, 16), acceptance=st.floats(0.01, 1.5))
def test_break_even_inverts_the_geometric_sum(depth: int, acceptance: float) -> None:
    tokens = sum(acceptance**j for j in range(depth + 1))
    assert uniform_acceptance(tokens, depth) == pytest.approx(acceptance, rel=1e-6)


@given(depth=st.integers(1, 1024), tokens=st.floats(0.0, 1e9))
def test_break_even_exists_for_every_cost(depth: int, tokens: float) -> None:
    found = uniform_acceptance(tokens, depth)
    assert found >= 0.0
    assert (found > 1.0) == (tokens > depth + 1) or math.isclose(tokens, depth + 1, rel_tol=1e-6)


def test_break_even_and_its_margin_by_hand() -> None:
    (entry,) = only(small_trace()).break_even
    # cost(1)/cost(0) = 1.5 = 1 + a; 3 of 4 accepted; (1 + .75) / 1.5.
    assert (entry.depth, entry.cost_plain, entry.cost_from) == (1, 1.5, "plain runs")
    assert (entry.break_even, entry.acceptance, entry.margin) == pytest.approx((0.5, 0.75, 0.25))
    assert entry.speed == pytest.approx(1.75 / 1.5)
    assert entry.reason == ""


def test_break_even_at_depth_two_by_hand() -> None:
    run = mtp_run(a_round(0, slot(0, 0), ms=10.0), a_round(1, slot(2, 2), ms=17.5))
    (entry,) = run.break_even
    # 1 + a + a² = 1.75 at a = ½.
    assert entry.break_even == pytest.approx(0.5)
    assert entry.cost_from == "parked rounds"


def test_a_depth_dearer_than_its_tokens_has_a_break_even_above_one() -> None:
    (entry,) = mtp_run(a_round(0, slot(0, 0), ms=10.0), a_round(1, slot(1, 1), ms=25.0)).break_even
    assert entry.break_even == pytest.approx(1.5)
    assert entry.margin == pytest.approx(-0.5)


def test_without_depth_0_rounds_there_is_no_break_even_but_a_reason() -> None:
    (entry,) = mtp_run(a_round(0, slot(1, 1))).break_even
    assert (entry.break_even, entry.margin) == (None, None)
    assert entry.reason == "no depth-0 round was run at width 1"


def test_plain_rounds_of_another_width_price_nothing() -> None:
    run = only(
        [
            run_record(),
            request(0),
            request(1),
            a_round(0, slot(0, 0)),
            a_round(1, slot(1, 1, id=0), slot(1, 1, id=1)),
        ]
    )
    assert run.break_even[0].reason == "no depth-0 round was run at width 2"


def test_matched_runs_are_judged() -> None:
    (verdict,) = only(bench_trace()).verdicts
    assert (verdict.arm, verdict.verdict, verdict.prompts) == ("depth-1", "pays", 12)
    # Twice the plain rate, over 1, 1.001 and 1.002 times its time in turn.
    assert verdict.ratio == pytest.approx(2 / 1.001, rel=1e-5)


def test_the_margin_asked_for_goes_before_the_runs_own() -> None:
    records = bench_trace()
    records[0] = run_record(margin=0.5)
    assert only(records).verdicts[0].margin == 0.5
    assert only(records, 1.5).verdicts[0].verdict == "does not pay"


def test_without_matched_plain_runs_there_is_no_verdict_and_why() -> None:
    run = only(small_trace())
    assert (run.verdicts, run.no_verdict) == ([], "matched plain runs required")


def test_runs_that_only_claim_to_match_are_refused_by_name() -> None:
    records = bench_trace()
    records = [
        msgspec.structs.replace(r, prompt_sha256="other") if getattr(r, "id", None) == 1 else r
        for r in records
    ]
    run = only(records)
    assert run.verdicts == []
    assert "prompt hash differs" in run.no_verdict


@pytest.mark.parametrize("margin", [math.nan, math.inf, -1.0])
def test_a_margin_that_is_no_fraction_is_refused(margin: float) -> None:
    with pytest.raises(TraceError, match="margin"):
        summarise(small_trace(), margin)


def test_runs_of_one_file_are_not_pooled() -> None:
    first, second = summarise([*small_trace(), *bench_trace()])
    assert (len(first.requests), len(second.requests)) == (2, 48)
    assert not first.verdicts
    assert second.verdicts


def test_files_are_summarised_one_by_one(tmp_path: Path) -> None:
    paths = [str(written(tmp_path / name, small_trace())) for name in ("a.jsonl", "b.jsonl")]
    summary = summarise_files(paths)
    assert [file.path for file in summary.files] == paths
    assert [len(file.runs) for file in summary.files] == [1, 1]


def test_a_clean_trace_has_no_anomalies() -> None:
    assert only(small_trace()).anomalies == []
    assert only(bench_trace()).anomalies == []


def test_a_round_over_three_medians_is_a_stall() -> None:
    times = [10.0, 10.0, 30.0, 30.1, 10.0]
    run = mtp_run(*(a_round(i, slot(1, 1), ms=ms) for i, ms in enumerate(times)))
    (stall,) = [a for a in run.anomalies if a.kind == "stall"]
    assert (stall.count, stall.first) == (1, 3)


def test_a_compilation_is_no_stall() -> None:
    slow = a_round(3, slot(1, 1), ms=500.0, compiled_now=True)
    run = mtp_run(*(a_round(i, slot(1, 1)) for i in range(3)), slow)
    assert "stall" not in anomaly_counts(run)


@pytest.mark.parametrize("ms", [-1.0, 0.0, math.nan, math.inf, 1e300])
def test_an_impossible_duration_is_said_and_left_out(ms: float) -> None:
    run = mtp_run(a_round(0, slot(1, 1), ms=ms), a_round(1, slot(1, 1), ms=7.0))
    assert anomaly_counts(run)["bad duration"] == 1
    assert (run.rounds[0].rounds, run.rounds[0].total_ms) == (2, 7.0)


@pytest.mark.parametrize(
    ("indices", "kind", "count"),
    [
        ([0, 1, 1], "repeated round", 1),
        ([0, 1, 0], "repeated round", 1),
        ([0, 5], "missing rounds", 4),
    ],
)
def test_rounds_that_do_not_follow_each_other_are_said(
    indices: list[int], kind: str, count: int
) -> None:
    assert anomaly_counts(mtp_run(*(a_round(i, slot(1, 1)) for i in indices)))[kind] == count


def test_a_request_id_may_be_used_again_after_its_end() -> None:
    once = [request(0), a_round(0, slot(1, 1)), EndRecord(0, 2, "end")]
    run = only([run_record(), *once, *once])
    assert run.anomalies == []
    assert run.arms[0].requests == 2


def test_a_request_without_an_end_is_cut() -> None:
    run = only(small_trace()[:-1])
    assert anomaly_counts(run) == {"cut request": 1}
    assert run.arms[0].stops == {"cut": 1}
    assert run.arms[0].tokens == 5


def test_a_trace_that_lost_its_run_record_is_still_summarised() -> None:
    run = only(small_trace()[1:])
    assert run.run is None
    assert len(run.arms) == 2
    assert "no run record" in anomaly_counts(run)


def test_tokens_without_their_rounds_are_said() -> None:
    run = only([run_record(), request(0), a_round(0, slot(1, 1)), EndRecord(0, 9, "end")])
    assert anomaly_counts(run) == {"missing tokens": 1}


@pytest.mark.parametrize(
    "bad", [slot(1, 2), slot(-1, -1), slot(5000, 1), slot(2, 1, drafted=1), slot(1, 1, committed=9)]
)
def test_counts_that_cannot_be_are_left_out(bad: object) -> None:
    run = mtp_run(a_round(0, bad), a_round(1, slot(1, 1)))  # type: ignore[arg-type]
    assert anomaly_counts(run)["inconsistent counts"] == 1
    assert run.acceptance[0].conditional == proportion(1, 1)


def test_the_summary_does_not_keep_the_rounds() -> None:
    few, many = (
        len(msgspec.json.encode(mtp_run(*(a_round(i, slot(1, i % 2)) for i in range(n)))))
        for n in (2_000, 20_000)
    )
    assert many < 1.5 * few


small_ints = st.integers(-3, 5)
slots = st.builds(
    lambda who, drafted, verified, accepted, committed, ended: slot(
        verified, accepted, id=who, drafted=drafted, committed=committed, ended=ended
    ),
    st.integers(0, 2),
    small_ints,
    small_ints,
    small_ints,
    small_ints,
    st.booleans(),
)
times = st.one_of(st.none(), st.floats())
any_record = st.one_of(
    st.just(run_record()),
    st.builds(
        request,
        st.integers(0, 2),
        st.sampled_from(["mtp", "plain", "?"]),
        arm=st.sampled_from(["", "plain", "a"]),
        pair=st.one_of(st.none(), st.integers(0, 1)),
        place=st.one_of(st.none(), st.integers(-1, 4)),
        warmup=st.booleans(),
        prefill_ms=times,
    ),
    st.builds(
        lambda index, slots, ms, draft: a_round(index, *slots, ms=ms, draft_ms=draft, depth=3),
        small_ints,
        st.lists(slots, max_size=3),
        st.floats(),
        times,
    ),
    st.builds(
        EndRecord,
        st.integers(0, 2),
        st.integers(-5, 10**30),
        st.sampled_from(["", "end", "error"]),
        decode_s=times,
        ttft_ms=times,
        first_tokens=small_ints,
        looped=st.one_of(st.none(), st.booleans()),
    ),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_record, max_size=25))
def test_any_sequence_of_records_has_a_summary(records: list[Record]) -> None:
    for run in summarise(records):
        msgspec.json.encode(run)
        for position in run.acceptance:
            for found in (position.conditional, position.unconditional):
                assert found is None or 0 <= found.low <= found.rate <= found.high <= 1


def test_the_document_shows_the_types_as_they_are() -> None:
    page = (Path(__file__).parent.parent / "docs" / "trace.md").read_text(encoding="utf-8")
    assert page == docs.refreshed(page), "stale: run python -m mtpx.trace.docs docs/trace.md"


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(TraceError, match="needs a line"):
        docs.refreshed("# nothing here")
