"""Finding backends: every installed distribution may name some in the entry-point group."""

from __future__ import annotations

import platform
from importlib import metadata

from mtpx.backend import Backend, Probe
from mtpx.errors import BackendError

GROUP = "mtpx.backends"


def backend_names() -> list[str]:
    """Names of the installed backends, the one this machine is likeliest to want first."""
    names = sorted({entry.name for entry in metadata.entry_points(group=GROUP)})
    metal = platform.system() == "Darwin" and platform.machine() == "arm64"
    return sorted(names, key=lambda name: name != ("mlx" if metal else "torch"))


def get_backend(name: str) -> Backend:
    """The backend of that name. Raises `BackendError` when there is none or it cannot be imported."""
    for entry in metadata.entry_points(group=GROUP):
        if entry.name == name:
            try:
                found = entry.load()
            except ImportError as error:
                raise BackendError(f"the backend {name!r} cannot be imported: {error}") from error
            backend: Backend = found() if isinstance(found, type) else found
            return backend
    known = ", ".join(backend_names()) or "none"
    raise BackendError(f"there is no backend {name!r}; installed: {known}")


def choose_backend(name: str, device: str) -> Backend:
    """The backend asked for, or with "auto" the first one that can run on `device` here.

    Raises `BackendError` with every backend's own reason when none can.
    """
    names = backend_names() if name == "auto" else [name]
    reasons = []
    for candidate in names:
        backend = get_backend(candidate)
        probe: Probe = backend.probe(device)
        if probe.available:
            return backend
        reasons.append(f"{candidate}: {probe.reason}")
    raise BackendError(
        "no backend can run here; "
        + ("; ".join(reasons) or "none is installed (pip install torch, or mlx on a Mac)")
        if name == "auto"
        else f"the backend {name} cannot run here: {reasons[0].partition(': ')[2]}"
    )
