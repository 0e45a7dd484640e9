"""Finding backends: every installed distribution may name some in the entry-point group."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata

from mtpx.backend import Backend
from mtpx.checkpoint.config import FAMILIES
from mtpx.errors import BackendError

GROUP = "mtpx.backends"


def backend_names() -> list[str]:
    """Names of the installed backends, the one this machine is likeliest to want first."""
    names = sorted({entry.name for entry in metadata.entry_points(group=GROUP)})
    metal = platform.system() == "Darwin" and platform.machine() == "arm64"
    return sorted(names, key=lambda name: name != ("mlx" if metal else "torch"))


def get_backend(name: str) -> Backend:
    """The backend of that name. Raises `BackendError` when there is none, it cannot be imported, or
    what is installed under the name is no backend."""
    for entry in metadata.entry_points(group=GROUP):
        if entry.name == name:
            try:
                found = entry.load()
                backend = found() if isinstance(found, type) else found
            except Exception as error:  # a library it needs may fail to load in ways of its own
                raise BackendError(f"it cannot be imported: {_said(error)}") from error
            if not isinstance(backend, Backend):
                raise BackendError(f"what is installed as {entry.value} is no backend")
            return backend
    known = ", ".join(backend_names()) or "none"
    raise BackendError(f"there is no backend {name!r}; installed: {known}")


def choose_backend(name: str, device: str, model_types: Sequence[str] = ()) -> Backend:
    """The backend asked for, or with "auto" the first one that can run on `device` here; of those, one
    that says it reads these architectures comes first where the core does not know them.

    Raises `BackendError` with every backend's own reason when none can.
    """
    if name != "auto" and name not in backend_names():
        return get_backend(name)
    names = backend_names() if name == "auto" else [name]
    if name == "auto" and model_types and not set(model_types) & set(FAMILIES):
        able = readers(model_types)
        names = sorted(names, key=lambda candidate: candidate not in able)
    reasons = {}
    for candidate in names:
        try:
            backend = get_backend(candidate)
            probe = backend.probe(device)
        except BackendError as error:
            reasons[candidate] = str(error)
        except Exception as error:
            reasons[candidate] = f"it cannot look at this machine: {_said(error)}"
        else:
            if probe.available:
                return backend
            reasons[candidate] = probe.reason
    if name != "auto":
        raise BackendError(f"the backend {name} cannot run here: {reasons[name]}")
    said = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items())
    raise BackendError(
        f"no backend can run here; {said}"
        if said
        else "no backend is installed: pip install torch, or mlx on a Mac"
    )


def readers(model_types: Sequence[str]) -> list[str]:
    """The installed backends that say they read one of these architectures (config.json's
    `model_type`): those with a method `reads`. One that cannot be imported reads nothing."""
    found = []
    for name in backend_names():
        with suppress(BackendError):
            reads = getattr(get_backend(name), "reads", None)
            if reads is not None and any(reads(kind) for kind in model_types):
                found.append(name)
    return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
