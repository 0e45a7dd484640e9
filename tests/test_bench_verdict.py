"""The verdict: its statistics, its rule, and the pairing it rests on."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpx.bench import intervals
from mtpx.bench.blocks import MATCHED, NOT_RUN, Block, BlockRun, blocks
from mtpx.bench.verdict import MIN_PROMPTS, NO_PLAIN, judge, verdicts
from mtpx.errors import BenchError
from mtpx.sampling import Sampling
from mtpx.trace.schema import SCHEMA, EndRecord, Record, RequestRecord, RunRecord


def run(place: int, rate: float, *, order: int = 0, **changes: Any) -> BlockRun:
    fields: dict[str, Any] = {
        "place": place,
        "order": order + place,
        "tokens": 101,
        "rated_tokens": 100,
        "seconds": 100 / rate,
        "rate": rate,
        "ttft_ms": 5.0,
        "sha256": "same",
        "looped": False,
        "differs_at": None,
        "differs_gap": None,
    }
    return BlockRun(**{**fields, **changes})


def block(pair: int, plain: tuple[float, float], mtp: tuple[float, float], **changes: Any) -> Block:
    """An ABBA block (BAAB for an odd pair) with these rates."""
    ends, middle = (0, 3), (1, 2)
    a, b = (ends, middle) if pair % 2 == 0 else (middle, ends)
    fields: dict[str, Any] = {
        "pair": pair,
        "arm": "depth 1",
        "suite": "chat",
        "prompt": f"p{pair}",
        "plain": [run(place, rate, order=4 * pair) for place, rate in zip(a, plain, strict=True)],
        "mtp": [run(place, rate, order=4 * pair) for place, rate in zip(b, mtp, strict=True)],
    }
    return Block(**{**fields, **changes})


def at_ratios(ratios: Sequence[float], **changes: Any) -> list[Block]:
    """One block a prompt, each with exactly this ratio."""
    return [block(i, (40.0, 40.0), (40.0 * r, 40.0 * r), **changes) for i, r in enumerate(ratios)]


def drawn(rng: np.random.Generator, ratio: float, prompts: int, noise: float = 0.02) -> list[Block]:
    """Blocks of a machine with this true ratio: prompts differ, and so does every run."""
    made = []
    for i in range(prompts):
        speed = 40.0 * math.exp(0.1 * rng.standard_normal())
        own = ratio * math.exp(0.05 * rng.standard_normal())
        e = np.exp(noise * rng.standard_normal(4))
        made.append(
            block(i, (speed * e[0], speed * e[1]), (speed * own * e[2], speed * own * e[3]))
        )
    return made


SIMULATIONS = 2000


def simulated(ratio: float, prompts: int, margin: float = 0.02) -> list[Any]:
    rng = np.random.default_rng(20_240)
    return [judge(drawn(rng, ratio, prompts), margin, resamples=0) for _ in range(SIMULATIONS)]


def tolerance(p: float) -> float:
    """Three standard errors of a frequency near p."""
    return 3 * math.sqrt(p * (1 - p) / SIMULATIONS)


# -- what the rule promises --------------------------------------------------------------------------


def test_the_interval_covers_the_true_ratio_as_often_as_it_says_at_twelve_prompts() -> None:
    found = simulated(1.15, 12)
    coverage = sum(v.low <= 1.15 <= v.high for v in found) / SIMULATIONS
    assert abs(coverage - 0.95) <= tolerance(0.95)


def test_at_a_ratio_of_exactly_the_bar_each_wrong_verdict_is_at_most_one_in_forty() -> None:
    for prompts in (MIN_PROMPTS, 12):
        found = Counter(v.verdict for v in simulated(1.02, prompts))
        assert found["pays"] / SIMULATIONS <= 0.025 + tolerance(0.025)
        assert found["does not pay"] / SIMULATIONS <= 0.025 + tolerance(0.025)


def test_a_clear_gain_pays() -> None:
    assert judge(drawn(np.random.default_rng(0), 1.3, 12)).verdict == "pays"


def test_a_clear_loss_does_not_pay() -> None:
    assert judge(drawn(np.random.default_rng(0), 0.8, 12)).verdict == "does not pay"


def test_a_gain_smaller_than_the_margin_does_not_pay() -> None:
    assert judge(at_ratios([1.010, 1.012] * 6)).verdict == "does not pay"


def test_the_margin_is_what_is_asked_for() -> None:
    found = at_ratios([1.09, 1.11] * 6)
    assert [judge(found, margin).verdict for margin in (0.02, 0.1, 0.2)] == [
        "pays",
        "inconclusive",
        "does not pay",
    ]


def test_five_prompts_give_no_verdict_however_clear() -> None:
    verdict = judge(at_ratios([1.50, 1.51, 1.52, 1.53, 1.54]))
    assert (verdict.verdict, verdict.prompts) == ("none", 5)
    assert verdict.low is not None
    assert verdict.low > 1.02


def test_many_blocks_on_five_prompts_are_still_five_prompts() -> None:
    repeated = [
        msgspec.structs.replace(b, prompt=f"p{b.pair % 5}") for b in at_ratios([1.5, 1.52] * 10)
    ]
    assert (judge(repeated).verdict, judge(repeated).blocks) == ("none", 20)


def test_six_prompts_can_give_one() -> None:
    assert judge(at_ratios([1.50, 1.51, 1.52, 1.53, 1.54, 1.55])).verdict == "pays"


def test_no_blocks_mean_that_plain_runs_are_required() -> None:
    assert (judge([]).verdict, judge([]).reason) == ("none", NO_PLAIN)


def test_the_interval_is_the_one_computed_by_hand() -> None:
    # Log ratios 0.1, 0.2, ..., 0.6: mean 0.35, s = √0.035, s/√6 = 0.0763763, t(5; 0.975) = 2.570582
    # (printed tables): 0.35 ± 0.196331.
    verdict = judge(at_ratios([math.exp(k / 10) for k in range(1, 7)]))
    assert verdict.ratio == pytest.approx(math.exp(0.35))
    assert verdict.low == pytest.approx(math.exp(0.153669), rel=1e-6)
    assert verdict.high == pytest.approx(math.exp(0.546331), rel=1e-6)


def test_a_blocks_log_ratio_averages_two_runs_of_each_arm() -> None:
    found = block(0, (10.0, 40.0), (20.0, 45.0)).log_ratio
    assert found == pytest.approx(0.5 * math.log(20 * 45) - 0.5 * math.log(10 * 40))


def test_a_steady_slowing_down_cancels_within_a_block() -> None:
    rates = [40.0 * math.exp(-0.03 * place) for place in range(4)]
    for pair, (a, b) in enumerate([((0, 3), (1, 2)), ((1, 2), (0, 3))]):
        slowing = block(pair, (rates[a[0]], rates[a[1]]), (rates[b[0]], rates[b[1]]))
        assert slowing.log_ratio == pytest.approx(0.0, abs=1e-12)


def test_prompts_weigh_the_same_however_many_blocks_they_have() -> None:
    ratios = [1.1, 1.1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    names = ["a", "a", "a", "b", "c", "d", "e", "f"]
    found = [
        msgspec.structs.replace(b, prompt=name)
        for b, name in zip(at_ratios(ratios), names, strict=True)
    ]
    once = math.exp(np.mean(np.log([1.1, 1.2, 1.3, 1.4, 1.5, 1.6])))
    assert judge(found).ratio == pytest.approx(once)


def test_the_pooled_ratio_is_tokens_over_time_of_either_arm() -> None:
    # Plain: 200 tokens in 10 s, then 200 in 2 s; MTP: 200 in 5 s, then 200 in 2 s.
    pair = [block(0, (20.0, 20.0), (40.0, 40.0)), block(1, (100.0, 100.0), (100.0, 100.0))]
    assert judge(pair).pooled_ratio == pytest.approx((400 / 7) / (400 / 12))


ratio_lists = st.lists(
    st.tuples(*[st.floats(5.0, 200.0) for _ in range(4)]), min_size=1, max_size=14
)


@given(ratio_lists, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_the_order_of_blocks_changes_nothing(
    rates: list[tuple[float, float, float, float]], rng: random.Random
) -> None:
    made = [
        block(i, (a, b), (c, d), suite="chat" if i % 3 else "code", prompt=f"p{i % 9}")
        for i, (a, b, c, d) in enumerate(rates)
    ]
    shuffled = rng.sample(made, len(made))
    assert judge(shuffled, resamples=99) == judge(made, resamples=99)


@given(ratio_lists, st.integers(-8, 8))
@settings(max_examples=50, deadline=None)
def test_a_machine_that_is_faster_at_everything_gets_the_same_verdict(
    rates: list[tuple[float, float, float, float]], power: int
) -> None:
    # A power of two scales without rounding, so that the verdicts can be asked to be the very same.
    scaled = [tuple(rate * 2.0**power for rate in four) for four in rates]
    one, other = (
        judge([block(i, (a, b), (c, d)) for i, (a, b, c, d) in enumerate(fours)], resamples=0)
        for fours in (rates, scaled)
    )
    for name in ("verdict", "reason", "ratio", "low", "high", "pooled_ratio", "more_prompts"):
        assert getattr(other, name) == getattr(one, name)


@given(ratio_lists)
@settings(max_examples=50, deadline=None)
def test_swapping_the_arms_inverts_the_ratio(
    rates: list[tuple[float, float, float, float]],
) -> None:
    one = judge([block(i, (a, b), (c, d)) for i, (a, b, c, d) in enumerate(rates)], resamples=0)
    other = judge([block(i, (c, d), (a, b)) for i, (a, b, c, d) in enumerate(rates)], resamples=0)
    assert one.ratio is not None
    assert other.ratio == pytest.approx(1 / one.ratio, rel=1e-9)


def test_the_bootstrap_stands_beside_the_t_interval() -> None:
    verdict = judge(drawn(np.random.default_rng(1), 1.2, 40))
    assert verdict.bca_low == pytest.approx(verdict.low, rel=0.01)
    assert verdict.bca_high == pytest.approx(verdict.high, rel=0.01)


def test_prompts_without_any_spread_give_an_interval_of_no_width() -> None:
    verdict = judge(at_ratios([1.25] * 6))
    assert verdict.low == pytest.approx(1.25)
    assert verdict.bca_low is None


@pytest.mark.parametrize("margin", [math.nan, math.inf, -1.0])
def test_a_margin_that_is_no_margin_is_refused(margin: float) -> None:
    with pytest.raises(BenchError, match="the margin must be a number above -1"):
        judge(at_ratios([1.1] * 6), margin)


def test_blocks_of_two_arms_are_not_judged_as_one() -> None:
    mixed = [*at_ratios([1.1]), *at_ratios([1.1], arm="depth 3")]
    with pytest.raises(BenchError, match="a verdict is about one arm"):
        judge(mixed)


# -- how many more ------------------------------------------------------------------------------------


def test_the_prompts_said_to_settle_it_are_enough_and_no_more_than_that() -> None:
    values = [0.00, 0.10] * 4
    needed = intervals.values_needed(values, at=0.02, level=0.95)
    assert needed is not None
    mean, error = intervals.spread(values)
    s = error * math.sqrt(len(values))

    def half(n: int) -> float:
        # The half width at n values with the same spread.
        from scipy.stats import t

        return float(t.ppf(0.975, n - 1)) * s / math.sqrt(n)

    assert half(needed) < mean - 0.02 <= half(needed - 1)


def test_an_inconclusive_verdict_says_about_how_many_more() -> None:
    verdict = judge(at_ratios([1.0, 1.1] * 4))
    assert verdict.verdict == "inconclusive"
    assert verdict.more_prompts is not None
    assert f"about {verdict.more_prompts} more prompts" in verdict.reason


def test_a_ratio_right_at_the_bar_is_not_promised_to_be_settled() -> None:
    verdict = judge(at_ratios([1.02 * 1.01, 1.02 / 1.01] * 4))
    assert (verdict.verdict, verdict.more_prompts) == ("inconclusive", None)


# -- suites --------------------------------------------------------------------------------------------


def test_mtp_can_pay_for_code_and_not_for_chat() -> None:
    made = [
        *at_ratios([1.30, 1.32] * 4, suite="code"),
        *at_ratios([0.90, 0.92] * 4, suite="chat"),
    ]
    assert {p.name: p.verdict for p in judge(made).per_suite} == {
        "chat": "does not pay",
        "code": "pays",
    }


def test_holm_holds_the_surest_hypothesis_to_the_smallest_level() -> None:
    assert intervals.holm_levels([0.03, 0.001, 0.02], 0.05) == pytest.approx(
        [0.05, 0.05 / 3, 0.05 / 2]
    )


def test_holm_holds_everything_after_the_first_failure_to_that_level() -> None:
    # 0.001 passes 0.05/4; 0.02 fails 0.05/3: it and all after it stay at 0.05/3.
    assert intervals.holm_levels([0.02, 0.001, 0.021, 0.9], 0.05) == pytest.approx(
        [0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3]
    )


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_is_never_stricter_than_bonferroni_nor_laxer_than_no_correction(
    p_values: list[float],
) -> None:
    levels = intervals.holm_levels(p_values, 0.05)
    assert all(0.05 / len(p_values) - 1e-12 <= level <= 0.05 for level in levels)


@given(
    st.lists(
        st.lists(st.floats(0.8, 1.3), min_size=6, max_size=8, unique=True), min_size=2, max_size=4
    )
)
@settings(max_examples=50, deadline=None)
def test_a_suites_verdict_agrees_with_holms_test(suites: list[list[float]]) -> None:
    made = [b for i, ratios in enumerate(suites) for b in at_ratios(ratios, suite=f"s{i}")]
    parts = judge(made, resamples=0).per_suite
    p_values = [intervals.t_p_value([math.log(r) for r in rs], math.log(1.02)) for rs in suites]
    # Holm by its adjusted p-values, another way of writing the same procedure.
    adjusted, highest = {}, 0.0
    for j, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, (len(p_values) - j) * p_values[i])
        adjusted[f"s{i}"] = highest
    for part in parts:
        if abs(adjusted[part.name] - 0.05) > 1e-9:
            assert (part.verdict != "inconclusive") == (adjusted[part.name] < 0.05)


def test_a_suite_of_five_prompts_gets_no_verdict_and_costs_the_others_nothing() -> None:
    made = [
        *at_ratios([1.30, 1.35] * 4, suite="code"),
        *at_ratios([1.30, 1.32, 1.34, 1.36, 1.38], suite="chat"),
    ]
    parts = {p.name: p for p in judge(made).per_suite}
    assert parts["chat"].verdict == "none"
    assert parts["code"].level == pytest.approx(0.95)


# -- what voids, what is told beside it ------------------------------------------------------------


def test_one_cut_run_voids_the_verdict_and_leaves_the_interval() -> None:
    made = at_ratios([1.30, 1.32] * 6)
    made[3] = msgspec.structs.replace(made[3], void="a run was cut by the guard")
    verdict = judge(made)
    assert (verdict.verdict, verdict.void_blocks, verdict.prompts) == ("none", 1, 11)
    assert verdict.low is not None
    assert verdict.reason.startswith("a run was cut by the guard")


def test_a_run_too_short_for_a_rate_is_left_out_and_counted() -> None:
    made = at_ratios([1.30, 1.32] * 6)
    short = [msgspec.structs.replace(r, rate=None, seconds=None) for r in made[0].plain]
    made[0] = msgspec.structs.replace(made[0], plain=short)
    verdict = judge(made)
    assert (verdict.verdict, verdict.short_blocks, verdict.prompts) == ("pays", 1, 11)


def test_looping_texts_are_counted_and_the_verdict_given_without_them() -> None:
    made = at_ratios([1.0, 1.01] * 4 + [2.0, 2.0])
    made[8:] = [
        msgspec.structs.replace(b, mtp=[msgspec.structs.replace(r, looped=True) for r in b.mtp])
        for b in made[8:]
    ]
    verdict = judge(made)
    assert verdict.looped_prompts == 2
    assert verdict.without_loops is not None
    assert (verdict.without_loops.prompts, verdict.without_loops.verdict) == (8, "does not pay")


def test_without_loops_there_is_nothing_to_give_twice() -> None:
    assert judge(at_ratios([1.1] * 6)).without_loops is None


def test_texts_at_temperature_zero_are_compared_prompt_by_prompt() -> None:
    made = at_ratios([1.30, 1.32] * 3, greedy=True)
    other = [
        msgspec.structs.replace(r, sha256="other", differs_at=7, differs_gap=0.01)
        for r in made[2].mtp
    ]
    made[2] = msgspec.structs.replace(made[2], mtp=other)
    verdict = judge(made)
    assert (verdict.texts_equal, verdict.texts_compared) == (5, 6)
    assert [(d.prompt, d.position, d.gap) for d in verdict.differences] == [("p2", 7, 0.01)]


def test_texts_above_temperature_zero_are_not_compared() -> None:
    assert judge(at_ratios([1.3] * 6)).texts_equal is None


def test_a_machine_that_slows_down_is_flagged_with_how_much() -> None:
    rates = np.linspace(40.0, 36.0, 12)
    noise = np.exp(0.002 * np.random.default_rng(0).standard_normal(12))
    made = [
        block(i, (r * e, r * e), (r, r)) for i, (r, e) in enumerate(zip(rates, noise, strict=True))
    ]
    drift = judge(made).drift
    assert drift is not None
    assert drift.flagged
    assert drift.change == pytest.approx(-0.1, abs=0.01)


def test_a_steady_machine_is_not_flagged() -> None:
    drift = judge(drawn(np.random.default_rng(3), 1.2, 12)).drift
    assert drift is not None
    assert not drift.flagged


def test_a_slow_first_run_of_every_block_is_flagged_and_changes_no_ratio() -> None:
    made = []
    for i in range(12):
        jitter = 1.0 + 0.001 * (i % 3)
        pair = block(i, (40.0, 40.0), (40.0, 40.0))
        first = pair.runs[0]
        slow = run(first.place, 36.0 * jitter, order=4 * i)
        swap = lambda runs: [slow if r.place == 0 else r for r in runs]  # noqa: E731, B023
        made.append(msgspec.structs.replace(pair, plain=swap(pair.plain), mtp=swap(pair.mtp)))
    verdict = judge(made)
    assert verdict.first_position is not None
    assert verdict.first_position.flagged
    assert verdict.first_position.change == pytest.approx(-0.1, abs=0.005)
    assert verdict.ratio == pytest.approx(1.0, abs=0.001)


# -- the null control ----------------------------------------------------------------------------------


def test_a_quiet_null_control_holds_one_and_is_narrow() -> None:
    control = judge(at_ratios([0.995, 1.005] * 4, null=True)).null_control
    assert control is not None
    assert control.quiet


def test_a_wide_null_control_is_too_noisy() -> None:
    verdict = judge(at_ratios([0.9, 1.1] * 4, null=True))
    assert verdict.null_control is not None
    assert not verdict.null_control.quiet
    assert "too noisy" in verdict.reason


def test_a_null_control_that_misses_one_is_uneven() -> None:
    verdict = judge(at_ratios([1.05, 1.06] * 4, null=True))
    assert verdict.null_control is not None
    assert not verdict.null_control.contains_one
    assert "too uneven" in verdict.reason


def test_a_null_control_never_pays() -> None:
    assert judge(at_ratios([1.5, 1.6] * 4, null=True)).verdict == "none"


def test_a_noisy_null_control_takes_the_other_verdicts_away() -> None:
    made = [*at_ratios([1.5, 1.6] * 4), *at_ratios([0.9, 1.1] * 4, arm="null", null=True)]
    assert [v.verdict for v in verdicts(made)] == ["none", "none"]


def test_a_quiet_null_control_leaves_them() -> None:
    made = [*at_ratios([1.5, 1.6] * 4), *at_ratios([0.99, 1.01] * 4, arm="null", null=True)]
    assert [v.verdict for v in verdicts(made)] == ["pays", "none"]


# -- pairing --------------------------------------------------------------------------------------------


def a_run(**changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "started": "2026-01-01T00:00:00+00:00",
        "versions": {},
        "pack": "p",
        "weights_digest": "w",
        "head_digest": "h",
        "backend": "b",
        "device": "d",
        "dtype": "float32",
        "quantisation": "none",
        "tier": "standard",
        "policy": "fixed",
        "policy_parameters": {},
    }
    return RunRecord(**{**fields, **changes})


def a_request(place: int, /, **changes: Any) -> RequestRecord:
    plain = place in (0, 3)
    fields: dict[str, Any] = {
        "id": place,
        "mode": "plain" if plain else "mtp",
        "prompt_tokens": 5,
        "prompt_sha256": "hash",
        "max_tokens": 64,
        "sampling": Sampling(),
        "seed": 0,
        "arm": "plain" if plain else "depth 1",
        "pair": 0,
        "suite": "chat",
        "prompt": "p0",
        "place": place,
    }
    return RequestRecord(**{**fields, **changes})


def an_end(request: int, /, **changes: Any) -> EndRecord:
    fields: dict[str, Any] = {"tokens": 65, "stop": "length", "decode_s": 2.0, "first_tokens": 1}
    return EndRecord(request=request, **{**fields, **changes})


def a_trace(**changes: Any) -> list[Record]:
    """One ABBA block; `changes` are made to the request at place 2."""
    records: list[Record] = [a_run()]
    for place in range(4):
        records.append(a_request(place, **(changes if place == 2 else {})))
        records.append(an_end(place, decode_s=2.0 if place in (0, 3) else 1.6))
    return records


def test_four_matched_runs_make_a_block() -> None:
    (made,) = blocks(a_trace())
    assert (made.arm, made.key, made.void) == ("depth 1", ("chat", "p0"), "")
    assert [r.place for r in made.plain] == [0, 3]
    assert [r.place for r in made.mtp] == [1, 2]
    assert made.log_ratio == pytest.approx(math.log(1.25))


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("prompt_sha256", "other", "prompt hash"),
        ("prompt_tokens", 6, "prompt tokens"),
        ("sampling", Sampling(temperature=0.5), "sampling"),
        ("seed", 1, "seed"),
        ("max_tokens", 65, "token budget"),
        ("suite", "code", "suite"),
        ("prompt", "p1", "prompt"),
        ("ignore_eos", True, "ignore-eos"),
        ("reused_tokens", 3, "reused tokens"),
    ],
)
def test_runs_that_are_not_the_same_request_are_refused_by_field(
    field: str, value: object, name: str
) -> None:
    with pytest.raises(BenchError, match=f"pair 0 cannot be compared: their {name} differs"):
        blocks(a_trace(**{field: value}))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("pack", "pack"),
        ("weights_digest", "weights digest"),
        ("head_digest", "head digest"),
        ("backend", "backend"),
        ("device", "device"),
        ("dtype", "dtype"),
        ("quantisation", "quantisation"),
    ],
)
def test_runs_of_different_weights_or_machines_are_refused_by_field(field: str, name: str) -> None:
    records = a_trace()
    records.insert(5, a_run(**{field: "other"}))
    with pytest.raises(BenchError, match=f"their {name} differs"):
        blocks(records)


def test_runs_of_two_processes_are_no_pair() -> None:
    records = a_trace()
    records.insert(5, a_run())
    with pytest.raises(BenchError, match="their process differs"):
        blocks(records)


def test_every_field_that_must_match_has_its_test() -> None:
    tested = {
        mark.args[1][i][-1]
        for test in (
            test_runs_that_are_not_the_same_request_are_refused_by_field,
            test_runs_of_different_weights_or_machines_are_refused_by_field,
        )
        for mark in test.pytestmark  # type: ignore[attr-defined]
        for i in range(len(mark.args[1]))
    }
    assert tested | {"process"} == set(MATCHED)


def test_a_doubled_place_is_refused() -> None:
    with pytest.raises(BenchError, match=r"at places \[0, 1, 1, 3\]"):
        blocks(a_trace(place=1))


def test_two_arms_in_one_pair_are_refused() -> None:
    with pytest.raises(BenchError, match="mixes the arms depth 1, depth 3"):
        blocks(a_trace(arm="depth 3"))


def test_warm_up_runs_are_in_no_block() -> None:
    records = [*a_trace(), a_request(0, id=9, warmup=True), an_end(9)]
    assert len(blocks(records)) == 1


@pytest.mark.parametrize(
    ("stop", "reason"),
    [("guard", "cut by the guard"), ("error", "ended in an error"), ("interrupt", "interrupted")],
)
def test_a_run_cut_short_voids_its_block(stop: str, reason: str) -> None:
    records = a_trace()
    records[-1] = an_end(3, stop=stop)
    assert reason in blocks(records)[0].void


def test_a_run_without_an_end_record_voids_its_block() -> None:
    assert "no end record" in blocks(a_trace()[:-1])[0].void


def test_a_block_of_three_runs_is_void() -> None:
    assert blocks(a_trace()[:-2])[0].void == NOT_RUN


def test_a_planned_block_that_was_never_run_is_there_and_void() -> None:
    records = a_trace()
    plan = [
        {"pair": i, "arm": "depth 1", "suite": "chat", "prompt": f"p{i}", "order": "ABBA"}
        for i in range(2)
    ]
    records[0] = a_run(design={"blocks": plan})
    assert [b.void for b in blocks(records)] == ["", NOT_RUN]


def test_a_damaged_design_is_refused_in_a_sentence() -> None:
    with pytest.raises(BenchError, match="design in the trace's run record cannot be read"):
        blocks([a_run(design={"blocks": [1]})])


def test_a_trace_without_pairs_has_no_blocks() -> None:
    assert blocks([a_run(), a_request(1, pair=None), an_end(1)]) == []


def test_a_plain_arm_under_another_name_is_a_null_control() -> None:
    records = a_trace()
    for i in (3, 5):
        records[i] = msgspec.structs.replace(records[i], mode="plain", arm="null")
    assert blocks(records)[0].null
