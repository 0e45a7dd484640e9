"""A natural negative control: MLX's CPU build computes rows one after another, so that a draft saves
nothing there, and the bench has to say so.

`pytest -m slow tests/test_mlx_bench.py`: some 60 runs of 16 tokens at 8 tokens/s, four minutes on a machine that
does nothing else. What is timed is the processor's time, which on that build is all the time there is, and which
stands still while other programs run.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("mlx.core")

import mtpx
from mtpx import packs
from mtpx.bench.design import design, mtp_arm, policy_arm
from mtpx.bench.records import BenchOptions
from mtpx.bench.run import run_bench
from mtpx.bench.suites import prompt_file
from mtpx.bench.verdict import Verdict

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(3600)]

KEPT = 0.97
"""The share of plain decoding's speed that the adaptive policy may not fall short of where drafting
costs: what it spends on finding out."""

# Raw and short: reading a prompt takes as long a token as decoding does there.
PROMPTS = Path(__file__).parent / "short_prompts.jsonl"


@pytest.fixture(scope="module")
def found() -> dict[str, Verdict]:
    """Depth 1 and the adaptive policy against plain runs, as `mtpx bench` does it."""
    prompts = prompt_file(PROMPTS)
    plan = design(prompts, [mtp_arm(1), policy_arm("adaptive")])
    with mtpx.load(packs.EMBEDDED, backend="mlx", device="cpu") as model:
        options = BenchOptions(max_tokens=16, ignore_eos=True)
        result = run_bench(model, plan, prompts, options, clock=time.process_time_ns)
    assert result.stopped == ""
    for v in result.verdicts:  # for `pytest -s`
        print(f"\n{v.arm}: {v.verdict}, {v.ratio} ({v.low} to {v.high})")
    return {verdict.arm: verdict for verdict in result.verdicts}


def test_a_draft_a_round_does_not_pay_on_mlxs_cpu_build(found: dict[str, Verdict]) -> None:
    assert found["depth 1"].verdict == "does not pay", found["depth 1"].reason


def test_the_adaptive_policy_does_not_come_out_as_paying_there(found: dict[str, Verdict]) -> None:
    assert found["adaptive"].verdict in ("does not pay", "inconclusive"), found["adaptive"].reason


def test_the_adaptive_policy_keeps_plain_speed_there(found: dict[str, Verdict]) -> None:
    """Refuted by an interval that lies below, which is what the noise of a machine allows to say; and one so
    wide that it holds what drafting in every round gives says nothing."""
    low, high = found["adaptive"].low, found["adaptive"].high
    always = found["depth 1"].ratio
    assert low is not None
    assert high is not None
    assert always is not None
    assert high >= KEPT, found["adaptive"].reason
    assert low > always, found["adaptive"].reason
