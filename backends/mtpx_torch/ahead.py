"""Graphs compiled ahead of time into libraries of a few megabytes, which load in milliseconds.

The weights are inputs of a graph, so that a library holds none, and those that oneDNN packed in a layout of
its own can be given, too. A call goes through C++ from the first kernel to the last.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import torch

from mtpx.digests import write_atomically
from mtpx_torch import operators
from mtpx_torch.graphs import MOST_ROWS, Input, Job

T = TypeVar("T")

OPTIONS: dict[str, Any] = {"emulate_precision_casts": True}
"""Of torch's compiler: bfloat16 rounds where the eager step does, so that graphs fused in other ways keep
the same bits."""


def library(folder: Path, job: Job[T]) -> Path:
    return folder / f"{job.name}.so"


def build(job: Job[T], folder: Path, work: Path) -> None:
    """Make the job's library in `folder`, by way of files in `work`. Minutes. Not in inference mode: the
    inputs must be tensors that may be written to. Raises whatever torch's compiler does."""
    package = work / f"{job.name}.pt2"
    torch._inductor.aoti_compile_and_package(
        exported(job), package_path=str(package), inductor_configs=OPTIONS
    )
    with zipfile.ZipFile(package) as packed:
        (found,) = (PurePosixPath(n) for n in packed.namelist() if n.endswith(".so"))
        described = str(found.with_suffix(".json"))
        to, code = library(folder, job), packed.read(str(found))
        calls = packed.read(described) if described in packed.namelist() else b""
        write_atomically(to.with_suffix(".json"), calls)
        write_atomically(to.with_suffix(".sha256"), _digest(code, calls).encode())
        write_atomically(to, code)


def exported(job: Job[Any]) -> torch.export.ExportedProgram:
    """The job's function of its weights and inputs, traced; as `build` needs it."""
    weights = job.weights.tensors()
    return torch.export.export(
        _Module(job), (weights, job.inputs), dynamic_shapes=_open(job, len(weights)), strict=False
    )


def whole(job: Job[T], folder: Path) -> bool:
    """Whether the job's library is there, as it was made: a torn one would end the process."""
    path = library(folder, job)
    try:
        found = _digest(path.read_bytes(), path.with_suffix(".json").read_bytes())
        return path.with_suffix(".sha256").read_text() == found
    except (OSError, UnicodeDecodeError):
        return False


def discard(job: Job[T], folder: Path) -> None:
    """The job's library is not whole any more, whatever it is."""
    library(folder, job).with_suffix(".sha256").unlink(missing_ok=True)


def _digest(code: bytes, calls: bytes) -> str:
    return hashlib.sha256(hashlib.sha256(code).digest() + calls).hexdigest()


def load(job: Job[T], folder: Path) -> Callable[..., T]:
    """The graph of a library that is `whole`. Raises `RuntimeError` where it cannot be loaded."""
    assert operators.packed_linear  # a library may call them by name
    run = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library(folder, job)), 1).run
    weights, result = job.weights.tensors(), job.result

    def graph(*inputs: Input) -> T:
        flat = [*weights]
        for given in inputs:
            if isinstance(given, list):
                flat += given
            else:
                flat.append(given)
        return result(*run(flat))

    return graph


class _Module(torch.nn.Module):
    """A job's function of its weights and inputs."""

    def __init__(self, job: Job[Any]) -> None:
        super().__init__()
        self.job = job

    def forward(
        self, weights: list[torch.Tensor], inputs: tuple[Input, ...]
    ) -> tuple[torch.Tensor, ...]:
        with self.job.weights.holding(weights):
            return tuple(self.job.function(*inputs))


def _open(job: Job[T], weights: int) -> dict[str, Any]:
    """Which of the inputs' dimensions vary from call to call."""
    shapes: list[Any] = [[None] * len(i) if isinstance(i, list) else None for i in job.inputs]
    if job.rows > 1:
        rows = torch.export.Dim("rows", min=job.rows, max=MOST_ROWS)
        shapes[: job.by_row] = [{0: rows} for _ in range(job.by_row)]
    if job.pieces is not None:
        least, most = job.pieces
        shapes[job.by_row] = {0: torch.export.Dim("pieces", min=least, max=most)}
    return {"weights": [None] * weights, "inputs": tuple(shapes)}
