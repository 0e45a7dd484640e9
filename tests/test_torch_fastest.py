"""`--precision auto`: the fastest of what the pack declares good, measured once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch_makers import make_gguf_pack

from mtpx import paths
from mtpx.backend import EngineOptions
from mtpx.packs import Pack
from mtpx_torch import TorchBackend, fastest, measured
from mtpx_torch.quality import main, read


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_gguf_pack(tmp_path_factory.mktemp("pack"))


@pytest.fixture
def timed(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The precisions that were measured, in order; bfloat16 is the fastest of them."""
    asked: list[str] = []

    def measure(checkpoint: object, device: object, precision: str) -> float:
        asked.append(precision)
        return 1.0 if precision == "bfloat16" else 2.0

    monkeypatch.setattr(fastest, "_products_ms", measure)
    return asked


def good(pack: Pack, *precisions: str) -> Pack:
    manifest: Any = SimpleNamespace(precisions=list(precisions))
    return replace(pack, manifest=manifest)


def dtype(pack: Pack, **extra: str) -> str:
    engine = TorchBackend().load(pack, EngineOptions(threads=1, context=64, extra=extra))
    try:
        return engine.info.dtype
    finally:
        engine.close()


def test_the_fastest_is_measured_once_and_remembered(pack: Pack, timed: list[str]) -> None:
    declared = good(pack, "float32", "bfloat16", "int4")
    assert dtype(declared) == "bfloat16"
    assert timed == ["float32", "bfloat16", "int4"]
    assert dtype(declared) == "bfloat16"
    assert len(timed) == 3


def test_what_the_pack_does_not_declare_good_is_never_picked(pack: Pack, timed: list[str]) -> None:
    assert dtype(good(pack, "float32", "int4")) != "bfloat16"
    assert dtype(pack) == "float32"
    assert "bfloat16" not in timed


def test_a_product_of_ones_own_choice_leaves_the_floats(pack: Pack, timed: list[str]) -> None:
    assert dtype(good(pack, "float32", "int8", "int4"), product="rows") == "float32"
    assert timed == []


@pytest.mark.parametrize("damage", [b"", b"[1]", b'[{"key": 3}]', b"\xff\xfe"])
def test_a_damaged_memory_is_measured_anew(pack: Pack, timed: list[str], damage: bytes) -> None:
    file = paths.state_dir() / measured.FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(damage)
    assert dtype(good(pack, "float32", "bfloat16")) == "bfloat16"
    assert dtype(good(pack, "float32", "bfloat16")) == "bfloat16"
    assert len(timed) == 2


def test_real_products_are_timed(pack: Pack, own_folders: Path) -> None:
    assert dtype(good(pack, "float32", "int8")) in ("float32", "int8")


def test_reading_does_not_depend_on_how_a_window_is_cut_into_rows(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TorchBackend().load(pack, EngineOptions(precision="float32", context=256, threads=1))
    text = [i * 7 % 90 + 3 for i in range(200)]
    whole = read(engine, text, window=150)
    monkeypatch.setattr("mtpx_torch.quality.ROWS", 7)
    cut = read(engine, text, window=150)
    engine.close()
    assert len(whole.choices) == 199
    assert cut.loss == pytest.approx(whole.loss, rel=1e-5)
    assert cut.agreement(whole) > 0.98


def test_quality_tells_what_is_wrong_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["no-such-pack", str(tmp_path / "absent.txt")]) == 2
    assert "absent.txt" in capsys.readouterr().err
