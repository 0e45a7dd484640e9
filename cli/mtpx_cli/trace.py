"""`mtpx trace`: what a run recorded, read back."""

from __future__ import annotations

import click


@click.group()
def trace() -> None:
    """Read what runs recorded."""


@trace.command()
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, on one line.")
@click.option(
    "--margin",
    type=float,
    help="What MTP must gain to pay, as a fraction (default: the run's own, else 0.02).",
)
def report(files: tuple[str, ...], as_json: bool, margin: float | None) -> None:
    """Report on traces: does MTP pay, what ran, rounds, acceptance, anomalies.

    Without FILE, the newest trace in the state directory.
    """
    from mtpx.trace.summary import summarise_files

    summary = summarise_files(files or _newest(), margin)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(summary))
        return
    from mtpx_cli.draw import console
    from mtpx_cli.report import draw_report

    out = console()
    for part in draw_report(summary):
        out.print(part)


def _newest() -> tuple[str]:
    from mtpx.paths import traces_dir
    from mtpx.trace.files import newest_trace

    return (str(newest_trace(traces_dir())),)
