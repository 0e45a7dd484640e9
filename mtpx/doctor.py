"""What this machine is, what runs on it, and if not, why: facts for a person and for a bug report.

Looking never raises: what cannot be found out is said in the place of the fact.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mtpx import packs, paths, shelf
from mtpx.backends import backend_names, get_backend
from mtpx.checkpoint import open_checkpoint
from mtpx.energy import NoMeter
from mtpx.errors import MtpxError
from mtpx.hardware import cpu_name
from mtpx.memory import host_memory, need
from mtpx.trace.runs import version

if TYPE_CHECKING:
    from mtpx.api import Model
    from mtpx.round import Round

LIBRARIES = ("torch", "mlx", "numpy", "tokenizers", "jinja2", "huggingface_hub", "prompt_toolkit")
"""Distributions whose version matters in a bug report."""

CONTEXT = 8192
"""Tokens to make room for where nobody says how many, if the model can."""

BUSY = 0.5
"""Load a core from which decoding suffers: its threads meet at a barrier in every matrix product."""

TRIAL_TOKENS = 8
"""Decoded to see how a round really runs; a moment on any machine."""


class Machine(msgspec.Struct, frozen=True, omit_defaults=True):
    """`cores` this process may use; memory in bytes; `load`, the mean number of processes that wanted a
    core in the last minute."""

    system: str
    processor: str
    cores: int
    memory: int | None = None
    memory_free: int | None = None
    load: float | None = None

    @property
    def busy(self) -> bool:
        """Whether others hold so much of the cores that threads which wait for each other crawl."""
        return self.load is not None and self.load > BUSY * self.cores


class BackendState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A backend: its `device` (bytes of the memory it has of its own) and what it `lacks` but can do
    without, or the `reason` why it cannot run."""

    name: str
    device: str = ""
    reason: str = ""
    memory: int | None = None
    memory_free: int | None = None
    lacks: str = ""


class PackState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pack that would be used. `kind` and `why` as `mtpx.shelf.classify`; bytes it takes in memory
    in float32, the most of all precisions, and whether they are free."""

    name: str
    kind: str = ""
    why: str = ""
    here: bool = False
    weights_bytes: int | None = None
    cache_bytes: int | None = None
    context: int | None = None
    fits: bool | None = None


class Running(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a few tokens were decoded just now; `error` is the sentence if they could not be.

    `route` is "eager" or "compiled" with its bucket; `speculation` "on", or why it does not run;
    `fixed` the depth where no policy chose it, `depth` the deepest round's; `accepted` drafts of `judged`
    that stood. `energy` is the rail that a meter sees, or why there is none.
    """

    error: str = ""
    backend: str = ""
    device: str = ""
    dtype: str = ""
    quantisation: str = ""
    tier: str = ""
    details: dict[str, str] = {}
    route: str = ""
    policy: str = ""
    fixed: int | None = None
    depth: int | None = None
    speculation: str = ""
    accepted: int | None = None
    judged: int | None = None
    energy: str = ""


class Place(msgspec.Struct, frozen=True):
    """Where files of a kind live."""

    folder: str
    writable: bool


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything `mtpx doctor` says; also its JSON."""

    versions: dict[str, str]
    machine: Machine
    backends: list[BackendState]
    pack: PackState
    places: dict[str, Place]
    running: Running | None = None
    settings_error: str = ""

    @property
    def line(self) -> str:
        """All that matters, on one line to paste."""
        m, r = self.machine, self.running
        parts = [f"mtpx {self.versions['mtpx']}", m.system, f"{m.processor}, {m.cores} cores"]
        if m.memory:
            parts.append(f"{m.memory / 1e9:.0f} GB")
        parts += [f"{name} {v}" for name, v in self.versions.items() if name != "mtpx"]
        parts.append(f"pack {self.pack.name}")
        if r is not None and r.error:
            parts.append(f"fails: {r.error}")
        elif r is not None:
            parts.append(f"{r.backend} on {r.device}, {r.dtype} from {r.quantisation}, {r.route}")
            parts.append(f"{r.policy} depth {r.depth}, speculation {r.speculation}")
        return " | ".join(" ".join(part.split()) for part in parts)


def examine(
    pack: str | None = None,
    *,
    load: Callable[[str], Model] | None = None,
    context: int | None = None,
    settings_error: str = "",
    **options: Any,
) -> Report:
    """Look at everything. `load` makes the model that a few tokens are tried with (`options` are
    those of `Model.stream`); nothing is tried without it, or while weights are not here.
    `context`: tokens to make room for."""
    name = packs.default_name() if pack is None else pack
    state = _pack(name, context)
    running = None
    if load is not None and state.here and state.kind != "refused":
        running = _try(load, name, options)
    return Report(
        versions=_versions(),
        machine=_machine(),
        backends=[_backend(name) for name in backend_names()],
        pack=state,
        places=_places(),
        running=running,
        settings_error=settings_error,
    )


def _versions() -> dict[str, str]:
    found = {"mtpx": version(), "python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _machine() -> Machine:
    memory = host_memory()
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=cpu_name(),
        cores=len(affinity(0)) if affinity else os.cpu_count() or 1,
        memory=memory.total,
        memory_free=memory.free,
        load=_load(),
    )


def _load() -> float | None:
    with suppress(OSError, AttributeError):
        return round(os.getloadavg()[0], 2)
    return None


def _backend(name: str) -> BackendState:
    try:
        probe = get_backend(name).probe()
    except Exception as error:  # a library it needs may fail in ways of its own
        said = str(error) if isinstance(error, MtpxError) else f"{type(error).__name__}: {error}"
        return BackendState(name, reason=said)
    return BackendState(
        name,
        device=probe.device,
        reason=probe.reason,
        memory=probe.memory,
        memory_free=probe.memory_free,
        lacks=probe.lacks,
    )


def _pack(name: str, room: int | None) -> PackState:
    try:
        found = packs.find(name)
        verdict = shelf.classify(found)
        if isinstance(found, Path):
            weights: Path | None = found
        else:
            held = shelf.stored(found)
            weights = packs.resolve(name, offline=True).weights if held.whole else None
        if weights is None:
            return PackState(name, verdict.kind, verdict.why)
    except MtpxError as error:
        return PackState(name, "refused", str(error))
    try:
        with open_checkpoint(weights) as checkpoint:
            context = room or min(checkpoint.config.context, CONTEXT)
            takes = need(checkpoint, context, 4)
    except (
        MtpxError
    ):  # an architecture that only a backend's own library reads: its size is not known
        return PackState(name, verdict.kind, verdict.why, here=True)
    free = host_memory().free
    return PackState(
        name,
        verdict.kind,
        verdict.why,
        here=True,
        weights_bytes=takes.weights,
        cache_bytes=takes.cache,
        context=context,
        fits=None if free is None else takes.total < free,
    )


def _try(load: Callable[[str], Model], name: str, options: dict[str, Any]) -> Running:
    """Decode a few tokens, as a chat would."""
    rounds: list[Round] = []
    try:
        with load(name) as model:
            stream = model.stream(
                "Hello",
                raw=model.template is None,
                max_tokens=TRIAL_TOKENS,
                ignore_eos=True,
                on_round=rounds.append,
                **options,
            )
            for _ in stream:
                pass
            info, result, meter = model.engine.info, stream.result, model.meter
    except MtpxError as error:
        return Running(error=str(error))
    deepest = max(rounds, key=attrgetter("depth"))
    slots = [round.slots[0] for round in rounds]
    return Running(
        backend=info.backend,
        device=info.device,
        dtype=info.dtype,
        quantisation=info.quantisation,
        tier=info.tier,
        details=dict(info.details),
        route=" ".join(filter(None, (deepest.route.kind, deepest.route.bucket))),
        policy=stream.policy,
        fixed=None if result.depth == "auto" else result.depth,
        depth=deepest.depth,
        speculation=result.speculation,
        accepted=sum(min(slot.accepted, slot.judged) for slot in slots),
        judged=sum(slot.judged for slot in slots),
        energy=f"not measured: {meter.reason}" if isinstance(meter, NoMeter) else meter.rail,
    )


def _places() -> dict[str, Place]:
    return {
        "weights": _place(paths.weights_dir()),
        "traces": _place(paths.traces_dir()),
        "state": _place(paths.state_dir()),
        "settings": _place(paths.config_dir()),
        "python": Place(sys.prefix, os.access(sys.prefix, os.W_OK)),
    }


def _place(folder: Path) -> Place:
    """Whether it can be written, or made."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    return Place(str(folder), there.is_dir() and os.access(there, os.W_OK))
