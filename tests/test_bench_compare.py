"""Arms of a bench against each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.bench.blocks import Block, BlockRun
from mtpx.bench.compare import comparisons
from mtpx.bench.design import Arm, mtp_arm, policy_arm

AUTO, ONE, TWO = policy_arm("auto"), mtp_arm(1), mtp_arm(2)


def block(arm: Arm, prompt: str, ratio: float, suite: str = "chat", plain: float = 10.0) -> Block:
    """A block in which `arm` is `ratio` times as fast as plain decode."""

    def run(place: int, rate: float) -> BlockRun:
        return BlockRun(
            place=place,
            order=place,
            tokens=64,
            rated_tokens=60,
            seconds=60 / rate,
            rate=rate,
            ttft_ms=1.0,
            sha256="",
            looped=False,
            differs_at=None,
            differs_gap=None,
        )

    return Block(
        pair=0,
        arm=arm.name,
        suite=suite,
        prompt=prompt,
        plain=[run(0, plain), run(3, plain)],
        mtp=[run(1, plain * ratio), run(2, plain * ratio)],
    )


def test_the_best_fixed_depth_is_found_part_by_part() -> None:
    arms = [ONE, TWO, AUTO]
    blocks = [
        block(arm, f"{suite}{i}", ratio, suite)
        for suite, ratios in (("chat", (1.1, 1.3, 1.25)), ("code", (1.2, 0.9, 1.2)))
        for arm, ratio in zip(arms, ratios, strict=True)
        for i in range(3)
    ]
    found = {c.suite: c for c in comparisons(arms, blocks)}
    assert {part: c.other for part, c in found.items()} == {
        "chat": "depth 2",
        "code": "depth 1",
        "": "depth 1",
    }
    assert found["chat"].ratio == pytest.approx(1.25 / 1.3)
    assert found[""].ratio == pytest.approx(math.sqrt(1.25 * 1.2 / (1.1 * 1.2)))


def test_plain_decode_is_among_the_fixed_depths() -> None:
    arms = [ONE, AUTO]
    blocks = [block(ONE, p, 0.8) for p in "ab"] + [block(AUTO, p, 0.99) for p in "ab"]
    (found,) = comparisons(arms, blocks)
    assert (found.other, found.ratio) == ("plain", pytest.approx(0.99))


def test_the_interval_is_that_of_differences_and_not_of_their_parts() -> None:
    """Prompts differ a lot; the two arms differ by the same on each of them."""
    ratios = {"a": 0.8, "b": 1.5, "c": 2.5}
    blocks = [block(ONE, p, r) for p, r in ratios.items()]
    blocks += [block(AUTO, p, 1.1 * r) for p, r in ratios.items()]
    (found,) = comparisons([ONE, AUTO], blocks)
    assert (found.low, found.high) == (pytest.approx(1.1), pytest.approx(1.1))


def test_two_policies_are_compared_without_any_fixed_depth() -> None:
    other = policy_arm("auto-nocuts")
    blocks = [block(AUTO, p, 1.2) for p in "ab"] + [block(other, p, 1.0) for p in "abc"]
    (found,) = comparisons([AUTO, other], blocks)
    assert (found.arm, found.other, found.prompts) == ("auto", "auto-nocuts", 2)
    assert found.ratio == pytest.approx(1.2)


def test_one_arm_alone_is_compared_with_nothing() -> None:
    assert comparisons([AUTO], [block(AUTO, "a", 1.2)]) == []
    assert comparisons([AUTO, ONE], [block(AUTO, "a", 1.2)])[0].other == "plain"


@given(
    st.lists(st.tuples(st.floats(0.2, 5.0), st.floats(0.2, 5.0)), min_size=1, max_size=6),
    st.floats(1.0, 100.0),
)
def test_how_fast_the_plain_runs_were_is_immaterial(
    ratios: list[tuple[float, float]], plain: float
) -> None:
    def found(rate: float) -> float:
        blocks = [block(ONE, str(i), one, plain=rate) for i, (one, _) in enumerate(ratios)]
        blocks += [block(AUTO, str(i), auto, plain=10.0) for i, (_, auto) in enumerate(ratios)]
        return comparisons([ONE, AUTO], blocks)[0].ratio

    assert found(plain) == pytest.approx(found(10.0))
