"""A natural negative control: MLX's CPU build computes rows one after another, so that a draft saves
nothing there, and the bench has to say so.

`pytest -m slow tests/test_mlx_bench.py`: some 70 runs of 32 tokens at 8 tokens/s, so six minutes or more on a
machine that does nothing else.
"""

from __future__ import annotations

import pytest

pytest.importorskip("mlx.core")

import mtpx
from mtpx import packs
from mtpx.bench.design import design, mtp_arm, policy_arm
from mtpx.bench.records import BenchOptions
from mtpx.bench.run import run_bench
from mtpx.bench.suites import BenchPrompt
from mtpx.bench.verdict import Verdict

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(3600)]

KEPT = 0.97
"""The share of plain decoding's speed that the adaptive policy may not fall short of where drafting
costs: what it spends on finding out."""

# Raw and short: reading a prompt takes as long a token as decoding does there.
TEXTS = (
    "The three largest rivers of Africa are",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "To make bread you need",
    "The capital of France is",
    "Dear Sir or Madam, I am writing to",
)


@pytest.fixture(scope="module")
def found() -> dict[str, Verdict]:
    """Depth 1 and the adaptive policy against plain runs, as `mtpx bench` does it."""
    prompts = [BenchPrompt(f"p{i}", "prose", prompt=text) for i, text in enumerate(TEXTS)]
    plan = design(prompts, [mtp_arm(1), policy_arm("adaptive")])
    with mtpx.load(packs.EMBEDDED, backend="mlx", device="cpu") as model:
        result = run_bench(model, plan, prompts, BenchOptions(max_tokens=32, ignore_eos=True))
    assert result.stopped == ""
    return {verdict.arm: verdict for verdict in result.verdicts}


def test_a_draft_a_round_does_not_pay_on_mlxs_cpu_build(found: dict[str, Verdict]) -> None:
    assert found["depth 1"].verdict == "does not pay", found["depth 1"].reason


def test_the_adaptive_policy_does_not_come_out_as_paying_there(found: dict[str, Verdict]) -> None:
    assert found["adaptive"].verdict in ("does not pay", "inconclusive"), found["adaptive"].reason


def test_the_adaptive_policy_keeps_plain_speed_there(found: dict[str, Verdict]) -> None:
    """Refuted only by an interval that lies below, which is what the noise of a machine allows to say."""
    assert found["adaptive"].high is not None
    assert found["adaptive"].high >= KEPT, found["adaptive"].reason
