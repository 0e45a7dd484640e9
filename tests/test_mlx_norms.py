"""Every norm of trunk and head is shifted exactly once, whoever wrote the folder.

Qwen's files hold w and mean 1 + w. mlx-lm's converter stores 1 + w for the trunk, which it tells by the
layout of the convolutions, and leaves the head out; folders that kept the head hold its norms as w, as
1 + w, or some of each. Shifted twice or not at all, text or acceptance is spoilt and nothing says so.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx.core")

import mlx.core as mx
from mlx.utils import tree_flatten
from qwen_makers import EXPERTS, make_qwen

from mtpx import packs
from mtpx.backend import EngineOptions
from mtpx_mlx import MlxBackend
from mtpx_mlx.engine import MlxEngine
from mtpx_mlx.models import model_class
from mtpx_mlx.pair_cache import PairCache

TOKENS = [1, 7, 9, 30, 4, 4, 17, 40]

Weights = dict[str, Any]


def load(folder: Path) -> MlxEngine:
    return MlxBackend().load(packs.resolve(folder), EngineOptions(device="cpu", context=64))


def is_norm(name: str) -> bool:
    return "norm" in name and "linear_attn" not in name


def as_stored(head: Weights) -> Weights:
    return head


def shifted(head: Weights) -> Weights:
    return {n: w + 1 if is_norm(n) else w for n, w in head.items()}


def final_norm_shifted(head: Weights) -> Weights:
    """As a published folder has it: the trunk's convention for `mtp.norm`, Qwen's for the rest."""
    return {n: w + 1 if n.endswith("mtp.norm.weight") else w for n, w in head.items()}


def left_out(head: Weights) -> Weights:
    return {}


def converted(folder: Path, out: Path, keep_head: Callable[[Weights], Weights]) -> Path:
    """The folder in MLX's form: what mlx-lm's own `sanitize` makes of its weights, and the head."""
    shutil.copytree(folder, out)
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    kind, arguments = model_class(json.loads((folder / "config.json").read_text()))
    model = kind(arguments.from_dict(json.loads((folder / "config.json").read_text())))
    head = {name: value for name, value in weights.items() if name.startswith("mtp.")}
    made = model.sanitize(weights)
    made |= {f"language_model.{name}": value for name, value in keep_head(head).items()}
    mx.save_safetensors(str(out / "model.safetensors"), made, metadata={"format": "mlx"})
    return out


@pytest.fixture(scope="module", params=["dense", "mixture"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = EXPERTS if request.param == "mixture" else {}
    # Enough numbers in a norm that their mean and signs tell what they are, as real ones have.
    return make_qwen(tmp_path_factory.mktemp("original"), hidden_size=64, head_dim=32, **changes)


def logits(engine: MlxEngine) -> Any:
    return np.array(engine.target(mx.array(TOKENS), engine.target.fresh()).logits)


def head_outputs(engine: MlxEngine) -> Any:
    assert engine.head is not None
    size = engine.head.embedding(mx.array([0])).shape[-1]
    hidden = np.random.default_rng(0).standard_normal((len(TOKENS), size)).astype(np.float32)
    cache = PairCache()
    cache.place(0, 1)
    residual = engine.head.forward(mx.array(TOKENS), mx.array(hidden), 0, cache)
    return np.array(engine.head.outputs(residual)[0])


@pytest.mark.parametrize("keep_head", [left_out, as_stored, shifted, final_norm_shifted])
def test_the_trunk_is_the_same_in_either_form_with_and_without_a_head(
    original: Path, tmp_path: Path, keep_head: Callable[[Weights], Weights]
) -> None:
    expected = logits(load(original))
    found = logits(load(converted(original, tmp_path / "mlx", keep_head)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep_head", [as_stored, shifted, final_norm_shifted])
def test_the_head_is_the_same_however_its_norms_were_kept(
    original: Path, tmp_path: Path, keep_head: Callable[[Weights], Weights]
) -> None:
    expected = head_outputs(load(original))
    found = head_outputs(load(converted(original, tmp_path / "mlx", keep_head)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_folder_in_qwens_own_form_is_believed(original: Path, tmp_path: Path) -> None:
    """Its trunk is Qwen's, so its head is; numbers that look shifted are then Qwen's own."""
    folder = Path(shutil.copytree(original, tmp_path / "hf"))
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    weights["mtp.pre_fc_norm_hidden.weight"] = mx.full((64,), 0.9)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    engine = load(folder)
    assert engine.head is not None
    one = mx.ones((1, 64))
    np.testing.assert_allclose(np.array(engine.head.norm_hidden(one)), 1.9, rtol=1e-5)


def test_one_shift_more_or_less_would_be_seen(original: Path) -> None:
    """The control: these outputs differ by far more than the tolerance when a shift is wrong."""
    engine = load(original)
    expected = head_outputs(engine), logits(engine)
    assert engine.head is not None
    for change in (1.0, -1.0):
        layer = engine.head.block.layer
        norms = [(n, w + change) for n, w in tree_flatten(layer.parameters()) if is_norm(n)]
        layer.load_weights(norms, strict=False)
        assert np.abs(head_outputs(engine) - expected[0]).max() > 0.05
        layer.load_weights([(n, w - change) for n, w in norms], strict=False)
        trunk = engine.target.model
        norms = [(n, w + change) for n, w in tree_flatten(trunk.parameters()) if is_norm(n)]
        trunk.load_weights(norms, strict=False)
        assert np.abs(logits(engine) - expected[1]).max() > 0.05
        trunk.load_weights([(n, w - change) for n, w in norms], strict=False)
