"""`mtpx trace`: what a run recorded, read back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import click

ELSEWHERE = {
    "tail": ("mtpx_cli.tail", "tail"),
    "calibrate": ("mtpx_cli.calibrate", "calibrate"),
}
"""Subcommands with a file of their own, imported when they are asked for."""


class TraceGroup(click.Group):
    """A group some of whose commands live elsewhere."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        there = [name for name, (module, _) in ELSEWHERE.items() if find_spec(module)]
        return [*super().list_commands(ctx), *there]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, attribute = ELSEWHERE.get(cmd_name, ("", ""))
        if not module or not find_spec(module):
            return super().get_command(ctx, cmd_name)
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


F = TypeVar("F", bound=Callable[..., object])


def reads_traces(command: F) -> F:
    """Add --quiet to a command that shows, on stderr, how far it has read when that takes a while."""
    return click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")(
        command
    )


@click.group(cls=TraceGroup)
def trace() -> None:
    """Read what runs recorded.

    \b
    mtpx trace report
    """


@trace.command()
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, on one line.")
@click.option(
    "--html", type=click.Path(path_type=Path), help="Write a page with pictures, one offline file."
)
@click.option(
    "--margin",
    type=float,
    help="What MTP must gain to pay, as a fraction (default: the run's own, else 0.02).",
)
@reads_traces
def report(
    files: tuple[str, ...], as_json: bool, html: Path | None, margin: float | None, quiet: bool
) -> None:
    """Report on traces: does MTP pay, what ran, rounds, acceptance, anomalies.

    Without FILE, the newest trace in the state directory.

    \b
    mtpx trace report
    mtpx trace report --html report.html
    """
    from mtpx.trace.summary import summarise_files
    from mtpx_cli.loading import progress

    with progress("reading", quiet=quiet) as told:
        summary = summarise_files(files or (newest(),), margin, told)
    if html is not None:
        from mtpx.trace.page import write_page

        write_page(html, summary)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(summary))
        return
    from mtpx_cli.draw import console
    from mtpx_cli.report import draw_report

    out = console()
    for part in draw_report(summary):
        out.print(part, soft_wrap=isinstance(part, str))
    if html is not None:
        out.print(f"Page: {html}", soft_wrap=True)


@trace.command()
@click.argument("file", required=False, type=click.Path())
@click.option(
    "--policy",
    "names",
    multiple=True,
    required=True,
    metavar="NAME",
    help="adaptive, a depth such as 2, or module:Class of your own. May be repeated.",
)
@click.option(
    "--draws", type=click.IntRange(1, 1000), default=5, show_default=True, help="Runs to average."
)
@click.option("--json", "as_json", is_flag=True, help="Print the estimates as JSON, on one line.")
@reads_traces
def replay(
    file: str | None, names: tuple[str, ...], draws: int, as_json: bool, quiet: bool
) -> None:
    """Estimate what another policy would have delivered on FILE.

    It is driven over the recorded costs and acceptances. An estimate: rounds the trace never took come
    from its neighbours. Without FILE, the newest trace in the state directory.

    \b
    mtpx trace replay --policy 2 --policy adaptive
    """
    from mtpx.bench.policies import policy_named
    from mtpx.trace.reader import read
    from mtpx.trace.recording import recording
    from mtpx.trace.replay import replay as drive
    from mtpx_cli.loading import progress

    for name in names:
        policy_named(name)  # a wrong name is refused before a long trace is read
    with progress("reading", quiet=quiet) as told:
        recorded = recording(read(file or newest(), progress=told))
    found = [drive(recorded, partial(policy_named, name), draws=draws) for name in names]
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(found))
        return
    from mtpx_cli.draw import console
    from mtpx_cli.replays import draw_replays

    out = console()
    for part in draw_replays(found):
        out.print(part)


@trace.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON, on one line.")
@reads_traces
def diff(a: str, b: str, as_json: bool, quiet: bool) -> None:
    """Set the last run of trace A beside the last run of trace B.

    What differed in what ran, and the numbers side by side. Not a verdict: that takes matched runs.

    \b
    mtpx run "Name three rivers." --depth 1 --max-tokens 40 --trace one.jsonl
    mtpx run "Name three rivers." --depth 2 --max-tokens 40 --trace two.jsonl
    mtpx trace diff one.jsonl two.jsonl
    """
    from mtpx.trace.diff import compare
    from mtpx.trace.summary import summarise_files
    from mtpx_cli.loading import progress

    with progress("reading", quiet=quiet) as told:
        one, other = (file.runs[-1] for file in summarise_files([a, b], progress=told).files)
    found = compare(one, other)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(found))
        return
    from mtpx_cli.draw import console
    from mtpx_cli.replays import draw_diff

    out = console()
    for part in draw_diff(found, a, b):
        out.print(part)


@trace.command()
@click.argument("file", required=False, type=click.Path())
@click.option("--csv", "as_csv", is_flag=True, required=True, help="Comma-separated values.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where to.  [default: standard output]"
)
@reads_traces
def export(file: str | None, as_csv: bool, out: Path | None, quiet: bool) -> None:
    """Write the rounds of FILE as a table, one row a sequence and round.

    Without FILE, the newest trace in the state directory.

    \b
    mtpx trace export --csv --out rounds.csv
    """
    import sys

    from mtpx.errors import TraceError
    from mtpx.trace.export import write_csv
    from mtpx.trace.reader import read
    from mtpx_cli.loading import progress

    with progress("reading", quiet=quiet or out is None) as told:
        records = read(file or newest(), progress=told)
        if out is None:
            write_csv(records, sys.stdout)
            return
        try:
            with out.open("w", newline="", encoding="utf-8") as target:
                write_csv(records, target)
        except OSError as error:
            raise TraceError(f"{out} cannot be written: {error.strerror or error}") from error


def newest() -> str:
    """The newest trace in the state directory."""
    from mtpx.paths import traces_dir
    from mtpx.trace.files import newest_trace

    return str(newest_trace(traces_dir()))
