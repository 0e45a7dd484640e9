"""Graphs of a step, as `torch.compile` makes them: two serve every number of rows.

One is for a single row, the other from two rows on; the number of rows and the reach of the attention are
left open in it. A graph is compared with the eager step before anybody uses it (`near`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch

from mtpx_torch.attention import PIECE, REACH
from mtpx_torch.cache import SLACK

T = TypeVar("T")

MOST_ROWS = SLACK
"""Rows of a compiled step: padding rows have that much room past the context."""

NEAR = 0.05
"""How far compiled numbers may lie from eager ones, of the largest: bfloat16 rounds both."""


class Graphs(Generic[T]):
    """A step's graphs, over `bucket` rows at least; `why` there are none, "" if there are."""

    def __init__(self, bucket: int) -> None:
        self._bucket = bucket
        self._made: dict[bool, Callable[..., T]] = {}
        self.why = "nobody asked for it (--set compile=now)"

    def make(self, one: Callable[[int], Callable[..., T]]) -> None:
        """`one` compiles the graph for a number of rows. A failure is no error: `why` says it."""
        if self._made:
            return
        sizes = sorted({self._bucket, max(2, self._bucket)})
        try:
            self._made = {rows == 1: one(rows) for rows in sizes}
        except Exception as error:
            self.why = _reason(error)
        else:
            self.why = ""

    def of(self, rows: int) -> Callable[..., T] | None:
        """What runs so many rows, once they are padded; `None` where nothing does."""
        padded = max(rows, self._bucket)
        return self._made.get(padded == 1) if padded <= MOST_ROWS else None


def compiled(function: Callable[..., T], device: torch.device) -> Callable[..., T]:
    """`function` compiled when it is first called. Everything it depends on but the tensors it is given
    must be fixed for good: it is not looked at again."""
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
    graph: Callable[..., T] = torch.compile(own, fullgraph=True, options=_options(device))
    return graph


def leave_open(rows: Sequence[torch.Tensor], reached: torch.Tensor, room: int) -> None:
    """Tell the compiler what varies from call to call: the length of these `rows` if it is not 1, and of
    `reached` (pieces, PIECE), up to what `room` cache rows leave."""
    for tensor in rows:
        if tensor.shape[0] > 1:
            torch._dynamo.mark_dynamic(tensor, 0, min=tensor.shape[0], max=MOST_ROWS)
    if room - REACH > REACH:
        most = (room - REACH) // PIECE
        torch._dynamo.mark_dynamic(reached, 0, min=REACH // PIECE, max=most)


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    """Raises `ArithmeticError` where what a graph computed is not what the eager step did."""
    got, want = got.float(), want.float()
    if not bool((got - want).abs().amax() <= NEAR * want.abs().amax()):
        raise ArithmeticError("the compiled step computes something else than the eager one")


def _options(device: torch.device) -> dict[str, Any]:
    # bfloat16 rounds where the eager step does, so that graphs fused in other ways keep the same bits.
    options: dict[str, Any] = {"emulate_precision_casts": True}
    if device.type == "cuda":
        options["triton.cudagraphs"] = True
    else:
        # The calls of a step's three hundred kernels made from C++ instead of Python, and, built apart
        # from the kernels, with little optimisation: with much of it they take minutes to compile.
        wanted = ("cpp_wrapper", "cpp_wrapper_build_separate")
        options |= {name: True for name in wanted if hasattr(torch._inductor.config, name)}
    # Everything a graph depends on is fixed for the engine's life, so that its hundreds of guards
    # would only cost time in every step.
    skip = getattr(torch.compiler, "skip_all_guards_unsafe", None)
    if skip is not None:
        options["guard_filter_fn"] = skip
    return options


def _reason(error: Exception) -> str:
    text = str(error)
    if "compiler" in text.lower() and "found" in text.lower():
        return "torch finds no C++ compiler (install g++, or name one in CXX)"
    return f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"
