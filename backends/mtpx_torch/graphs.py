"""Graphs of a step: two serve every number of rows.

One is for a single row, the other from two rows on; the number of rows and the reach of the attention are
left open in it. A graph is compared with the eager step before anybody uses it (`Job.checked`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from mtpx_torch.attention import PIECE, REACH
from mtpx_torch.cache import SLACK
from mtpx_torch.places import Places

T = TypeVar("T")

Input = torch.Tensor | list[torch.Tensor]

MOST_ROWS = SLACK
"""Rows of a compiled step: padding rows have that much room past the context."""

NEAR = 0.05
"""How far compiled numbers may lie from eager ones, of the largest: bfloat16 rounds both."""


class Graphs(Generic[T]):
    """A step's graphs, over `bucket` rows at least; none to begin with."""

    def __init__(self, bucket: int) -> None:
        self._bucket = bucket
        self._made: dict[bool, Callable[..., T]] = {}

    @property
    def sizes(self) -> list[int]:
        """Rows to make a graph for: of the second, the fewest."""
        return sorted({self._bucket, max(2, self._bucket)})

    def put(self, rows: int, graph: Callable[..., T]) -> None:
        self._made[rows == 1] = graph

    def of(self, rows: int) -> Callable[..., T] | None:
        """What runs so many rows, once they are padded; `None` where nothing does."""
        padded = max(rows, self._bucket)
        return self._made.get(padded == 1) if padded <= MOST_ROWS else None


@dataclass(frozen=True)
class Job(Generic[T]):
    """A graph to make of `function`, a NamedTuple `result` of `inputs` and of the tensors at `weights`.

    The first `by_row` of `inputs` have an entry a row, of which a graph over more than one takes any number
    up to `MOST_ROWS`; the next, (pieces, PIECE), any that `room` cache rows leave. `graphs` is whose it is.
    """

    name: str
    function: Callable[..., T]
    result: type[T]
    inputs: tuple[Input, ...]
    by_row: int
    room: int
    weights: Places
    graphs: Graphs[T]

    @property
    def rows(self) -> int:
        return len(self.inputs[0])

    @property
    def pieces(self) -> tuple[int, int] | None:
        """Least and most of the reach; `None` where the context leaves one only."""
        if self.room - REACH <= REACH:
            return None
        return REACH // PIECE, (self.room - REACH) // PIECE

    def checked(self, graph: Callable[..., T]) -> Callable[..., T]:
        """Raises `ArithmeticError` where what the graph computes is not what the function does."""
        found, wanted = (run(*self.inputs)._asdict() for run in (graph, self.function))  # type: ignore[attr-defined]
        for name in found.keys() - {"tokens", "confidence"}:  # which follow from the logits
            got, want = found[name].float(), wanted[name].float()
            if not bool((got - want).abs().amax() <= NEAR * want.abs().amax()):
                raise ArithmeticError(
                    "the compiled step computes something else than the eager one"
                )
        return graph


def adopt(jobs: Iterable[Job[T]], make: Callable[[Job[T]], Callable[..., T]]) -> str:
    """Let all jobs' graphs be used, as `make` gives them, or none. → "", or why none is: no error."""
    try:
        made = [(job, job.checked(make(job))) for job in jobs]
    except Exception as error:
        return reason(error)
    for job, graph in made:
        job.graphs.put(job.rows, graph)
    return ""


def reason(error: BaseException) -> str:
    """What kept a graph from being made, in a line."""
    text = str(error)
    if "compiler" in text.lower() and "found" in text.lower():
        return "torch finds no C++ compiler (install g++, or name one in CXX)"
    lines = text.splitlines() or [""]
    # Of what a compiler said, its own complaint.
    said = next((line for line in lines if "error: " in line or "No space left" in line), lines[0])
    return f"{type(error).__name__}: {said.strip()}"
