"""Looking early: what it may spend, and what it does to the errors."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_bench_verdict import at_ratios, drawn, tolerance

from mtpx.bench.blocks import NOT_RUN, Block
from mtpx.bench.looks import MOST_LOOKS, check_looks, look_ends, look_levels, looks_of
from mtpx.bench.verdict import Verdict, verdicts
from mtpx.errors import BenchError


def judged(blocks: list[Block], looks: int) -> Verdict:
    (verdict,) = verdicts(blocks, resamples=0, looks=looks)
    return verdict


def unrun(blocks: list[Block], done: int) -> list[Block]:
    """The blocks after the first `done` as the trace of a bench that stopped there has them."""
    return [
        b if i < done else msgspec.structs.replace(b, plain=[], mtp=[], void=NOT_RUN)
        for i, b in enumerate(blocks)
    ]


@pytest.mark.parametrize("looks", range(1, MOST_LOOKS + 1))
def test_all_looks_together_spend_one_in_twenty(looks: int) -> None:
    assert sum(1 - level for level in look_levels(looks)) == pytest.approx(0.05)


def test_early_looks_spend_almost_nothing() -> None:
    # O'Brien & Fleming's spending function at a quarter, half, three quarters: 0.00009, 0.0056, 0.0236.
    spent = np.cumsum([1 - level for level in look_levels(4)])
    assert spent == pytest.approx([0.0000888, 0.0055741, 0.0236254, 0.05], rel=0.01)


def test_a_single_look_is_the_usual_interval() -> None:
    assert look_levels(1) == [0.95]


@given(blocks=st.integers(1, 500), looks=st.integers(1, MOST_LOOKS))
def test_looks_are_spread_and_the_last_is_the_end(blocks: int, looks: int) -> None:
    ends = look_ends(blocks, looks)
    assert len(ends) == looks
    assert ends == sorted(ends)
    assert ends[-1] == blocks


@pytest.mark.parametrize("looks", [0, 6, -1, True, "2"])
def test_looks_that_cannot_be_are_refused(looks: int) -> None:
    with pytest.raises(BenchError, match="1 to 5"):
        check_looks(looks)


def test_a_design_without_looks_has_one() -> None:
    assert (looks_of(None), looks_of({}), looks_of({"looks": 3})) == (1, 1, 3)


@pytest.mark.parametrize("looks", [3, 5])
def test_with_looks_each_wrong_verdict_is_still_at_most_one_in_forty(looks: int) -> None:
    rng = np.random.default_rng(7)
    found = Counter(judged(drawn(rng, 1.02, 30), looks).verdict for _ in range(2000))
    assert found["pays"] / 2000 <= 0.025 + tolerance(0.025)
    assert found["does not pay"] / 2000 <= 0.025 + tolerance(0.025)


def test_what_is_clear_is_settled_early() -> None:
    verdict = judged(at_ratios([1.5, 1.52] * 15), 5)
    assert (verdict.verdict, verdict.prompts) == ("pays", 6)
    assert verdict.reason.endswith("at look 1 of 5")


def test_a_bench_that_stopped_at_a_look_keeps_its_verdict() -> None:
    whole = at_ratios([1.5, 1.52] * 15)
    assert judged(unrun(whole, 6), 5) == judged(whole, 5)


def test_a_bench_cut_between_looks_has_no_verdict() -> None:
    made = at_ratios([1.0, 1.05] * 15)
    verdict = judged(unrun(made, 20), 5)
    assert verdict.verdict == "none"
    assert "cut short" in verdict.reason


def test_a_bench_without_looks_that_stopped_has_no_verdict_however_clear() -> None:
    assert judged(unrun(at_ratios([1.5, 1.52] * 15), 6), 1).verdict == "none"


def test_no_look_decides_on_fewer_than_six_prompts() -> None:
    verdict = judged(at_ratios([1.5, 1.52] * 6), 5)
    assert verdict.prompts >= 6


def test_the_interval_has_the_level_of_its_look() -> None:
    verdict = judged(at_ratios([1.0, 1.05] * 15), 2)
    assert verdict.level == pytest.approx(look_levels(2)[1])
    assert {part.level for part in verdict.per_suite} == {verdict.level}
