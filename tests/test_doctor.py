"""`mtpx doctor` from the outside."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from command import Command

from mtpx.backend import Probe
from mtpx_mlx import MlxBackend
from mtpx_torch import TorchBackend


def test_doctor_decodes_a_few_tokens_and_says_how(mtpx: Command, tiny_pack: Path) -> None:
    done = mtpx("doctor", str(tiny_pack), "--json", "--depth", "1")
    found = json.loads(done.out)
    assert done.status == 0
    running = found["running"]
    assert (running["backend"], running["dtype"]) == ("torch", "float32")
    assert (running["speculation"], running["depth"]) == ("on", 1)
    assert 0 <= running["accepted"] <= running["judged"]
    assert found["pack"]["fits"] is True
    assert found["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "adaptive: it chooses the depth, up to "),
        (("--policy", "ollama"), "ollama: it chooses the depth, up to "),
        (("--depth", "2"), "fixed: depth 2"),
        (("--depth", "off"), "none: plain decode"),
    ],
)
def test_doctor_says_which_policy_would_be_used(
    mtpx: Command, tiny_pack: Path, options: tuple[str, ...], said: str
) -> None:
    out = mtpx("doctor", str(tiny_pack), *options).out
    (line,) = [line for line in out.splitlines() if line.startswith("policy")]
    assert line.split(None, 1)[1].startswith(said)


def test_doctor_says_why_speculation_does_not_run(mtpx: Command, tiny_pack: Path) -> None:
    out = mtpx("doctor", str(tiny_pack / "weights")).out
    assert "speculation   not running: the pack has no MTP head" in out
    out = mtpx("doctor", str(tiny_pack), "--depth", "off").out
    assert "speculation   not running: switched off" in out


def test_doctor_ends_with_one_line_to_paste(mtpx: Command, tiny_pack: Path) -> None:
    last = mtpx("doctor", str(tiny_pack)).out.splitlines()[-1]
    assert last.startswith("report        mtpx ")
    assert "| torch on " in last


def test_doctor_fetches_nothing_and_says_what_is_not_here(mtpx: Command) -> None:
    done = mtpx("doctor", "smollm2-135m")
    assert done.status == 0
    assert "not tried: the weights are not here (`mtpx pack pull smollm2-135m`)" in done.out


def test_doctor_reports_what_is_broken_instead_of_failing(
    mtpx: Command, tiny_pack: Path, own_folders: Path
) -> None:
    (own_folders / "config").mkdir()
    (own_folders / "config" / "config.toml").write_text("a b")
    done = mtpx("doctor", str(tiny_pack))
    assert done.status == 1
    assert "config.toml, line 1, column 3" in done.out
    assert mtpx("doctor", "/nope").status == 1


def test_doctor_shows_a_backend_that_cannot_run(
    mtpx: Command, tiny_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchBackend, "probe", lambda *_: Probe(False, reason="no luck"))
    monkeypatch.setattr(MlxBackend, "probe", lambda *_: Probe(False, reason="no Metal"))
    done = mtpx("doctor", str(tiny_pack))
    assert "torch: cannot run: no luck" in done.out
    assert "mlx: cannot run: no Metal" in done.out
    assert done.status == 1


def test_doctor_tells_a_devices_own_memory(
    mtpx: Command, tiny_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Probe(True, device="a GPU", memory=8_000_000_000, memory_free=6_000_000_000)
    monkeypatch.setattr(TorchBackend, "probe", lambda *_: gpu)
    assert "torch: a GPU, 8.0 GB, 6.0 GB free" in mtpx("doctor", str(tiny_pack)).out


@pytest.mark.parametrize(("load", "told"), [(0.1, False), (64.0, True)])
def test_doctor_says_when_others_hold_the_cores(
    mtpx: Command, monkeypatch: pytest.MonkeyPatch, load: float, told: bool
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    assert ("others hold them" in mtpx("doctor").out) is told


def test_doctor_tries_a_folder_that_only_a_backends_library_reads(mtpx: Command) -> None:
    hybrid = Path(__file__).parent / "fixtures" / "tiny-hybrid"
    found = json.loads(mtpx("doctor", str(hybrid), "--json").out)
    assert found["pack"]["kind"] != "refused"
    assert found["running"]["backend"] == "mlx"


def test_doctor_says_once_that_there_is_no_compiler_and_still_runs(
    mtpx: Command, tiny_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = mtpx("doctor", str(tiny_pack))
    assert done.status == 0
    assert done.out.count("there is no C++ compiler no-such-compiler") == 1


def test_doctor_says_nothing_of_a_compiler_that_is_there(
    mtpx: Command, tiny_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no compiled route" not in mtpx("doctor", str(tiny_pack)).out
