"""The compiled route: `torch.compile` of a whole step, before anything is decoded.

Two graphs at most serve every shape: one row, and from two rows on, with the number of rows and the
reach of the attention left open. A graph is compared with the eager step before anybody uses it. What
cannot be compiled, for want of a compiler above all, runs eagerly.

It is not made beside the decoding: torch's compiler is Python for the most part, and rounds that waited
for it took seconds. So a person asks for it, and a round never compiles anything.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from mtpx.round import Route
from mtpx_torch.attention import REACH, reach
from mtpx_torch.cache import SLACK, KVCache
from mtpx_torch.step import Step, step

if TYPE_CHECKING:
    from mtpx_torch.trunk import Trunk

MOST_ROWS = SLACK
"""Rows of a compiled step: padding rows have that much room past the context."""

NEAR = 0.05
"""How far compiled logits may lie from eager ones, of the largest: bfloat16 rounds both."""


class CompiledStep:
    """Steps of one sequence at a time; `why` it is not compiled, "" if it is."""

    def __init__(self, trunk: Trunk, context: int) -> None:
        self.trunk, self._context = trunk, context
        self.why = "nobody asked for it (--set compile=now)"
        self._graphs: dict[bool, Callable[..., Step]] = {}
        self._positions = torch.arange(reach(context) + REACH, device=trunk.device)

    def route(self, rows: int) -> Route | None:
        """What a step of so many rows would run as now, `None` where it has to be eager."""
        padded = max(rows, self.trunk.bucket)
        if padded > MOST_ROWS or (padded == 1) not in self._graphs:
            return None
        return Route("compiled", "1" if padded == 1 else f"2-{MOST_ROWS}")

    @torch.inference_mode()
    def make(self) -> None:
        """Compile now, unless that was done. A failure is no error: `why` says it."""
        if self._graphs:
            return
        try:
            self._graphs = {rows == 1: self._compiled(rows) for rows in self._sizes}
        except Exception as error:
            self.why = _reason(error)
        else:
            self.why = ""

    def run(
        self, ids: torch.Tensor, start: int, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> Step:
        """ids (rows,) at positions from `start` on; keys, values (kv_heads, room, d) a layer."""
        x, positions, reached = self._inputs(ids, start)
        return self._graphs[x.shape[0] == 1](self.trunk, x, positions, reached, keys, values)

    def _inputs(
        self, ids: torch.Tensor, start: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embeddings and positions, padded to the bucket, and the positions attention reads."""
        end = start + ids.shape[0]
        if extra := self.trunk.padding(ids.shape[0]):
            ids = torch.cat([ids, ids.new_zeros(extra)])
        positions = self._positions[start : start + ids.shape[0]]
        return self.trunk.embedding[ids], positions, self._positions[: reach(end)]

    @property
    def _sizes(self) -> list[int]:
        """Numbers of rows, after padding, that a graph is made from."""
        return sorted({self.trunk.bucket, max(2, self.trunk.bucket)})

    def _compiled(self, rows: int) -> Callable[..., Step]:
        trunk, config = self.trunk, self.trunk.config
        # torch keeps graphs by code object and, without guards, would take any that is there.
        own = FunctionType(step.__code__.replace(), step.__globals__)
        graph = torch.compile(own, fullgraph=True, options=_options(trunk.device))
        shape = (config.layers, 1, config.kv_heads, self._context, config.head_dim)
        keys, values = KVCache(*shape, trunk.dtype, trunk.device).of(0)
        ids = torch.arange(1, rows + 1, device=trunk.device) % config.vocab
        x, positions, reached = self._inputs(ids, max(0, min(REACH, self._context) - rows))
        if rows > 1:
            for tensor in (x, positions):
                torch._dynamo.mark_dynamic(tensor, 0, min=rows, max=MOST_ROWS)
        most = self._positions.shape[0] - REACH
        if most > REACH:
            torch._dynamo.mark_dynamic(reached, 0, min=REACH, max=most)
        got, want = (
            run(trunk, x, positions, reached, keys, values).logits.float() for run in (graph, step)
        )
        if not bool((got - want).abs().amax() <= NEAR * want.abs().amax()):
            raise ArithmeticError("the compiled step computes something else than the eager one")
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


def _reason(error: Exception) -> str:
    text = str(error)
    if "compiler" in text.lower() and "found" in text.lower():
        return "torch finds no C++ compiler (install g++, or name one in CXX)"
    return f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"
