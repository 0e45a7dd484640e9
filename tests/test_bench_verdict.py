"""The verdict: its statistics and its rule."""

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
from mtpx.bench.blocks import Block, BlockRun
from mtpx.bench.verdict import MIN_PROMPTS, NO_PLAIN, judge
from mtpx.errors import BenchError


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
