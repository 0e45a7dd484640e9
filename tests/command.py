"""The command `mtpx` as a shell sees it: arguments and stdin in; status, stdout and stderr out."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mtpx_cli.main import main


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one sentence of a command that could not be done as asked."""
        lines = self.err.splitlines()
        assert (self.status, self.out, len(lines)) == (2, "", 1), self
        assert lines[0].startswith("mtpx: ")
        return lines[0].removeprefix("mtpx: ")


Command = Callable[..., Done]


@pytest.fixture
def mtpx(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_folders: Path
) -> Command:
    """Runs `mtpx ARGS` in this process, in folders of its own, without a progress line that a busy
    machine may or may not come to show."""
    monkeypatch.setattr("mtpx_cli.loading.PATIENCE_S", math.inf)

    def command(*args: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["mtpx", *args])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        found = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Done(left.value.code, found.out, found.err)

    return command


def process(*args: str, **options: Any) -> subprocess.Popen[bytes]:
    """`mtpx ARGS` as a process of its own, its streams in pipes unless `options` say otherwise."""
    env = os.environ | {"OMP_NUM_THREADS": "1"} | options.pop("env", {})
    pipe = subprocess.PIPE
    streams = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe} | options
    return subprocess.Popen([sys.executable, "-m", "mtpx_cli", *args], env=env, **streams)
