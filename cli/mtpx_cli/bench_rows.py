"""`mtpx bench --rows 1..K`: what a target forward over so many rows costs here."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.counting import counting
from mtpx_cli.loading import EngineArguments, load_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from mtpx.api import Model
    from mtpx.bench.rows import Ratio, RowsArm, RowsResult, Setup

SHAPING = {"pack", "rows", "repeats", "as_json", "quiet"}
"""Parameters of `mtpx bench`, apart from those of the engine, that mean something here."""


class RowRange(click.ParamType[int]):
    """1..K, or K."""

    name = "1..K"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(?:1\.\.)?([1-9]\d{0,3})", value)
        if not match:
            self.fail(f"{value!r} is not a range of rows from 1, such as 1..8", param, ctx)
        return int(match[1])


def bench_rows(
    rows: int,
    pack: str | None,
    engine: EngineArguments,
    *,
    repeats: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run it and show what was found."""
    from mtpx.bench import rows as bench

    compiled = engine.compile != "off"
    if repeats is not None and repeats < 1:
        raise click.UsageError(f"--repeats is 1 or more, got {repeats}.")
    options = bench.RowsOptions(
        rows, engine.precision, engine.tier, compiled, repeats or bench.REPEATS
    )

    def load(setup: Setup) -> Model:
        how = engine.compile if setup.compiled else "off"
        asked = replace(engine, precision=setup.precision, tier=setup.tier, compile=how)
        return load_model(pack, asked, quiet=quiet)

    with counting(quiet) as bar:
        result = bench.bench_rows(load, options, progress=bar)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(result))
        return
    from mtpx_cli.draw import console

    out = console()
    for part in draw_rows(result):
        out.print(part)


def refuse_beside_rows(ctx: click.Context, engine: set[str]) -> None:
    """Options that shape the other benches and would do nothing in this one."""
    for option in ctx.command.params:
        name = option.name or ""
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in SHAPING | engine:
            raise click.UsageError(
                f"--rows is a bench of its own, without {max(option.opts, key=len)}."
            )


def draw_rows(result: RowsResult) -> Iterable[RenderableType]:
    """One table a precision and route, its tiers side by side; then what the tier costs."""
    from rich.text import Text

    from mtpx_cli.draw import clean, heading, indented, number, table

    yield Text(
        f"{clean(result.pack)} on {clean(result.device)}, from {result.context} tokens of context on."
    )
    groups: dict[tuple[str, str], list[RowsArm]] = {}
    for arm in result.arms:
        if arm.cells:
            groups.setdefault((arm.precision, arm.route), []).append(arm)
    for (precision, route), arms in groups.items():
        yield heading(f"{precision}, {route}")
        columns = ["rows"]
        for arm in arms:
            columns += [f"{arm.tier} ms", "p10–p90", "× one"]
        by_rows = [{cell.rows: cell for cell in arm.cells} for arm in arms]
        lines = []
        for rows in sorted(set().union(*by_rows)):
            line = [str(rows)]
            for cells in by_rows:
                cell = cells.get(rows)
                if cell is None:
                    line += [""] * 3
                    continue
                line += [number(cell.ms), f"{number(cell.p10_ms)}–{number(cell.p90_ms)}"]
                line.append(f"{cell.relative.ratio:.2f}")
            lines.append(line)
        yield indented(table(columns, lines, left=0))
    if result.prices:
        yield heading("What the row-invariant tier costs a plain round")
        lines = [
            [f"{p.precision}, {p.route}", f"{p.price.ratio:.3f}", _range(p.price)]
            for p in result.prices
        ]
        yield indented(table(["", "× standard", "range"], lines))
    yield Text(
        "\nms: medians of a target forward and of what judges its drafts, without the head's own steps; "
        "one row is a plain round. × one: in rounds of one row. range: the least and the greatest "
        "of the repeats; --json has it for every row.",
        style="dim",
    )
    for reason in result.left_out:
        yield Text(f"Left out: {clean(reason)}", style="yellow")


def _range(ratio: Ratio) -> str:
    return f"{ratio.low:.2f}–{ratio.high:.2f}"
