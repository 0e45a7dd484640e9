"""Graphs by `torch.compile`, in this process: what CUDA needs to capture them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch

from mtpx_torch.graphs import MOST_ROWS, Job

T = TypeVar("T")


def captured(job: Job[T]) -> Callable[..., T]:
    """A job's function, compiled. Everything it depends on but its inputs must be fixed for good: it is not
    looked at again. Called once, with the job's inputs, it compiles."""
    function = job.function
    assert isinstance(function, FunctionType)
    # torch keeps graphs by code object and, without guards, would take any that is there.
    own = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    own.__kwdefaults__ = function.__kwdefaults__
    by_row, reached = job.inputs[: job.by_row], job.inputs[job.by_row]
    for tensor in by_row:
        if job.rows > 1:
            torch._dynamo.mark_dynamic(tensor, 0, min=job.rows, max=MOST_ROWS)
    if job.pieces is not None:
        least, most = job.pieces
        torch._dynamo.mark_dynamic(reached, 0, min=least, max=most)
    device = job.inputs[0][0].device
    graph: Callable[..., T] = torch.compile(own, fullgraph=True, options=_options(device))
    return graph


def _options(device: torch.device) -> dict[str, Any]:
    # bfloat16 rounds where the eager step does, so that graphs fused in other ways keep the same bits.
    options: dict[str, Any] = {"emulate_precision_casts": True}
    if device.type == "cuda":
        options["triton.cudagraphs"] = True
    # Everything a graph depends on is fixed for the engine's life, so that its hundreds of guards
    # would only cost time in every step.
    skip = getattr(torch.compiler, "skip_all_guards_unsafe", None)
    if skip is not None:
        options["guard_filter_fn"] = skip
    return options
