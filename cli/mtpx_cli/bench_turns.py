"""`mtpx bench --turns N`: a growing conversation, cold, warm without and with the carry, plain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.loading import EngineArguments, load_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from mtpx.bench.turns import ArmTurns, Interval, TurnsResult
    from mtpx.trace.schema import Record
    from mtpx_cli.draw import Notes

CONVERSATIONS = 3
"""Held unless --prompts says otherwise, if there are as many questions."""


def bench_turns(
    turns: int,
    pack: str | None,
    engine: EngineArguments,
    *,
    depths: tuple[int | str, ...] | None,
    prompts: int | None,
    suites: tuple[str, ...],
    files: tuple[Path, ...],
    max_tokens: int,
    sampled: dict[str, Any],
    seed: int,
    trace: Path,
    as_json: bool,
    quiet: bool,
    command: str,
) -> None:
    """Run it and show what was found."""
    from mtpx.bench.turns import conversations, run_turns
    from mtpx.sampling import Sampling
    from mtpx.trace.writer import TraceWriter
    from mtpx_cli.counting import counting
    from mtpx_cli.terminal import complain

    depth = _depth(depths)
    talks = conversations(_questions(turns, prompts, suites, files, seed), turns)
    sampling = Sampling(**sampled)
    with load_model(pack, engine, quiet=quiet) as model, counting(quiet) as bar:
        writers: list[TraceWriter] = []

        def write(record: Record) -> None:
            # Opened with the first record: a bench that is refused leaves no empty trace behind.
            if not writers:
                writers.append(TraceWriter(trace, warn=complain))
            writers[0].write(record)

        manifest = model.pack.manifest
        told = manifest.depth if manifest is not None else None
        try:
            result = run_turns(
                model,
                talks,
                depth=depth or told or 1,
                max_tokens=max_tokens,
                sampling=sampling,
                seed=seed,
                write=write,
                progress=bar,
                command=command,
            )
        finally:
            for writer in writers:
                writer.close()
    if as_json:
        import msgspec

        found = {"trace": str(trace), **msgspec.to_builtins(result)}
        click.echo(msgspec.json.encode(found))
        return
    from mtpx_cli.draw import console

    out = console()
    for part in draw_turns(result):
        out.print(part)
    out.print(f"\nTrace: {trace}", soft_wrap=True)


def _depth(depths: tuple[int | str, ...] | None) -> int | None:
    if depths is None:
        return None
    if len(depths) != 1 or not isinstance(depths[0], int):
        raise click.UsageError("--turns runs at one fixed depth: give --depths a single number.")
    return depths[0]


def _questions(
    turns: int,
    prompts: int | None,
    suites: tuple[str, ...],
    files: tuple[Path, ...],
    seed: int,
) -> list[str]:
    """What a person asks: the last message of every prompt, or its text."""
    from mtpx.bench.design import DEFAULT_SUITES, gather
    from mtpx.bench.suites import prompt_file, suite

    if prompts is None:
        names = suites or (() if files else DEFAULT_SUITES)
        there = sum(len(suite(n)) for n in names) + sum(len(prompt_file(f)) for f in files)
        prompts = min(there, CONVERSATIONS * turns)
    found = gather(suites, files, prompts, seed)
    return [p.prompt or "" if p.messages is None else p.messages[-1].content for p in found]


def draw_turns(result: TurnsResult) -> Iterable[RenderableType]:
    """The arms over all warm turns, then the time to the first token turn by turn."""
    from rich.text import Text

    from mtpx_cli.draw import Notes, clean, heading, indented, number, table

    notes = Notes()
    yield Text(
        f"{clean(result.pack)} on {clean(result.device)}, depth {result.depth}, "
        f"{result.conversations} conversations; carry {clean(result.carry)}."
    )
    yield heading("Warm turns (the second and later)")
    rows = [_row(arm, notes) for arm in result.arms]
    columns = ["arm", "TTFT\nms", "× cold", "95 %", "tok/s", "× cold", "95 %", "text\nas cold"]
    yield indented(table(columns, rows))
    yield heading("Acceptance of drafts")
    deepest = max((len(arm.acceptance) for arm in result.arms), default=0)
    drafted = [arm for arm in result.arms if arm.acceptance]
    yield indented(
        table(
            ["arm", *(f"position {j + 1}" for j in range(deepest))],
            [[arm.arm, *_accepted(arm, deepest, notes)] for arm in drafted],
        )
    )
    for arm in drafted:
        if arm.adopted or arm.reused_tokens:
            yield indented(
                Text(
                    f"{arm.arm}: {arm.reused_tokens:,} of {arm.prompt_tokens:,} prompt tokens reused; "
                    f"head: {arm.adopted:,} rows adopted, {arm.appended:,} appended."
                )
            )
    yield heading("Time to the first token, ms")
    arms = [arm.arm for arm in result.arms]
    turns = [
        [
            str(row.turn),
            str(row.prompt_tokens),
            str(row.new_tokens),
            *(
                number(row.ttft_ms[arm]) if arm in row.ttft_ms else notes.dash("no token came")
                for arm in arms
            ),
        ]
        for row in result.turns
    ]
    yield indented(
        table(["turn", "prompt", "new", *(a.replace(" ", "\n", 1) for a in arms)], turns)
    )
    for note in result.notes:
        yield Text(f"{clean(note)}.", style="yellow")
    if notes.lines():
        yield Text("\n" + "\n".join(notes.lines()), style="dim")


def _row(arm: ArmTurns, notes: Notes) -> list[str]:
    return [
        arm.arm,
        notes.show(arm.ttft_ms, "no token came"),
        *_ratio(arm.ttft, notes),
        notes.show(arm.tokens_per_s, "no run was long enough for a rate"),
        *_ratio(arm.speed, notes),
        f"{arm.same_text} of {arm.turns}",
    ]


def _ratio(value: Interval | None, notes: Notes) -> list[str]:
    if value is None:
        return ["1", ""]
    if value.low is None or value.high is None:
        return [f"{value.ratio:.2f}", notes.dash("one conversation has no spread")]
    return [f"{value.ratio:.2f}", f"{value.low:.2f}–{value.high:.2f}"]


def _accepted(arm: ArmTurns, deepest: int, notes: Notes) -> list[str]:
    cells = []
    for j in range(deepest):
        found = arm.acceptance[j].conditional if j < len(arm.acceptance) else None
        if found is None:
            cells.append(notes.dash("no draft was judged at this position"))
        else:
            cells.append(f"{100 * found.rate:.1f} % ({100 * found.low:.1f}–{100 * found.high:.1f})")
    return cells
