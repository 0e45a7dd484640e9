"""The compiled route: `torch.compile` of a whole step, made beside the decoding and used when ready.

Two graphs at most serve every shape: one row, and from two rows on, with the number of rows and the
reach of the attention left open. A graph is compared with the eager step before anybody uses it. What
cannot be compiled, for want of a compiler above all, runs eagerly, and `why` says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal

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

PATIENCE_ROUNDS = 64
"""Rounds before the compiler is started on its own: an answer of a few words is over sooner than the
compiler, which would only take the processor away from it."""

Wish = Literal["auto", "off"]


class CompiledStep:
    """Compiles in a thread of its own from `start` on. One sequence at a time."""

    def __init__(self, trunk: Trunk, context: int, wish: Wish) -> None:
        self.trunk, self.wish = trunk, wish
        self.why = "" if wish == "auto" else "switched off"
        self._context = context
        self._rounds = 0
        self._thread: threading.Thread | None = None
        self._graphs: dict[bool, Callable[..., Step]] = {}
        self._positions = torch.arange(reach(context) + REACH, device=trunk.device)

    @property
    def busy(self) -> bool:
        """Whether something is being compiled at this moment."""
        return self._thread is not None and self._thread.is_alive()

    def route(self, rows: int) -> Route | None:
        """What a step of so many rows would run as now, `None` where it has to be eager."""
        padded = max(rows, self.trunk.bucket)
        if padded > MOST_ROWS or (padded == 1) not in self._graphs:
            return None
        return Route("compiled", "1" if padded == 1 else f"2-{MOST_ROWS}")

    def count_round(self) -> None:
        """A round went by. Starts the compiler once there were enough of them."""
        self._rounds += 1
        if self._rounds == PATIENCE_ROUNDS:
            self.start()

    def start(self) -> None:
        if self.wish == "auto" and self._thread is None:
            self._thread = threading.Thread(target=self._make, name="mtpx-compile", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Compile now, if that is wanted and was not done."""
        self.start()
        if self._thread is not None:
            self._thread.join()

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

    def _make(self) -> None:
        try:
            with torch.inference_mode():
                made = {rows == 1: self._compiled(rows) for rows in self._sizes}
        except Exception as error:
            self.why = _reason(error)
        else:
            self._graphs = made

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
        return "torch finds no C++ compiler (install g++ or clang)"
    return f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"
