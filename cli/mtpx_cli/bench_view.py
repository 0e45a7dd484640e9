"""What a bench shows: a progress line while it runs, and its result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mtpx_cli.bars import counted_bar
from mtpx_cli.draw import clean, number
from mtpx_cli.terminal import is_terminal, note
from mtpx_cli.verdicts import draw_verdict, fastest_line, no_verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mtpx.bench.compare import Comparison
    from mtpx.bench.result import BenchResult, Progress
    from mtpx.bench.verdict import Verdict


@contextmanager
def progress_line(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A callback for `run_bench`: one line on standard error with what is running, how far it is and
    about how long it still takes, gone again at the end. Off a terminal a line for each part of the
    warm-up and every tenth of the way; nothing when quiet. A bench goes on where nobody reads it."""
    if quiet:
        yield lambda progress: None
    elif not is_terminal(sys.stderr):
        yield _Lines()
    else:
        bar = counted_bar("left")
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
    """Progress for logs: a line for each part of the warm-up, then one every tenth of the way."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, progress: Progress) -> None:
        if progress.left_s is None:
            # "auto learns, 3 of 8" is told once.
            self._tell(progress.now.partition(",")[0], progress.now)
        else:
            left = time_left(progress.left_s)
            tenth = 10 * progress.done // progress.total
            self._tell(str(tenth), f"{progress.done} of {progress.total} runs, {left}")

    def _tell(self, part: str, line: str) -> None:
        if part != self._last:
            self._last = part
            note(f"bench: {clean(line)}")


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
            yield from draw_verdict(verdict, result.fastest(verdict.arm))
        if result.design.no_fastest:
            yield fastest_line(result.design.no_fastest)
        if sum(arm.mode == "mtp" for arm in result.design.arms) > 1:
            yield Text(
                "Each verdict stands for itself. The best of several depths is partly luck: "
                "bench it alone before quoting its figure."
            )
        yield from draw_comparisons(result.comparisons)
    else:
        yield no_verdict(result.verdicts[0].reason)


def draw_comparisons(found: list[Comparison]) -> Iterable[RenderableType]:
    """Arms against each other, a row a pair and suite."""
    from rich.text import Text

    from mtpx_cli.draw import indented, table

    if not found:
        return
    rows = []
    for c in found:
        interval = "–" if c.low is None or c.high is None else f"{c.low:.3f}–{c.high:.3f}"
        against = f"{clean(c.other)}, the best fixed" if c.best else clean(c.other)
        rows.append(
            [
                clean(c.arm),
                against,
                clean(c.suite) or "all",
                f"{c.ratio:.3f}",
                interval,
                str(c.prompts),
            ]
        )
    yield Text("")
    yield table(["arm", "against", "prompts of", "×", "95 %", "n"], rows, left=3)
    if any(c.best for c in found):
        yield indented(
            Text(
                "The best fixed depth was picked in these very runs, part by part, which flatters it.",
                style="dim",
            )
        )


def speed_lines(result: BenchResult) -> list[str]:
    """What the table leaves out: the first token, and how fast plain decode reads weights."""
    firsts = [
        f"{clean(r.arm)} {number(r.ttft_ms)} ms" for r in result.rates if r.ttft_ms is not None
    ]
    out = [f"First token after: {', '.join(firsts)}."] if firsts else []
    for rate in result.rates:
        if rate.weights_gb_s is not None:
            fastest = result.design.fastest
            where = f" in {clean(fastest.precision)}" if fastest and rate.arm == fastest.arm else ""
            out.append(
                f"Plain decode{where} reads {number(rate.weights_gb_s)} GB/s of weights; compare with the "
                "memory's bandwidth."
            )
    return out


def pasteable(result: BenchResult) -> list[str]:
    """The result as Markdown: a line on what ran, and a table with a row an arm."""
    a = result.about
    threads = f", {a.threads} thread{'s' if a.threads > 1 else ''}" if a.threads else ""
    prompts = f"{result.design.prompts} prompts × {a.max_tokens} tokens"
    quantised = a.quantisation if a.quantisation not in ("", "none") else a.dtype
    lines = [
        f"{a.pack} ({quantised}), {a.device} ({a.backend}{threads}), mtpx {a.mtpx}",
        f"{prompts}, temperature {a.temperature:g}, {a.dtype}, {a.tier} tier"
        + (f", {a.route}" if a.route else ""),
    ]
    third = result.design.fastest
    if third is not None:
        lines.append(f"beside plain decode in {third.precision}, the fastest precision here")
    lines.append("")
    verdicts = {v.arm: v for v in result.verdicts}
    rows = [["arm", "tok/s", "× plain", "95 %", "tok/round", "accept", "verdict"]]
    for rate in result.rates:
        name = clean(rate.arm).replace("|", "/")
        ratio, interval, verdict = _judged(verdicts.get(rate.arm))
        rows.append(
            [
                name,
                _shown(rate.tokens_per_s),
                ratio,
                interval,
                _shown(rate.tokens_per_round),
                f"{100 * rate.accepted / rate.verified:.0f} %" if rate.verified else "–",
                verdict,
            ]
        )
        fastest = result.fastest(rate.arm)
        if fastest is not None and third is not None:
            ratio, interval, verdict = _judged(fastest)
            rows.append([f"{name} vs {third.precision}", "", ratio, interval, "", "", verdict])
    if any(v.level != 0.95 for v in result.verdicts):
        rows[0][3] = "interval"
    return lines + _markdown(rows)


def _judged(verdict: Verdict | None) -> tuple[str, str, str]:
    """Ratio, interval and verdict as cells."""
    if verdict is None:
        return "–", "–", "–"
    interval = "–"
    if verdict.low is not None and verdict.high is not None:
        interval = f"{verdict.low:.3f}–{verdict.high:.3f}"
    ratio = "–" if verdict.ratio is None else f"{verdict.ratio:.3f}"
    return ratio, interval, verdict.verdict


def _markdown(rows: list[list[str]]) -> list[str]:
    """A table that reads well as text and as Markdown; the first and last columns are words."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    out = []
    for n, row in enumerate(rows):
        cells = [
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.append(f"| {' | '.join(cells)} |")
        if n == 0:
            rule = [
                "-" * width if i in (0, last) else "-" * (width - 1) + ":"
                for i, width in enumerate(widths)
            ]
            out.append(f"| {' | '.join(rule)} |")
    return out


def _shown(value: float | None) -> str:
    return "–" if value is None else number(value)
