"""`mtpx head`: make a model an MTP head of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.names import complete_pack
from mtpx_cli.terminal import is_terminal, note, say

if TYPE_CHECKING:
    from types import ModuleType


@click.group()
def head() -> None:
    """Train an MTP head for a model that has none.

    \b
    mtpx head train smollm2-135m --out my-pack --minutes 30
    """


@head.command()
@click.argument("pack", metavar="PACK|DIR", shell_complete=complete_pack)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for the pack with its new head; new, or of an earlier run.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for answers and checkpoints.  [default: in mtpx's state directory]",
)
@click.option(
    "--tokens",
    type=click.IntRange(1_000, 1_000_000_000),
    default=1_000_000,
    show_default=True,
    help="Answer tokens to generate and learn from.",
)
@click.option(
    "--epochs",
    type=click.FloatRange(0.01, 1000),
    default=5.0,
    show_default=True,
    help="How often to go through them.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0.1, 100_000),
    help="Time for the whole: what does not fit in is left out.",
)
@click.option(
    "--draft-vocab",
    type=click.IntRange(16, 1_000_000),
    default=8192,
    show_default=True,
    help="Tokens the head may draft: the most frequent ones of the answers.",
)
@click.option(
    "--rate",
    type=click.FloatRange(1e-7, 1.0),
    default=2e-3,
    show_default=True,
    help="Peak learning rate.",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True)
@click.option("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1, …")
@click.option("--threads", type=click.IntRange(min=1), help="Host threads to compute with.")
@click.option(
    "--judge",
    "judged",
    type=click.IntRange(min=1),
    help="Prompts of every suite to measure acceptance over.  [default: all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, on one line.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
def train(
    pack: str,
    out: Path,
    work: Path | None,
    tokens: int,
    epochs: float,
    minutes: float | None,
    draft_vocab: int,
    rate: float,
    seed: int,
    device: str,
    threads: int | None,
    judged: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train an MTP head for PACK from the model's own answers, and write a pack with it to --out.

    PACK is a pack's name, or a folder or .gguf file of a model of the Llama kind with a chat template.
    The same command goes on where it was stopped. Without --minutes, the same seed on the same machine
    gives the same head.

    \b
    mtpx head train smollm2-135m --out my-pack --minutes 30
    mtpx bench ./my-pack --plain-baseline
    """
    training = _training()
    recipe = training.Recipe(
        tokens=tokens,
        epochs=epochs,
        minutes=minutes,
        draft_vocab=draft_vocab,
        rate=rate,
        seed=seed,
    )
    try:
        with stages(quiet) as stage:
            outcome = training.train(
                pack,
                out,
                work,
                recipe,
                device=device,
                threads=threads,
                judged=judged,
                stage=stage,
            )
    except KeyboardInterrupt:
        note("Stopped; the same command goes on from where this was.")
        raise
    if as_json:
        import msgspec

        say(msgspec.json.encode(outcome, enc_hook=str).decode())
        return
    _show(outcome)
    if not quiet:
        note(f"The pack is in {out}: mtpx bench {_as_path(out)} --plain-baseline", dim=True)


def _training() -> ModuleType:
    """The trainer, which needs torch."""
    import importlib

    from mtpx.errors import BackendError

    try:
        return importlib.import_module("mtpx_train")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise BackendError(
            f"training needs {error.name}, which is not installed: pip install {error.name}"
        ) from None


def _show(outcome: Any) -> None:
    from mtpx_cli.draw import clean, console, table

    rows = [
        [clean(name), *(f"{rate:.2f}" for rate in rates)]
        for name, rates in [("prompts written by hand", outcome.held_out), *outcome.suites.items()]
    ]
    out = console()
    out.print(
        table(["held-out acceptance", "position 1", "2, if 1 stood", "3, if 2 stood"], rows, left=1)
    )
    rows = [[f"{seen:,}", *(f"{rate:.2f}" for rate in rates)] for seen, rates in outcome.curve]
    out.print(table(["estimated after tokens", "position 1", "2", "3"], rows, left=0))


def _as_path(folder: Path) -> str:
    import shlex

    text = str(folder)
    return shlex.quote(text if "/" in text else f"./{text}")


Stage = Callable[[str, int, int, str], None]


@contextmanager
def stages(quiet: bool) -> Iterator[Stage]:
    """A callback (stage, done, total, remark): a bar with the time left on a terminal; elsewhere a line
    at a stage's beginning, every tenth of it and its end; nothing when quiet."""
    import sys

    if quiet:
        yield lambda stage, done, total, remark: None
    elif not is_terminal(sys.stderr):
        yield Lines(time.monotonic)
    else:
        with _bars() as stage:
            yield stage


@contextmanager
def _bars() -> Iterator[Stage]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description:<17}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}", markup=False),
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        speed_estimate_period=300,
    )
    tasks: dict[str, Any] = {}

    def stage(name: str, done: int, total: int, remark: str) -> None:
        if name not in tasks:
            # Begun where it was left: what was there before says nothing about the pace.
            tasks[name] = bar.add_task(name, total=total, completed=done, remark="")
        bar.update(tasks[name], completed=done, total=total, remark=remark)

    with bar:
        yield stage


class Lines:
    """Stages for logs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stage, self._tenth = "", -1
        self._began, self._from = 0.0, 0

    def __call__(self, name: str, done: int, total: int, remark: str) -> None:
        now = self._clock()
        if name != self._stage:
            self._stage, self._tenth, self._began, self._from = name, -1, now, done
        tenth = 10 * done // max(1, total)
        if tenth == self._tenth:
            return
        self._tenth = tenth
        spent, made = now - self._began, done - self._from
        left = f", {_span(spent / made * (total - done))} left" if made and done < total else ""
        told = f" ({remark})" if remark else ""
        click.echo(f"{name}: {100 * done // max(1, total)} %{left}{told}", err=True)


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
