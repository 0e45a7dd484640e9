"""What voids a verdict, what is told beside it, and the null control."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from test_bench_verdict import at_ratios, block, drawn, run

from mtpx.bench.verdict import judge, verdicts

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
