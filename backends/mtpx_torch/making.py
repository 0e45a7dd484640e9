"""The asker's side of `mtpx_torch.maker`."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from mtpx_torch.maker import WORK, Order, Said

TITLES = {
    "step-1": "compiling the step over one row",
    "step-n": "compiling the step over several rows",
    "waiting": "another process is compiling this: waiting for it",
    "head-1": "compiling the head's step over one row",
    "head-n": "compiling the head's step over several rows",
}


class Making:
    """A process that compiles; it ends with this object, with this process, or with `stop`."""

    def __init__(self, order: Order) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mtpx_torch.maker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end, self._process, order.folder)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(pickle.dumps(order))
            self._process.stdin.flush()

    @property
    def going(self) -> bool:
        return self._process.poll() is None

    def wait(self, show: Callable[[int, int, str], None] | None = None) -> str:
        """Until all is made. → "", or why it is not."""
        why = "the process that compiles ended without a word"
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = msgspec.json.decode(line, type=Said)
            if said.why:
                why = said.why
            elif said.at == said.of:
                why = ""
            if show is not None and said.of:
                show(said.at, said.of, TITLES.get(said.what, said.what))
        self.stop()
        return why

    def stop(self) -> None:
        """End it and what it started. Graphs that are whole stay."""
        self._end()


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(folder / f"{WORK}{process.pid}", ignore_errors=True)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
