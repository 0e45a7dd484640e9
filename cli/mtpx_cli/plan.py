"""`mtpx plan`: what the measured planner would choose, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.loading import EngineArguments, engine_options

if TYPE_CHECKING:
    from mtpx.policy.calibration import Calibration
    from mtpx.policy.planner import Objective
    from mtpx.policy.table import CostTable

HOLDS, MISSED = 0, 1
"""Exit statuses of `--check`; 2 is an error."""


class Confidences(click.ParamType[tuple[list[float], int]]):
    """One sequence's drafts: log-probabilities, or xN for N drafts without confidences."""

    name = "LOGP[,LOGP...]|xN"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[list[float], int]:
        if isinstance(value, tuple):
            return value
        if match := re.fullmatch(r"x(\d{1,4})", value):
            return [], int(match[1])
        try:
            said = [float(part) for part in value.split(",")]
        except ValueError:
            said = []
        if not said or not all(-1e9 < one <= 0.0 for one in said):
            self.fail(
                f"{value!r} is neither log-probabilities (0 or less), such as -0.1,-0.7, nor xN, N drafts "
                "without confidences",
                param,
                ctx,
            )
        return said, len(said)


@click.command()
@click.argument("table", required=False)
@click.argument("calibration", required=False, type=click.Path(path_type=Path))
@click.option(
    "--width", type=click.IntRange(min=1), help="Sequences decoded together.  [default: 1]"
)
@click.option(
    "--confidences",
    "drafts",
    type=Confidences(),
    multiple=True,
    help="A sequence's drafts as the head is sure of them: log-probabilities, or xN for N drafts "
    "without. Once a sequence.",
)
@click.option(
    "--objective",
    type=click.Choice(["speed", "balanced", "energy"]),
    default="speed",
    show_default=True,
)
@click.option(
    "--slack",
    type=float,
    default=0.1,
    show_default=True,
    help="Speed given up for energy, as a fraction; objective speed gives up none.",
)
@click.option(
    "--max-width",
    type=click.IntRange(min=1),
    help="Width above which nobody drafts.  [default: none]",
)
@click.option(
    "--check",
    is_flag=True,
    help="Load the pack, decode, and compare with the plan: exit status 0 within 10 %, 1 if not.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, on one line.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
@engine_options
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    table: str | None,
    calibration: Path | None,
    width: int | None,
    drafts: tuple[tuple[list[float], int], ...],
    objective: Objective,
    slack: float,
    max_width: int | None,
    check: bool,
    as_json: bool,
    quiet: bool,
    engine: EngineArguments,
) -> None:
    """Show the depth the measured planner chooses from TABLE and CALIBRATION, and why.

    TABLE is a file of `mtpx measure`, a published one in its publisher's form, or the name of one that
    comes with mtpx (gb10-qwen3.8-27b). Without it the newest measured one is taken, the shortest context
    first, and without CALIBRATION the one that belongs to it.

    \b
    mtpx plan gb10-qwen3.8-27b --width 4 --objective energy --slack 0
    mtpx plan gb10-qwen3.8-27b --confidences -0.05,-0.4 --confidences -1.2,-2.0
    """
    from mtpx.policy.planner import check_objective, plan_rows, propose_depth

    n = _width(width, drafts)
    costs, fitted, path = _given(table, calibration)
    check_objective(objective, slack, costs)
    choice = propose_depth(
        costs, fitted, n, slack, n if max_width is None else max_width, objective=objective
    )
    rows = None
    if drafts:
        k_max = max(count for _, count in drafts)
        rows = plan_rows(
            costs,
            fitted,
            [said for said, _ in drafts],
            [count for _, count in drafts],
            k_max,
            n * k_max,
            slack,
            objective=objective,
        )
    found = None
    if check:
        found = _check(costs, fitted, path, objective, slack, engine, quiet)
    if as_json:
        import msgspec

        click.echo(
            msgspec.json.encode(
                {
                    "key": costs.key,
                    "width": n,
                    "objective": objective,
                    "slack": slack,
                    "depth": choice.depth,
                    "zero": choice.zero,
                    "options": [option._asdict() for option in choice.options],
                    "rows": rows._asdict() | {"options": [o._asdict() for o in rows.options]}
                    if rows
                    else None,
                    "check": found,
                }
            )
        )
    else:
        from mtpx_cli.draw import clean, console
        from mtpx_cli.plan_view import draw_check, draw_choice, draw_rows

        out = console()
        source = costs.about.get("source", "")
        out.print(
            clean(f"{costs.key.pack} on {costs.key.device}" + (f" ({source})" if source else ""))
        )
        if not costs.covers(n) and choice.zero != "by_cap":
            widths = ", ".join(map(str, costs.widths))
            out.print(f"Measured at widths {widths}; width {n} is read from the nearest.")
        for part in draw_choice(choice, n, objective, slack):
            out.print(part)
        for part in draw_rows(rows, objective) if rows else ():
            out.print(part)
        for part in draw_check(found) if found else ():
            out.print(part)
    if found is not None:
        ctx.exit(HOLDS if found.holds else MISSED)


def _width(width: int | None, drafts: tuple[tuple[list[float], int], ...]) -> int:
    if drafts and width not in (None, len(drafts)):
        raise click.UsageError(
            f"--confidences was given {len(drafts)} times, once a sequence, and --width is {width}."
        )
    return len(drafts) or width or 1


def _given(
    table: str | None, calibration: Path | None
) -> tuple[CostTable, Calibration, Path | None]:
    """The table, the calibration that goes with it, and the table's file if it has one."""
    from mtpx.errors import PolicyError
    from mtpx.policy.calibration import read_calibration
    from mtpx.policy.planner_files import shelf
    from mtpx.policy.published import published, published_names, read_any_table

    path: Path | None = None
    fitted: Calibration | None = None
    found = shelf()
    if table is None:
        if not found.tables:
            raise PolicyError(
                "nothing was measured on this machine yet; `mtpx measure --calibrate` does it, or name a "
                f"published table: {', '.join(published_names())}"
            )
        path, costs = _shortest_of_the_newest(found.tables)
    elif table in published_names():
        costs, fitted = published(table)
    else:
        path = Path(table)
        costs, fitted = read_any_table(path)
    if calibration is not None:
        fitted = read_calibration(calibration)
    if fitted is None:
        mine = [c for _, c in found.calibrations if c.about.get("pack") == costs.key.pack]
        if not mine:
            raise PolicyError(
                f"there is no calibration of the head of {costs.key.pack}; give its file after the "
                "table, or make one: `mtpx measure --calibrate`"
            )
        fitted = mine[0]
    return costs, fitted, path


def _shortest_of_the_newest(tables: list[tuple[Path, CostTable]]) -> tuple[Path, CostTable]:
    """One measurement leaves a table a context; a conversation begins in the shortest."""
    from msgspec.structs import replace

    key = tables[0][1].key
    same = [(p, t) for p, t in tables if replace(t.key, context=key.context) == key]
    return min(same, key=lambda found: found[1].key.context)


def _check(
    costs: CostTable,
    fitted: Calibration,
    path: Path | None,
    objective: Objective,
    slack: float,
    engine: EngineArguments,
    quiet: bool,
) -> Any:
    """Decode with the plan on the pack it was measured for."""
    from mtpx.calibrate import check_plan
    from mtpx.errors import PolicyError
    from mtpx.policy.calibration import HeadIdentity
    from mtpx.policy.measured import MeasuredPlanner
    from mtpx.policy.table import TableKey
    from mtpx_cli.counting import counting
    from mtpx_cli.loading import load_model

    if path is None:
        raise PolicyError(
            "a published table cannot be checked here: it was measured on another machine; "
            "`mtpx measure --calibrate` makes one for this one"
        )
    with load_model(costs.key.pack, engine, quiet=quiet) as model, counting(quiet) as bar:
        info = model.engine.info
        costs.check(TableKey.of(info, costs.key.context))
        fitted.check(HeadIdentity.of(info))
        planner = MeasuredPlanner(costs, fitted, objective=objective, slack=slack)
        return check_plan(
            model, planner, progress=lambda done, total: bar(done, total, "decoding with the plan")
        )
