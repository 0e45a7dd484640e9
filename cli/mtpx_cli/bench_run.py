"""What a bench runs on, and the running of it: the models, a line of progress, a trace."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from mtpx_cli.loading import EngineArguments, load_model
from mtpx_cli.terminal import complain, note

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mtpx.api import Model
    from mtpx.bench.design import Design
    from mtpx.bench.models import Models
    from mtpx.bench.records import BenchOptions
    from mtpx.bench.result import BenchResult
    from mtpx.bench.suites import BenchPrompt
    from mtpx.precision import Precision
    from mtpx.trace.schema import Record


def load_models(
    pack: str | None, engine: EngineArguments, against: str, *, quiet: bool
) -> AbstractContextManager[Models]:
    """The model, and what it is held `against`: "fastest", "same", or "" where nothing is judged."""
    from mtpx.bench.models import alone, beside_fastest

    def load(precision: str) -> Model:
        return load_model(pack, replace(engine, precision=precision), quiet=quiet)

    if against == "fastest":
        return beside_fastest(load, engine.precision, _declared(pack))
    why = f"plain decode in other precisions was not timed (--against {against})" if against else ""
    return alone(load, engine.precision, why)


def _declared(pack: str | None) -> list[Precision]:
    """The precisions that the pack's manifest declares good. What is no pack is for loading to refuse."""
    from mtpx import packs
    from mtpx.errors import PackError

    try:
        found = packs.find(packs.default_name() if pack is None else pack)
    except PackError:
        return []
    return list(found.manifest.precisions) if isinstance(found, packs.Entry) else []


def run_plan(
    models: Models,
    plan: Design,
    prompts: list[BenchPrompt],
    options: BenchOptions,
    path: Path,
    *,
    quiet: bool,
) -> BenchResult:
    """Run `plan` on the models, with a trace at `path`. Raises as `run_bench` does."""
    from mtpx.bench.run import run_bench
    from mtpx.trace.writer import TraceWriter
    from mtpx_cli.bench_view import progress_line

    plan = _held_against(models, plan, quiet=quiet)
    if not quiet:
        _note_eager(models)
    with ExitStack() as stack:
        line = stack.enter_context(progress_line(quiet))
        writers: list[TraceWriter] = []

        def write(record: Record) -> None:
            # Opened with the first record: a bench that is refused leaves no empty trace behind.
            if not writers:
                writers.append(stack.enter_context(TraceWriter(path, warn=complain)))
            writers[0].write(record)

        return run_bench(
            models.model,
            plan,
            prompts,
            options,
            fastest=models.fastest,
            write=write,
            progress=line,
            warn=complain,
        )


def _note_eager(models: Models) -> None:
    """A bench of what is slower than it need be is worth a word."""
    for model in filter(None, (models.model, models.fastest)):
        info = model.engine.info
        if info.details.get("compile") == "not made":
            note(
                f"decoding in {info.dtype} is eager here: mtpx warm --precision {info.dtype} --tier {info.tier} "
                "(and this pack, --threads and --context) compiles the step once, which is faster"
            )


def _held_against(models: Models, plan: Design, *, quiet: bool) -> Design:
    """The plan with plain decode in the fastest precision, or with the reason why without; what that costs
    is said before it is timed."""
    import msgspec

    from mtpx.bench.design import against_fastest
    from mtpx.bench.models import fastest_of

    fastest = fastest_of(models)
    if fastest is None:
        if models.missed and not quiet:
            complain(models.no_fastest)
        return msgspec.structs.replace(plan, no_fastest=models.no_fastest)
    if not quiet:
        note(
            f"plain decode in {fastest.precision}, the fastest precision here, is timed in every block, too: "
            "half as long again, with two copies of the model in memory (--against same leaves it out)"
        )
    return against_fastest(plan, fastest)
