"""`python -m mtpx_torch.maker`: the process that compiles an engine's graphs, one after the other.

It is told what to do on standard input (`Order`), says on standard output what it is at (`Said`, a line each),
and ends with all that it started when its input is closed: whoever asked is gone. A process of its own,
because torch's compiler is Python for the most part, and decoding beside it waited seconds for its lock.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from filelock import AcquireReturnProxy, FileLock, Timeout

from mtpx.backend import EngineOptions
from mtpx.packs import Pack

WORK = ".work-"
"""Before its process's number, the name of a folder for files on the way."""


@dataclass(frozen=True, slots=True)
class Order:
    """Graphs for what these options load, into `folder`; `idly`, only with what time nobody else wants."""

    pack: Pack
    options: EngineOptions
    threads: int
    folder: Path
    idly: bool


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """`at` graphs of `of` are made, `what` is being made; `why` it could not be."""

    at: int = 0
    of: int = 0
    what: str = ""
    why: str = ""


def main() -> None:
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    # Nothing that a library or a compiler prints is for whoever asked.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    order: Order = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_leave_with_the_asker, args=(order.folder,), daemon=True).start()
    if order.idly:
        _stand_back()

    def say(said: Said) -> None:
        out.write(msgspec.json.encode(said) + b"\n")

    try:
        make(order, say)
    except BaseException as error:
        from mtpx_torch.graphs import reason

        say(Said(why=reason(error)))
        raise SystemExit(1) from None


def make(order: Order, say: Callable[[Said], None]) -> None:
    """All graphs that are not there yet."""
    with _lock(order.folder, say), _workplace(order.folder) as work:
        # A compiler's own files, too: one that is killed leaves them.
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TMPDIR"):
            os.environ[name] = str(work)
        if order.idly:
            os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        import torch

        from mtpx_torch.ahead import build, load, whole
        from mtpx_torch.backend import TorchBackend
        from mtpx_torch.kept import complete

        torch.set_num_threads(order.threads)
        engine = TorchBackend().load(order.pack, order.options)
        with torch.no_grad():
            jobs = engine.jobs()
            for number, job in enumerate(jobs):
                say(Said(number, len(jobs), job.name))
                if not whole(job, order.folder):
                    build(job, order.folder, work)
                    job.checked(load(job, order.folder))
        complete(order.folder)
        say(Said(len(jobs), len(jobs), "compiled"))


def _lock(folder: Path, say: Callable[[Said], None]) -> AcquireReturnProxy[Any]:
    """Held, as a context; one process at a time compiles into a folder."""
    lock = FileLock(folder / ".lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        say(Said(0, 1, "waiting"))
        return lock.acquire()


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """A folder for what is on the way to a library; those of processes that are gone are removed."""
    for left in folder.glob(f"{WORK}*"):
        with suppress(ValueError):
            if not _alive(int(left.name.removeprefix(WORK))):
                shutil.rmtree(left, ignore_errors=True)
    work = folder / f"{WORK}{os.getpid()}"
    work.mkdir(exist_ok=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _leave_with_the_asker(folder: Path) -> None:
    sys.stdin.buffer.read()
    shutil.rmtree(folder / f"{WORK}{os.getpid()}", ignore_errors=True)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _stand_back() -> None:
    with suppress(OSError):
        os.nice(19)
    # On Linux a session's processes share its turn, whatever their niceness among each other.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    main()
