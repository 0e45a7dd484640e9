"""A command run to its end, or to the end of one's patience, without losing what it wrote."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress

TIMED_OUT, INTERRUPTED = 124, 130

GRACE_S = 30.0
"""For a command that was asked to stop to write down what it has: it may be in the middle of a prompt."""


def run_step(
    command: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None, cwd: str = "."
) -> tuple[int, str]:
    """(exit status, what it wrote). A command that runs past `limit_s` seconds, and one that Ctrl-C
    finds running, is asked to stop and given time to say what it has; the status is then 124 or 130."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=cwd, stdout=output, stderr=subprocess.STDOUT, env=env
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _stop(process, heard=False)
            status = TIMED_OUT
        except KeyboardInterrupt:
            # A terminal tells every process of the command; `kill` tells this one only.
            _stop(process, heard=True)
            status = INTERRUPTED
        output.seek(0)
        return status, output.read().decode(errors="replace")


def _stop(process: subprocess.Popen[bytes], *, heard: bool) -> None:
    """Ask a process to stop as Ctrl-C does, unless it `heard` that already, and end it if it does not. A
    further Ctrl-C ends it at once."""
    try:
        for asked in (heard, False):
            if not asked:
                process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S / 2)
                return
    except KeyboardInterrupt:
        pass
    process.kill()
    process.wait()
