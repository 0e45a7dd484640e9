"""`mtpx measure`: this machine's cost table and the head's calibration, for the measured planner."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.counting import Bar, counting
from mtpx_cli.loading import EngineArguments, Setting

if TYPE_CHECKING:
    from mtpx.api import Model
    from mtpx.energy import Meter
    from mtpx.policy.calibration import Calibration
    from mtpx.policy.table import CostTable


class DepthRange(click.ParamType[int]):
    """0..K, or K."""

    name = "0..K"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(?:0\.\.)?(\d{1,4})", value)
        if not match:
            self.fail(f"{value!r} is not a range of depths from 0, such as 0..4", param, ctx)
        return int(match[1])


class Counts(click.ParamType[tuple[int, ...]]):
    """Numbers of 1 or more, separated by commas."""

    name = "N[,N...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = value.split(",")
        if not all(re.fullmatch(r"\d{1,9}", part) and int(part) for part in parts):
            self.fail(
                f"{value!r} is not a number of 1 or more, or several, such as 1,2", param, ctx
            )
        return tuple(sorted({int(part) for part in parts}))


@click.command()
@click.argument("pack", required=False)
@click.option("--depths", type=DepthRange(), help="Deepest depth.  [default: the head's limit]")
@click.option(
    "--widths", type=Counts(), default="1", show_default=True, help="Sequences decoded together."
)
@click.option(
    "--context",
    "contexts",
    type=Counts(),
    help="Tokens of context; each bucket (up to 512, 4096, 32768, ...) is a table of its own.  "
    "[default: 512,4096]",
)
@click.option(
    "--calibrate", is_flag=True, help="Also measure how often the head's drafts stand (greedy)."
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="Blocks of rounds a cell; more are quieter.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON, on one line.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
@click.option("--backend", default="auto", metavar="NAME", help="auto, or a backend's name.")
@click.option("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1, …")
@click.option("--threads", type=click.IntRange(min=1), help="Host threads to compute with.")
@click.option("--precision", default="auto", metavar="NAME", help="As of `mtpx run`.")
@click.option("--tier", default="auto", metavar="NAME", help="As of `mtpx run`.")
@click.option(
    "--compile",
    type=click.Choice(["auto", "now", "off"]),
    default="auto",
    help="As of `mtpx run`.",
)
@click.option("--set", "settings", type=Setting(), multiple=True, help="A setting of the backend.")
def measure(
    pack: str | None,
    depths: int | None,
    widths: tuple[int, ...],
    contexts: tuple[int, ...] | None,
    calibrate: bool,
    repeats: int,
    as_json: bool,
    quiet: bool,
    backend: str,
    device: str,
    threads: int | None,
    precision: str,
    tier: str,
    compile: str,
    settings: tuple[tuple[str, str], ...],
) -> None:
    """Measure what a round of PACK costs on this machine, at every depth.

    \b
    mtpx measure --calibrate
    mtpx measure smollm2-135m --depths 0..4 --context 512 --calibrate

    The tables go to the state directory, where `--policy measured` and `mtpx plan` find them. Leave the
    machine alone meanwhile. PACK is the last one used unless given.
    """
    from mtpx.energy import Meter, find_meter
    from mtpx.policy.planner_files import save_calibration, save_table, shelf
    from mtpx_cli.loading import load_model

    _check_buckets(contexts)
    engine = EngineArguments(
        backend, device, threads, None, precision, tier, compile, dict(settings)
    )
    with (
        load_model(pack, engine, quiet=quiet, width=max(widths)) as model,
        counting(quiet) as bar,
    ):
        info = model.engine.info
        deepest = info.head_depth_limit if depths is None else depths
        chosen = contexts or _fitting(info.context_limit)
        found = find_meter(info)
        meter = found if isinstance(found, Meter) else None
        if meter is not None:
            meter.settle()
        tables = _tables(
            model, chosen, deepest, widths, repeats, meter, getattr(found, "reason", ""), bar
        )
        paths = [save_table(table) for table in tables]
        calibration = None
        if calibrate:
            calibration = _calibrated(model, deepest, bar)
            paths.append(save_calibration(calibration))
        if calibration is None:
            calibration = _known(shelf(), info)
    if as_json:
        import msgspec

        click.echo(
            msgspec.json.encode(
                {
                    "tables": [_plain(table) for table in tables],
                    "calibration": calibration,
                    "files": [str(path) for path in paths],
                }
            )
        )
        return
    from mtpx_cli.draw import console
    from mtpx_cli.plan_view import draw_calibration, draw_table

    out = console()
    for table in tables:
        for part in draw_table(table, calibration):
            out.print(part)
    if calibrate and calibration is not None:
        for part in draw_calibration(calibration):
            out.print(part)
    out.print()
    for path in paths:
        # Not wrapped: a path is there to be copied.
        out.print(f"Written: {path}", soft_wrap=True)


def _check_buckets(contexts: tuple[int, ...] | None) -> None:
    from mtpx.policy.table import context_bucket

    buckets: dict[int, int] = {}
    for context in contexts or ():
        other = buckets.setdefault(context_bucket(context), context)
        if other != context:
            raise click.UsageError(
                f"--context {other} and {context} fall into one bucket, up to "
                f"{context_bucket(context)} tokens, which has one table: give one of them."
            )


def _fitting(limit: int) -> tuple[int, ...]:
    from mtpx.measure import CONTEXTS

    return tuple(c for c in CONTEXTS if c <= limit) or (limit,)


def _tables(
    model: Model,
    contexts: tuple[int, ...],
    depth: int,
    widths: tuple[int, ...],
    repeats: int,
    meter: Meter | None,
    no_meter: str,
    bar: Bar,
) -> list[CostTable]:
    from mtpx.measure import MeasureOptions, Progress, blocks_of, measure_table

    options = MeasureOptions(repeats=repeats)
    blocks = blocks_of(depth, widths, options)
    tables: list[CostTable] = []
    for number, context in enumerate(contexts):

        def show(now: Progress, before: int = number * blocks) -> None:
            bar(before + now.done, blocks * len(contexts), now.now)

        tables.append(
            measure_table(
                model,
                context,
                depth,
                widths=widths,
                options=options,
                meter=meter,
                no_meter=no_meter,
                progress=show,
            )
        )
    return tables


def _calibrated(model: Model, depth: int, bar: Bar) -> Calibration:
    from mtpx.calibrate import calibrate

    return calibrate(
        model, depth, progress=lambda done, total: bar(done, total, "calibrating the head")
    )


def _known(found: Any, info: Any) -> Calibration | None:
    """The head's calibration from before, if there is one."""
    from mtpx.errors import PolicyError
    from mtpx.policy.planner_files import matching_calibration

    try:
        return matching_calibration(found, info)
    except PolicyError:
        return None


def _plain(table: CostTable) -> dict[str, Any]:
    return {
        "key": table.key,
        "cells": table.cells,
        "left_out": table.left_out,
        "rail": table.rail,
        "about": table.about,
    }
