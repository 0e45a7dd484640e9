"""A folder in MLX's form whose weights are packed, head included, runs with that head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx.core")

import mlx.core as mx
from qwen_makers import EXPERTS, make_qwen

from mtpx import bare, packs
from mtpx.backend import EngineOptions
from mtpx.errors import PackError
from mtpx_mlx import MlxBackend
from mtpx_mlx.engine import MlxEngine
from mtpx_mlx.models import model_class
from mtpx_mlx.pair_cache import PairCache

GROUP, BITS = 32, 8


def load(folder: Path) -> MlxEngine:
    return MlxBackend().load(packs.resolve(folder), EngineOptions(device="cpu", context=64))


def packed(folder: Path, out: Path) -> Path:
    """The folder in MLX's form, every matrix whose rows can be in packed groups."""
    config = json.loads((folder / "config.json").read_text())
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    kind, arguments = model_class(config)
    head = {f"language_model.{n}": w for n, w in weights.items() if n.startswith("mtp.")}
    made: dict[str, Any] = {}
    for name, value in (kind(arguments.from_dict(config)).sanitize(weights) | head).items():
        if value.ndim < 2 or "conv1d" in name or value.shape[-1] % GROUP:
            made[name] = value
            continue
        stem = name.removesuffix(".weight")
        parts = mx.quantize(value, group_size=GROUP, bits=BITS)
        made |= {
            f"{stem}.{p}": a for p, a in zip(("weight", "scales", "biases"), parts, strict=True)
        }
    out.mkdir()
    told = config | {"quantization": {"group_size": GROUP, "bits": BITS}}
    (out / "config.json").write_text(json.dumps(told))
    mx.save_safetensors(str(out / "model.safetensors"), made, metadata={"format": "mlx"})
    return out


def head_outputs(engine: MlxEngine) -> Any:
    assert engine.head is not None
    hidden = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    cache = PairCache()
    cache.place(0, 1)
    residual = engine.head.forward(mx.array([1, 7, 9, 30, 4]), mx.array(hidden), 0, cache)
    return np.array(engine.head.outputs(residual)[0])


@pytest.mark.parametrize("changes", [{}, EXPERTS], ids=["dense", "mixture"])
def test_a_packed_head_drafts_what_the_unpacked_one_drafts(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    original = make_qwen(tmp_path / "original", hidden_size=64, head_dim=32, **changes)
    folder = packed(original, tmp_path / "packed")
    assert bare.classify(folder).kind == "unverified"
    expected, found = head_outputs(load(original)), head_outputs(load(folder))
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    assert (found.argmax(-1) == expected.argmax(-1)).mean() >= 0.8


def test_a_head_packed_otherwise_than_config_says_is_refused(tmp_path: Path) -> None:
    folder = packed(make_qwen(tmp_path / "original", hidden_size=64), tmp_path / "packed")
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"bits": 8', '"bits": 4'))
    with pytest.raises(PackError, match="does not match"):
        load(folder)
