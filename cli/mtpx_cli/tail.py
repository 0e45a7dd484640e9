"""`mtpx trace tail`: a running process's trace, as it grows."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from mtpx_cli.draw import clean, number, percent
from mtpx_cli.terminal import is_terminal

if TYPE_CHECKING:
    from mtpx.round import Round
    from mtpx.trace.schema import Record

POLL_S = 0.2
"""A person sees no finer, and a read of nothing costs nothing."""

RECENT = 64
"""Rounds that "now" is: a second or two."""


@click.command()
@click.argument("file", required=False, type=click.Path())
@click.option(
    "--idle",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Leave after this long without news.  [default: never]",
)
def tail(file: str | None, idle: float | None) -> None:
    """Watch FILE while it is being written: requests, depth, speed, acceptance. Ctrl-C leaves.

    Without FILE, the newest trace in the state directory.

    \b
    mtpx trace tail
    mtpx trace tail --idle 5
    """
    from mtpx.trace.follow import follow
    from mtpx_cli.trace import newest

    path = file or newest()
    view = View(live=is_terminal(sys.stdout))
    quiet = 0.0

    def wait() -> bool:
        nonlocal quiet
        view.refresh()
        if idle is not None and quiet >= idle:
            return False
        time.sleep(POLL_S)
        quiet += POLL_S
        return True

    try:
        for records in follow(path, wait):
            quiet = 0.0
            view.take(records)
    finally:
        view.close()


class View:
    """Lines for what begins and ends, and under them one that changes; without a terminal, no such line."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._shown = 0
        self._recent: deque[Round] = deque(maxlen=RECENT)
        self._rounds = 0

    def take(self, records: Iterable[Record]) -> None:
        from mtpx.round import Round
        from mtpx.trace.schema import EndRecord, RequestRecord, RunRecord

        for record in records:
            if isinstance(record, Round):
                self._recent.append(record)
                self._rounds += 1
            elif isinstance(record, RunRecord):
                self._rounds = 0
                self._recent.clear()
                self._line(f"run: {record.pack} on {record.device}, policy {record.policy}")
            elif isinstance(record, RequestRecord):
                self._recent.clear()
                name = record.prompt and f" {record.suite}/{record.prompt}"
                kind = record.arm or record.mode
                warm = ", warm-up" if record.warmup else ""
                parked = f", {record.parked}" if record.parked else ""
                self._line(
                    f"request {record.id}{name}: {kind}{warm}, "
                    f"{record.prompt_tokens} prompt tokens{parked}"
                )
            elif isinstance(record, EndRecord):
                rate = record.rate
                speed = "" if rate is None else f", {number(rate)} tok/s"
                error = f": {record.error}" if record.error else ""
                self._line(
                    f"request {record.request} ended ({record.stop}): "
                    f"{record.tokens} tokens{speed}{error}"
                )
        self.refresh()

    def refresh(self) -> None:
        if self._live and self._recent:
            self._erase()
            line = self.now()
            click.echo(line, nl=False)
            sys.stdout.flush()
            self._shown = len(line)

    def now(self) -> str:
        """The last rounds on one line."""
        rounds = self._recent
        ms = sum(r.round_ms for r in rounds)
        tokens = sum(r.committed for r in rounds)
        verified = sum(s.verified for r in rounds for s in r.slots)
        accepted = sum(s.accepted for r in rounds for s in r.slots)
        speed = f"{number(1e3 * tokens / ms)} tok/s" if ms > 0 else "–"
        stood = percent(accepted / verified) if verified else "–"
        last = rounds[-1]
        reason = f" ({clean(last.decision.reason)})" if last.decision else ""
        return f"round {self._rounds}, depth {last.depth}{reason}, {speed}, accepted {stood}"

    def close(self) -> None:
        if self._shown:
            click.echo()
        self._shown = 0

    def _line(self, text: str) -> None:
        self._erase()
        click.echo(clean(text))

    def _erase(self) -> None:
        if self._shown:
            click.echo("\r" + " " * self._shown + "\r", nl=False)
            self._shown = 0
