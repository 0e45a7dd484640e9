"""What a bench shows: a progress line while it runs, and its result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mtpx_cli.draw import clean, heading, number, table
from mtpx_cli.verdicts import draw_verdict, no_verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mtpx.bench.records import ArmRate
    from mtpx.bench.run import BenchResult, Progress


@contextmanager
def progress_line(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A callback for `run_bench`: one line on standard error with what is running, how far it is and
    about how long it still takes, gone again at the end. Off a terminal a line every tenth of
    the way; nothing when quiet."""
    if quiet:
        yield lambda progress: None
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[left]}", markup=False),
            console=Console(stderr=True, markup=False, emoji=False, highlight=False),
            transient=True,
        )
        task = bar.add_task("warming up", total=None, left="")

        def show(progress: Progress) -> None:
            if progress.left_s is None:
                bar.update(task, description=clean(progress.now))
            else:
                bar.update(
                    task,
                    description=clean(progress.now),
                    completed=progress.done,
                    total=progress.total,
                    left=f"{progress.done} of {progress.total} runs, {time_left(progress.left_s)}",
                )

        with bar:
            yield show


class _Lines:
    """Progress for logs."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, progress: Progress) -> None:
        if progress.left_s is None:
            return
        tenth = 10 * progress.done // progress.total
        if tenth != self._last:
            self._last = tenth
            print(
                f"bench: {progress.done} of {progress.total} runs, {time_left(progress.left_s)}",
                file=sys.stderr,
                flush=True,
            )


def time_left(seconds: float) -> str:
    """About how long still, in words no finer than the guess is good."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    return f"about {round(seconds / 60)} min left"


def draw_result(result: BenchResult) -> Iterable[RenderableType]:
    """The verdicts first, then the speeds they rest on."""
    from rich.text import Text

    if result.stopped:
        yield Text(
            "Stopped before all planned runs were made; what follows is what there was until then."
        )
    if result.design.baseline:
        for verdict in result.verdicts:
            yield from draw_verdict(verdict)
        if sum(arm.depth > 0 for arm in result.design.arms) > 1:
            yield Text(
                "Each verdict stands for itself. The best of several depths is partly luck: "
                "bench it alone before quoting its figure."
            )
    else:
        yield no_verdict(result.verdicts[0].reason)
    if result.rates:
        yield heading("Speed")
        yield table(["arm", "runs", "tok/s", "first token ms"], [_rate(r) for r in result.rates])


def _rate(rate: ArmRate) -> list[str]:
    def shown(value: float | None) -> str:
        return "–" if value is None else number(value)

    return [clean(rate.arm), str(rate.runs), shown(rate.tokens_per_s), shown(rate.ttft_ms)]
