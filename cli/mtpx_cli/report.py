"""The terminal's view of a trace summary. Draws; every number comes from `mtpx.trace.summary`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtpx_cli.draw import Notes, clean, heading, indented, number, percent, table
from mtpx_cli.report_time import depth_over_time, hindsight, time_went
from mtpx_cli.verdicts import draw_verdict, fastest_line, no_verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from mtpx.trace.acceptance import Proportion
    from mtpx.trace.rounds import RoundsRow
    from mtpx.trace.summary import FileSummary, RunSummary, Summary


def draw_report(summary: Summary) -> Iterable[RenderableType]:
    """Every run of every file, each on its own; the verdict first. What is a `str` holds a path, there to
    be copied, and is not to be wrapped."""
    from rich.rule import Rule
    from rich.text import Text

    several = sum(len(file.runs) for file in summary.files) > 1
    for file in summary.files:
        for index, run in enumerate(file.runs, 1):
            if several:
                yield Rule(f"run {index} of {len(file.runs)}", style="dim")
                yield Text(clean(file.path), style="dim", overflow="fold")
            yield from _draw_run(run)
            yield ""
        yield from _footer(file)
    if several:
        yield Text("Runs are reported one by one; nothing is pooled across them.", style="dim")
    packs = {run.run.pack for file in summary.files for run in file.runs if run.run}
    if len(packs) > 1:
        names = ", ".join(clean(pack) for pack in sorted(packs))
        yield Text(f"They are of different packs and cannot be compared: {names}.", style="yellow")


def _footer(file: FileSummary) -> Iterable[RenderableType]:
    from rich.text import Text

    for sentence in file.skipped:
        yield Text(f"Reading: {clean(sentence)}", style="yellow")
    records = f"{file.records} record{'s' * (file.records != 1)}"
    yield f"Trace: {clean(file.path)} ({records})"


def _draw_run(run: RunSummary) -> Iterable[RenderableType]:
    from rich.text import Text

    notes = Notes()
    for verdict in run.verdicts:
        yield from draw_verdict(verdict, run.fastest(verdict.arm))
    if not run.verdicts:
        yield no_verdict(run.no_verdict)
    if run.no_fastest:
        yield fastest_line(run.no_fastest)
    for title, parts in (
        ("What ran", _what_ran(run, notes)),
        ("Rounds", _rounds(run, notes)),
        ("Acceptance of drafts", _acceptance(run, notes)),
        ("Break-even", _break_even(run, notes)),
        ("Depth over time", depth_over_time(run, notes)),
        ("What another depth would have done", hindsight(run, notes)),
        ("Where the time went", time_went(run, notes)),
        ("Anomalies", _anomalies(run)),
    ):
        yield heading(title)
        yield indented(*parts)
    if notes.lines():
        yield Text("\n" + "\n".join(notes.lines()), style="dim")


def _what_ran(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    if run.run is None:
        yield Text("The trace holds no run record: pack, device and policy are unknown.")
    else:
        r = run.run
        parameters = ", ".join(f"{k} {v}" for k, v in r.policy_parameters.items())
        threads = f", {r.threads} thread{'s' if r.threads > 1 else ''}" if r.threads else ""
        facts = [
            (
                "pack",
                f"{r.pack} ({r.quantisation or 'not quantised'}, weights {_digest(r.weights_digest)})",
            ),
            ("device", f"{r.device} ({r.backend}, {r.dtype}, {r.tier} tier{threads})"),
            ("policy", r.policy + (f" ({parameters})" if parameters else "")),
            ("versions", ", ".join(f"{k} {v}" for k, v in r.versions.items()) or "not recorded"),
            ("started", r.started),
        ]
        yield table(["", ""], [[name, clean(value)] for name, value in facts], left=2)
    yield Text("")
    if not run.arms:
        yield Text("No request was recorded outside warm-up.")
        return
    rows = []
    for arm in run.arms:
        stops = ", ".join(f"{clean(stop)} {n}" for stop, n in arm.stops.items())
        rows.append(
            [
                clean(arm.arm),
                str(arm.requests),
                str(arm.tokens),
                notes.show(arm.tokens_per_s, "no request ran long enough for a rate"),
                notes.show(arm.ttft_ms, "the time to the first token was not recorded"),
                notes.show(arm.tokens_per_round, "no rounds were recorded"),
                notes.show(arm.accepted_share, "nothing was drafted", "percent"),
                stops,
            ]
        )
    columns = ["arm", "requests", "tokens", "tok/s", "TTFT ms", "tok /\nround", "accepted", "ended"]
    yield table(columns, rows, trailing=1)
    yield from _roofline(run, notes)
    for arm in run.arms:
        for reason, n in arm.parked.items():
            yield Text(f"{clean(arm.arm)}: {n} without speculation: {clean(reason)}")
        if arm.looped:
            yield Text(
                f"{clean(arm.arm)}: {arm.looped} with looping output, which inflates acceptance"
            )
    errors = [r for r in run.requests if r.error]
    for request in errors[:3]:
        yield Text(f"request {request.id} ended in an error: {clean(request.error)}", style="red")
    if len(errors) > 3:
        yield Text(f"… and {len(errors) - 3} more errors (--json has all)", style="red")


def _roofline(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    """How fast plain decode reads weights: near the memory's bandwidth, it is as fast as it can be."""
    from rich.text import Text

    plain = [arm for arm in run.arms if arm.mode == "plain"]
    size = run.run.plain_step_bytes if run.run else None
    own = {request.arm for request in run.requests if not request.precision}
    for arm in plain:
        speed = notes.show(
            arm.weights_gb_s, "the bytes a plain step reads, or its speed, were not recorded"
        )
        step = f" ({number(size / 1e6)} MB a step)" if size and arm.arm in own else ""
        yield Text(
            f"{clean(arm.arm)} reads {speed} GB/s of weights{step}; compare with the memory's bandwidth."
        )


def _digest(digest: str) -> str:
    return digest[:12] if digest else "without a digest"


def _rounds(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    routes = run.routes
    warmup = f"; {run.warmup_rounds} warm-up rounds left out" if run.warmup_rounds else ""
    yield Text(
        f"Verify rounds: {routes.verify} ({routes.compiled} compiled, {routes.eager} eager); "
        f"rounds that compiled something: {routes.compiled_now}{warmup}."
    )
    if not run.rounds:
        return
    wide = len({row.width for row in run.rounds}) > 1 or run.rounds[0].width > 1
    columns = [
        "depth",
        "route",
        *(["width"] if wide else []),
        "rounds",
        "ms",
        "p10–p90",
        "d/v/h %",
        "tok /\nround",
        "full\nms",
        "×\nplain",
    ]
    yield table(columns, [_rounds_row(row, wide, notes) for row in run.rounds], left=2)
    yield Text(
        "d/v/h: draft, verify and host share of the time. full: every draft of that depth verified, "
        "nothing compiled, no transition or stall (median). × plain: in plain rounds.",
        style="dim",
    )


def _rounds_row(row: RoundsRow, wide: bool, notes: Notes) -> list[str]:
    ms = row.round_ms
    untimed = "no round of this kind has a valid time"
    shares = (row.draft_share, row.verify_share, row.host_share)
    if any(share is not None for share in shares):
        split = "/".join("–" if s is None else f"{100 * s:.0f}" for s in shares)
    else:
        split = notes.dash("the parts of a round were not timed apart")
    return [
        clean(row.mode) if row.mode != "mtp" else "parked" if not row.depth else str(row.depth),
        row.route,
        *([str(row.width)] if wide else []),
        str(row.rounds),
        number(ms.median) if ms else notes.dash(untimed),
        f"{number(ms.p10)}–{number(ms.p90)}" if ms else notes.dash(untimed),
        split,
        notes.show(row.tokens_per_round, "no rounds were recorded"),
        notes.show(row.full_cost_ms, "no clean full round of this kind"),
        notes.show(
            row.full_cost_plain,
            "no clean full round of this kind"
            if row.full_cost_ms is None
            else f"no depth-0 round was run at width {row.width}",
        ),
    ]


def _acceptance(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    if not run.acceptance:
        yield Text("No draft was verified.")
        return
    rows = [
        [
            str(position.position),
            *_proportion(position.conditional, notes, "no draft was judged at this position"),
            *_proportion(position.unconditional, notes, "no draft was verified at this position"),
        ]
        for position in run.acceptance
    ]
    columns = ["position", "if all before", "95 %", "of", "overall", "95 %", "of"]
    yield table(columns, rows)
    yield from _reliability(run, notes)


def _reliability(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    import math

    from rich.text import Text

    if not run.reliability:
        return
    rows = []
    for row in run.reliability:
        low = 0.0 if row.lower is None else math.exp(row.lower)
        rows.append(
            [
                f"{100 * low:.1f}–{100 * math.exp(row.upper):.1f} %",
                percent(row.said, 1),
                *_proportion(row.stood, notes, "no draft was judged"),
            ]
        )
    yield Text("")
    yield table(["head was sure to", "said", "stood", "95 %", "of"], rows)


def _proportion(value: Proportion | None, notes: Notes, reason: str) -> list[str]:
    if value is None:
        return [notes.dash(reason), "", "0"]
    interval = f"{100 * value.low:.1f}–{100 * value.high:.1f}"
    return [percent(value.rate, 1), interval, str(value.trials)]


def _break_even(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    if not run.break_even:
        yield Text("No depth above 0 was run.")
        return
    wide = len({entry.width for entry in run.break_even}) > 1 or run.break_even[0].width > 1
    rows = []
    for entry in run.break_even:
        reason = entry.reason
        rows.append(
            [
                str(entry.depth),
                *([str(entry.width)] if wide else []),
                notes.show(entry.cost_plain, reason),
                notes.show(entry.tokens, reason),
                notes.show(entry.break_even, reason, "percent"),
                notes.show(entry.acceptance, reason, "percent"),
                _margin(entry.margin, notes, reason),
                notes.show(entry.speed, reason),
            ]
        )
    columns = [
        "depth",
        *(["width"] if wide else []),
        "cost\n× plain",
        "tok /\nround",
        "break-even",
        "measured",
        "margin",
        "speed\n× plain",
    ]
    yield table(columns, rows)
    sources = sorted({entry.cost_from for entry in run.break_even if entry.cost_from})
    said = f" Plain cost from: {', '.join(sources)}." if sources else ""
    yield Text(
        "break-even, measured: uniform acceptance per draft, needed and found; above 100 % a depth "
        f"cannot pay. An expectation from medians; the verdict is what was timed.{said}",
        style="dim",
    )


def _margin(margin: float | None, notes: Notes, reason: str) -> str:
    return notes.dash(reason) if margin is None else f"{100 * margin:+.0f} pts"


def _anomalies(run: RunSummary) -> Iterable[RenderableType]:
    from rich.text import Text

    if not run.anomalies:
        yield Text("None found.")
    for anomaly in run.anomalies:
        yield Text(f"{anomaly.message}.", style="yellow")
