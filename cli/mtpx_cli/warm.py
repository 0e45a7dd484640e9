"""`mtpx warm`: compile a model's step for this machine, before anybody waits for an answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.loading import EngineArguments, engine_options, load_model

if TYPE_CHECKING:
    from mtpx.api import Model

TOKENS = 48
"""Of a plain answer that is timed."""

BLOCKS = 3
"""Times that eager and compiled take turns, there and back."""


@click.command()
@click.argument("pack", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON, on one line.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
@engine_options
def warm(pack: str | None, as_json: bool, quiet: bool, engine: EngineArguments) -> None:
    """Compile the step of PACK once, for this machine, and keep it.

    \b
    mtpx warm
    mtpx warm smollm2-135m --precision int4

    What is made holds for a precision, tier, number of threads, context and version: give the options that
    you will run with. Then every command that loads the model takes it. A chat makes it by itself, beside the
    talking. PACK is the last one used unless given.

    \b
    Exit status: 0 it is there, 2 it cannot be had here (decoding is eager, and works), 130 interrupted.
    """
    from mtpx.errors import BackendError

    if engine.compile in ("background", "off"):
        raise click.UsageError("mtpx warm compiles now: leave --compile away.")
    began = time.monotonic()
    now = replace(engine, compile="now")
    with load_model(pack, now, quiet=quiet, complaining=False) as model:
        took = time.monotonic() - began
        info, route = model.engine.info, model.engine.route([1])
        if route.kind != "compiled":
            why = info.details.get("compile", f"the {info.backend} backend compiles nothing ahead")
            raise BackendError(f"{model.pack.name} cannot be compiled ahead here: {why}")
        if info.details.get("device", "cpu") != "cpu":
            raise BackendError(
                f"nothing compiled is kept for {info.device}: --compile now compiles at every start"
            )
        eager = replace(engine, compile="off", precision=info.dtype, tier=info.tier)
        with load_model(pack, eager, quiet=quiet) as other:
            rates = _rates({"eager": other, "compiled": model})
        found: dict[str, Any] = {
            "pack": model.pack.name,
            "device": info.device,
            "precision": info.dtype,
            "tier": info.tier,
            "seconds": round(took, 1),
            "tokens_per_s": {name: round(rate, 1) for name, rate in rates.items()},
        }
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(found))
        return
    click.echo(
        f"{found['pack']} is compiled for {found['device']} in {info.dtype}, {info.tier} tier ({_spelled(took)})"
    )
    click.echo(
        f"plain decoding: {rates['eager']:.1f} tok/s eager, {rates['compiled']:.1f} compiled, "
        f"{rates['compiled'] / rates['eager']:.2f} ×"
    )


def _rates(models: dict[str, Model]) -> dict[str, float]:
    """Tokens a second of plain answers that take turns: the harmonic mean of each one's."""
    tokens = next(iter(models.values())).tokenizer.encode("The sea")
    room = min(model.engine.info.context_limit for model in models.values()) - len(tokens)
    tokens_each = min(TOKENS, room)
    seconds = dict.fromkeys(models, 0.0)
    for block in range(BLOCKS + 1):
        for name in [*models, *reversed(models)]:
            answer = models[name].generate(
                tokens, max_tokens=tokens_each, temperature=0.0, depth="off", ignore_eos=True
            )
            if block and answer.tok_s:  # the first is a warm-up
                seconds[name] += 1 / answer.tok_s
    return {name: 2 * BLOCKS / spent for name, spent in seconds.items()}


def _spelled(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s"
