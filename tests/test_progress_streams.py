"""Progress is for whoever reads it: where nobody can, the work goes on."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import Command
from simulated_bench import PAYS, model_of

from mtpx.bench.result import Progress
from mtpx_cli.bench_view import progress_line
from mtpx_cli.loading import fetching, progress

FULL = Path("/dev/full")


class Broken(io.StringIO):
    """A stream that cannot be written any more: a full disk, or a pipe whose reader left."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


def a_bench_told(stderr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress_line(quiet=False) as tell:
        for now in ("compiling", "warming up auto", "auto learns, 1 of 8", "auto learns, 2 of 8"):
            tell(Progress(0, 20, None, now))
        for done in range(21):
            tell(Progress(done, 20, 200.0 - 10 * done, "chat/x, auto"))


def a_fetch_told(stderr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtpx_cli.loading.PATIENCE_S", 0.0)
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("fetching", quiet=False) as tell:
        assert tell is not None
        for done in range(3):
            tell(done, 2)


@pytest.mark.parametrize("told", [a_bench_told, a_fetch_told])
@pytest.mark.parametrize(
    "stderr", [None, Broken(errno.ENOSPC), Broken(errno.EPIPE)], ids=["closed", "full", "gone"]
)
def test_a_stderr_that_cannot_be_written_stops_nothing(
    told: Any, stderr: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(stderr, monkeypatch)


def test_a_log_of_a_bench_has_the_parts_of_the_warm_up_and_every_tenth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = io.StringIO()
    a_bench_told(stderr, monkeypatch)
    lines = stderr.getvalue().splitlines()
    assert lines[:4] == [
        "bench: compiling",
        "bench: warming up auto",
        "bench: auto learns, 1 of 8",
        "bench: 0 of 20 runs, about 3 min left",
    ]
    assert len(lines) == 3 + 11


@pytest.mark.parametrize("stderr", [None, Broken(errno.ENOSPC)], ids=["closed", "full"])
def test_a_bench_nobody_can_be_told_of_still_prints_its_result(
    mtpx: Command, monkeypatch: pytest.MonkeyPatch, stderr: Any
) -> None:
    model = model_of(PAYS)
    monkeypatch.setattr("mtpx_cli.bench_run.load_model", lambda *args, **options: model)
    monkeypatch.setattr(time, "perf_counter_ns", model.engine.clock)
    monkeypatch.setattr(sys, "stderr", stderr)
    done = mtpx("bench", "--null-control", "--prompts", "6", "--repeats", "1", "--json")
    assert len(json.loads(done.out)["design"]["blocks"]) == 6


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
def test_a_wrong_option_is_told_by_the_status_where_stderr_is_full() -> None:
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mtpx_cli", "bench", "--no-such"], stderr=full, check=False
        )
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("done", "quiet", "told"),
    [(5, False, True), (0, False, False), (10, False, False), (5, True, False)],
)
def test_ctrl_c_amid_a_fetch_says_that_nothing_is_lost(
    capsys: pytest.CaptureFixture[str], done: int, quiet: bool, told: bool
) -> None:
    with suppress(KeyboardInterrupt), fetching(quiet=quiet) as tell:
        tell(done, 10)
        raise KeyboardInterrupt
    err = capsys.readouterr().err
    sentence = "stopped; what was fetched is kept, and the same command goes on from there\n"
    assert err == (sentence if told else "")


def test_a_name_of_megabytes_does_not_bury_its_sentence(mtpx: Command) -> None:
    for command in (["run", "x", "--pack", "A" * 100_000], ["run", "x", "--depth", "B" * 100_000]):
        done = mtpx(*command)
        assert done.status == 2
        assert len(done.err) < 700
        assert " characters)" in " ".join(done.err.split())


def test_a_deleted_working_directory_is_a_sentence(
    mtpx: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = mtpx("doctor")
    assert done.status != 0
    assert "the folder this was started in is gone" in done.err
