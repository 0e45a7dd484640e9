"""`mtpx trace calibrate`: how often a head's drafts stand, learned from what runs recorded."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path())
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to.  [default: the state directory, where the planner looks]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the calibration as JSON, on one line.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
def calibrate(files: tuple[str, ...], output: Path | None, as_json: bool, quiet: bool) -> None:
    """Learn from traces how often the head's drafts stand, by confidence and by position.

    Writes the head's calibration, which `--policy measured` and `mtpx plan` read, and prints its
    reliability: what was observed beside what is predicted. All FILEs must be of one head, recorded
    with its confidences. Without FILE, the newest trace in the state directory.

    \b
    mtpx trace calibrate
    mtpx trace calibrate --output head.calibration.toml
    """
    from mtpx.calibrate import calibrate_traces
    from mtpx.policy.planner_files import save_calibration
    from mtpx_cli.loading import progress
    from mtpx_cli.trace import newest

    with progress("reading", quiet=quiet) as report:
        found = calibrate_traces(files or (newest(),), report)
    if output is None:
        path = save_calibration(found)
    else:
        path = output
        found.write(path)
    if as_json:
        import msgspec

        click.echo(
            msgspec.json.encode(
                {"calibration": found, "reliability": found.reliability(), "file": str(path)}
            )
        )
        return
    from mtpx_cli.draw import console
    from mtpx_cli.plan_view import draw_calibration

    out = console()
    for part in draw_calibration(found):
        out.print(part)
    out.print()
    out.print(f"Written: {path}", soft_wrap=True)
