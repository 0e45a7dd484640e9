"""The embedded model decodes with its head: the kit's checks in full, on the real weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mtpx
from mtpx import packs
from mtpx.api import Model
from mtpx.backend import EngineOptions
from mtpx.bench.suites import suite
from mtpx.testing import Subject
from mtpx.testing.greedy import (
    every_accepted_count_leaves_a_plain_state,
    every_depth_gives_the_plain_text,
)
from mtpx.testing.sampled import sampled_text_has_the_target_distribution
from mtpx_torch import TorchBackend
from mtpx_torch.inspect import InspectableEngine

pytestmark = pytest.mark.model

MORE = [
    "Hello!",
    "2, 4, 6, 8,",
    "def main():",
    "<html><body>",
    "Ça va?",
    "Привет",
    "你好",
    "🙂🙂🙂",
    "   ",
    "\n\n\n",
    "SELECT * FROM",
    "Once upon a time",
    "Q: What is 2+2?\nA:",
    "The quick brown fox",
    "import numpy as np",
    "1. First\n2.",
    "To be, or not to be",
    '{"a": [1, 2,',
    "Dear Sir or Madam,",
    "x^2 + y^2 =",
]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with mtpx.load(packs.EMBEDDED, context=1024) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(model: Model) -> list[list[int]]:
    """50 prompts: both suites through the chat template, and raw text of every kind."""
    asked = [p.content for name in ("chat", "code") for p in suite(name)]
    found = [model.encode(content) for content in asked] + [model.encode(text) for text in MORE]
    assert len(found) >= 50
    return found[:50]


def subject(
    prompts: list[list[int]], precision: str = "float32", tier: str = "auto", **changes: object
) -> Subject:
    pack = packs.resolve(packs.EMBEDDED)

    def load(options: EngineOptions) -> InspectableEngine:
        asked = EngineOptions(
            max_width=options.max_width,
            pipeline=options.pipeline,
            context=1024,
            precision=precision,
            tier=tier,
            compile="off",
        )
        return InspectableEngine.of(TorchBackend().load(pack, asked))

    return Subject("smollm2-135m", load, prompts, **changes)  # type: ignore[arg-type]


def test_text_is_the_plain_text_at_every_depth(prompts: list[list[int]]) -> None:
    some = prompts[::6]
    found = every_depth_gives_the_plain_text(subject(some, depth=4, tokens=8, tolerance=2e-3))
    assert found.compared >= len(some) * 4 * 4
    assert found.ties <= 1


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
def test_text_is_the_plain_text_without_a_tie_where_rows_keep_their_bits(
    prompts: list[list[int]], precision: str
) -> None:
    # Asked for by name: auto leaves the tier where it costs too much, and the text is equal there, too.
    found = every_depth_gives_the_plain_text(
        subject(prompts, precision, "row-invariant", depth=6, tokens=8, tolerance=0.0)
    )
    assert found.ties == 0
    assert found.compared >= 50 * 6 * 4


def test_every_accepted_count_leaves_a_plain_state(prompts: list[list[int]]) -> None:
    found = every_accepted_count_leaves_a_plain_state(
        subject([prompts[0], prompts[45]], depth=4, tolerance=5e-3)
    )
    assert found.compared > 0


def test_sampled_text_has_the_target_distribution(prompts: list[list[int]]) -> None:
    found = sampled_text_has_the_target_distribution(subject([prompts[33]], depth=2, samples=150))
    assert found.compared > 0
