"""`mtpx chat` on a pseudo-terminal, for tests that type into it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

pexpect = pytest.importorskip("pexpect")

PROMPT = ">>>"


class Start(Protocol):
    """Starts a chat with these options besides, and this environment; returns once it asks for a question."""

    def __call__(self, *options: str, **env: str) -> Any: ...


@contextmanager
def chats(
    pack: Path, folder: Path, options: Sequence[str], *, patience_s: float, columns: int
) -> Iterator[Start]:
    """Chats with `pack`, their cache, state and settings under `folder`; all are ended on leaving."""
    folders = {f"MTPX_{n}_DIR": str(folder / n.lower()) for n in ("CACHE", "STATE", "CONFIG")}
    running = []

    def start(*more: str, **env: str) -> Any:
        child = pexpect.spawn(
            sys.executable,
            ["-m", "mtpx_cli", "chat", str(pack), *options, *more],
            env=os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm"} | folders | env,
            encoding="utf-8",
            timeout=patience_s,
            dimensions=(24, columns),
        )
        child.delaybeforesend = None
        running.append(child)
        child.expect_exact(PROMPT)
        return child

    yield start
    for child in running:
        child.close(force=True)


def leave(child: Any) -> int:
    """Ctrl-D; the exit status."""
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    status: int = child.exitstatus
    return status
