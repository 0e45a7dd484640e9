"""The conformance kit on the MLX backend, on Metal or the CPU build: small random models with a head."""

from __future__ import annotations

from typing import Any

import pytest
from torch_makers import make_pack

from mtpx.backend import EngineOptions
from mtpx.packs import Pack
from mtpx.testing import CHECKS, Check, Subject
from mtpx_mlx import MlxBackend
from mtpx_mlx.inspect import InspectableEngine

PROMPTS = [[1, 2, 3, 4, 5], [7, 3, 9, 11, 2, 2, 5, 8], [4, *range(16), *range(16)] * 3]

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "qwen3, own vocabulary of drafts": {"family": "qwen3", "draft_vocab": 36, "head_dim": 16},
    "qwen2, hidden first, before the norms": {
        "family": "qwen2",
        "wiring": {
            "order": "hidden-embedding",
            "hidden": "before",
            "recycled": "before",
            "norm_offset": 1,
            "zero_first_embedding": True,
        },
    },
}


def subject(pack: Pack, **changes: Any) -> Subject:
    def load(options: EngineOptions) -> InspectableEngine:
        asked = EngineOptions(max_width=options.max_width, pipeline=options.pipeline, context=512)
        return InspectableEngine.of(MlxBackend().load(pack, asked))

    return Subject(pack.name, load, PROMPTS, tolerance=1e-3, **changes)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {
        name: subject(make_pack(tmp_path_factory.mktemp("pack"), **shape))
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SHAPES)
def test_a_small_model_conforms(subjects: dict[str, Subject], name: str, check: Check) -> None:
    found = check(subjects[name])
    assert not found.skipped
