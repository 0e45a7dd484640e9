"""`mtpx doctor`: what this machine is, what runs on it, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.choosing import Chosen, depth_options
from mtpx_cli.loading import EngineArguments, engine_options, load_model
from mtpx_cli.names import complete_pack
from mtpx_cli.pack import size
from mtpx_cli.terminal import say

if TYPE_CHECKING:
    from mtpx.api import Model
    from mtpx.doctor import BackendState, Report, Running

UNWELL = 1
"""Exit status when the pack cannot be run here."""


@click.command()
@click.argument("pack", required=False, metavar="[PACK|DIR]", shell_complete=complete_pack)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
@depth_options
@engine_options
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    pack: str | None,
    chosen: Chosen,
    as_json: bool,
    engine: EngineArguments,
) -> None:
    """Look at this machine, the backends, and PACK (the one a chat would use), and try a few tokens.

    \b
    mtpx doctor
    mtpx doctor smollm2-135m --json

    Nothing is fetched. The last line is for a bug report.

    \b
    Exit status: 0 the pack runs, or is not here yet; 1 it does not run.
    """
    from mtpx.doctor import examine

    trouble = _settings_error()

    def load(name: str) -> Model:
        return load_model(name, engine, quiet=True)

    found = examine(
        pack,
        load=load,
        context=engine.context,
        settings_error=trouble,
        depth=chosen.depth,
        policy=chosen.policy,
    )
    if as_json:
        import msgspec

        say(msgspec.json.encode(found).decode())
    else:
        for name, value in _lines(found):
            say(f"{name:12}  {' '.join(str(value).split())}")
    unwell = found.pack.kind == "refused" or (found.running is not None and found.running.error)
    if unwell or trouble:
        ctx.exit(UNWELL)


def _settings_error() -> str:
    from mtpx.errors import SettingsError
    from mtpx_cli.defaults import require_settings

    try:
        require_settings()
    except SettingsError as error:
        return str(error)
    return ""


def _lines(found: Report) -> Iterator[tuple[str, Any]]:
    machine = found.machine
    yield "machine", machine.system
    yield "processor", f"{machine.processor}, {machine.cores} cores for this process"
    free = "" if machine.memory_free is None else f", {size(machine.memory_free)} free"
    yield "memory", "not known" if machine.memory is None else size(machine.memory) + free
    if machine.busy:
        yield (
            "load",
            f"{machine.load:g} on {machine.cores} cores: others hold them, so decoding may crawl and no "
            "timing means much; close them, or try `--threads 1`",
        )
    yield "versions", ", ".join(f"{name} {number}" for name, number in found.versions.items())
    for backend in found.backends:
        yield "backend", f"{backend.name}: {_device(backend)}"
    pack = found.pack
    yield "pack", f"{pack.name}: {pack.kind}; {pack.why}"
    if pack.weights_bytes is not None and pack.cache_bytes is not None:
        fits = {True: "fits", False: "does not fit into what is free", None: "free is not known"}
        yield (
            "needs",
            f"{size(pack.weights_bytes)} for weights, {size(pack.cache_bytes)} for a context of "
            f"{pack.context} tokens, in float32 (less in other precisions): {fits[pack.fits]}",
        )
    if found.running is not None:
        yield from _running(found.running)
    elif pack.kind != "refused":
        yield "runs", f"not tried: the weights are not here (`mtpx pack pull {pack.name}`)"
    for name, place in found.places.items():
        yield name, place.folder + ("" if place.writable else " (cannot be written)")
    if found.settings_error:
        yield "settings", found.settings_error
    yield "report", found.line


def _device(backend: BackendState) -> str:
    if not backend.device:
        return f"cannot run: {backend.reason}"
    said = backend.device
    if backend.memory is not None and backend.memory_free is not None:
        said += f", {size(backend.memory)}, {size(backend.memory_free)} free"
    return f"{said}; {backend.lacks}" if backend.lacks else said


def _running(running: Running) -> Iterator[tuple[str, str]]:
    if running.error:
        yield "runs", f"no: {running.error}"
        return
    yield "runs", f"yes: {running.backend} on {running.device}"
    details = ", ".join(f"{name} {value}" for name, value in running.details.items())
    yield "precision", f"{running.dtype}, weights stored as {running.quantisation}"
    yield "route", f"{running.route}, {running.tier} tier" + (f", {details}" if details else "")
    if running.fixed is None:
        yield "policy", f"{running.policy}: it chooses the depth, up to {running.depth} in a trial"
    else:
        yield "policy", f"fixed: depth {running.fixed}" if running.fixed else "none: plain decode"
    yield "energy", running.energy
    if running.speculation != "on":
        yield "speculation", f"not running: {running.speculation}"
    elif not running.judged:
        yield "speculation", "on, but nothing was drafted in the trial"
    else:
        yield (
            "speculation",
            f"on: {running.accepted} of {running.judged} judged drafts stood in a trial; "
            "`mtpx bench --plain-baseline` tells whether it pays",
        )
