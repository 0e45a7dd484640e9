"""Loading a model for a command: the options all commands share, and the progress line."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from mtpx_cli.terminal import complain, is_terminal, note

if TYPE_CHECKING:
    from mtpx.api import Model

F = TypeVar("F", bound=Callable[..., Any])

PATIENCE_S = 0.5
"""Work that is over sooner needs no progress line."""


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """What every command that loads a model lets a person say about how."""

    backend: str = "auto"
    device: str = "auto"
    threads: int | None = None
    context: int | None = None
    precision: str = "auto"
    tier: str = "auto"
    compile: str = "auto"
    settings: dict[str, str] = field(default_factory=dict)


class Setting(click.ParamType[tuple[str, str]]):
    """KEY=VALUE."""

    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, sign, given = str(value).partition("=")
        if not key or not sign:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, given


_OPTIONS = [
    click.option("--backend", default="auto", metavar="NAME", help="auto, or a backend's name."),
    click.option("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1, …"),
    click.option("--threads", type=click.IntRange(min=1), help="Host threads to compute with."),
    click.option(
        "--context", type=click.IntRange(min=2), help="Tokens to make room for (prompt and answer)."
    ),
    click.option(
        "--precision",
        default="auto",
        metavar="NAME",
        help="auto (the fastest that the pack declares good), float32, bfloat16, int8 or int4.",
    ),
    click.option(
        "--tier",
        default="auto",
        metavar="NAME",
        help="standard, row-invariant (drafting cannot change a bit of the logits), or auto.",
    ),
    click.option(
        "--compile",
        type=click.Choice(["auto", "now", "background", "off"]),
        default="auto",
        help="auto (what `mtpx warm` made), now (made if it is not there: minutes, once), background (made "
        "with what time is left, used from the next answer on) or off.",
    ),
    click.option(
        "--set",
        "settings",
        type=Setting(),
        multiple=True,
        help="A setting of the backend, such as product=rows (torch: its own matrix products).",
    ),
]

ENGINE_NAMES = {
    "backend",
    "device",
    "threads",
    "context",
    "precision",
    "tier",
    "compile",
    "settings",
}
"""Names of the parameters that `engine_options` adds."""


def engine_options(command: F) -> F:
    """Add --backend, --device, --threads, --context, --precision, --tier, --compile and --set to a command,
    which receives them as one argument, `engine`."""

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        backend: str,
        device: str,
        threads: int | None,
        context: int | None,
        precision: str,
        tier: str,
        compile: str,
        settings: tuple[tuple[str, str], ...],
        **options: Any,
    ) -> Any:
        engine = EngineArguments(
            backend, device, threads, context, precision, tier, compile, dict(settings)
        )
        return command(*args, engine=engine, **options)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return cast(F, wrapped)


def load_model(
    pack: str | None,
    engine: EngineArguments,
    *,
    quiet: bool,
    width: int = 1,
    complaining: bool = True,
) -> Model:
    """The model, for `width` sequences together, with a progress line on stderr while weights are
    fetched or checked, or its step is compiled. That it could not be is said if `complaining`."""
    from mtpx.api import load
    from mtpx_cli.defaults import require_settings

    require_settings()
    with fetching(quiet=quiet) as report, _compiling(engine, quiet) as bar:
        model = load(
            pack,
            backend=engine.backend,
            device=engine.device,
            threads=engine.threads,
            context=engine.context,
            precision=engine.precision,
            tier=engine.tier,
            compile=engine.compile,
            on_compile=bar,
            extra=engine.settings,
            max_width=width,
            warn=None if quiet else complain,
            progress=report,
        )
    state = model.engine.info.details.get("compile", "ready")
    if engine.compile == "now" and state != "ready" and complaining and not quiet:
        complain(f"nothing is compiled, decoding is eager: {state}")
    return model


@contextmanager
def _compiling(engine: EngineArguments, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Progress of compiling, from the first graph on. Ctrl-C in the middle of it says that nothing is lost."""
    from contextlib import ExitStack

    from mtpx_cli.counting import Bar, counting

    midway, bar = False, cast("Bar | None", None)
    with ExitStack() as stack:

        def heard(done: int, total: int, what: str) -> None:
            nonlocal midway, bar
            midway = done < total
            if bar is None:
                bar = stack.enter_context(counting(quiet))
            bar(done, total, what)

        try:
            yield heard
        except KeyboardInterrupt:
            if midway and not quiet:
                note("stopped; what was compiled is kept, and the same command goes on from there")
            raise


@contextmanager
def fetching(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Progress of a fetch. Ctrl-C in the middle of it says that nothing is lost."""
    midway = False
    try:
        with progress("fetching and checking the model", quiet=quiet) as report:

            def heard(done: int, total: int) -> None:
                nonlocal midway
                midway = 0 < done < total
                if report is not None:
                    report(done, total)

            yield heard
    except KeyboardInterrupt:
        if midway and not quiet:
            note("stopped; what was fetched is kept, and the same command goes on from there")
        raise


@contextmanager
def progress(title: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """What takes longer than a moment is shown on stderr: a bar in bytes on a terminal, a line every
    tenth without one; nothing when quiet."""
    if quiet:
        yield None
    elif not is_terminal(sys.stderr):
        yield _Patient(_Lines(title))
    else:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task(title, total=None, start=True)

        def report(done: int, total: int) -> None:
            bar.start()
            bar.update(task, completed=done, total=total)

        try:
            yield _Patient(report)
        finally:
            bar.stop()


class _Patient:
    """Passes reports on once they have been coming for a moment: a digest of a small file is no news."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report, self._first = report, math.nan

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if math.isnan(self._first):
            self._first = now
        if now - self._first >= PATIENCE_S:
            self._report(done, total)


class _Lines:
    """Progress for logs: a line a tenth of the way."""

    def __init__(self, title: str) -> None:
        self._title, self._last = title, -1

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 0
        if tenth != self._last:
            self._last = tenth
            note(f"{self._title}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
