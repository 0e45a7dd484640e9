"""Qwen's hybrid models and heads on MLX: the conformance kit, transformers' logits, and the head
against its wiring written out plainly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from head_reference import outputs, residual
from qwen_makers import EXPERTS, make_qwen, reference_model, text_config
from safetensors.torch import load_file

pytest.importorskip("mlx.core")

import mlx.core as mx

from mtpx import packs
from mtpx.backend import EngineOptions
from mtpx.testing import CHECKS, Check, Subject
from mtpx_mlx import MlxBackend
from mtpx_mlx.inspect import InspectableEngine
from mtpx_mlx.pair_cache import PairCache

PROMPTS = [[1, 2, 3, 4, 5], [7, 3, 9, 11, 2, 2, 5, 8], [4, *range(16), *range(16)] * 3]
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "mixture": EXPERTS,
    # As wide as a large model's: on Metal they have a kernel, which transformers' logits then judge.
    "keys of 128": {
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
    },
}


def load(folder: Path, options: EngineOptions | None = None) -> InspectableEngine:
    asked = options or EngineOptions()
    options = EngineOptions(max_width=asked.max_width, pipeline=asked.pipeline, context=512)
    return InspectableEngine.of(MlxBackend().load(packs.resolve(folder), options))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: make_qwen(tmp_path_factory.mktemp("qwen"), **change) for name, change in KINDS.items()
    }


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_hybrid_with_a_head_conforms(folders: dict[str, Path], check: Check) -> None:
    subject = Subject(
        "tiny Qwen3.5",
        lambda options: load(folders["keys of 128"], options),
        PROMPTS,
        tolerance=1e-3,
    )
    found = check(subject)
    assert not found.skipped


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(folders: dict[str, Path], kind: str) -> None:
    """In one forward, and token by token with state: relative to the largest logit."""
    engine, model = load(folders[kind]), reference_model(folders[kind])
    tokens = [1, *np.random.default_rng(5).integers(3, 48, 40).tolist()]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    whole = np.array(engine.target(mx.array(tokens), engine.target.fresh()).logits)
    state = engine.target.fresh()
    steps = [np.array(engine.target(mx.array([t]), state).logits[0]) for t in tokens]
    for found in (whole, np.stack(steps)):
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_is_wired_as_its_contract_says(folders: dict[str, Path], kind: str) -> None:
    folder = folders[kind]
    engine = load(folder)
    assert engine.head is not None
    contract, config = engine.head.contract, text_config(folder)
    weights = {
        name: tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if name.startswith("mtp.")
    }
    rng = np.random.default_rng(6)
    tokens = rng.integers(3, 48, 9)
    hidden = rng.standard_normal((9, config["hidden_size"])).astype(np.float32)
    embedded = torch.from_numpy(np.array(engine.head.embedding(mx.array(tokens))))
    x = residual(contract, weights, config, embedded, torch.from_numpy(hidden))
    normed, recycled = outputs(contract, weights, config, x)
    cache = PairCache()
    pieces = []
    for lo, hi in ((0, 4), (4, 5), (5, 9)):
        cache.place(lo, lo + 1)
        pieces.append(
            engine.head.forward(mx.array(tokens[lo:hi]), mx.array(hidden[lo:hi]), lo, cache)
        )
    found, fed = engine.head.outputs(mx.concatenate(pieces))
    expected = engine.head.output(mx.array(normed.float().numpy()))
    np.testing.assert_allclose(np.array(fed), recycled.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-4, atol=1e-4)
