"""The compiled route: `torch.compile` of a whole step, before anything is decoded.

What cannot be compiled, for want of a compiler above all, runs eagerly.

It is not made beside the decoding: torch's compiler is Python for the most part, and rounds that waited
for it took seconds. So a person asks for it, and a round never compiles anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from mtpx.round import Route
from mtpx_torch.attention import PIECE, REACH, reach
from mtpx_torch.cache import KVCache
from mtpx_torch.graphs import MOST_ROWS, Graphs, compiled, leave_open, near
from mtpx_torch.step import Step, step

if TYPE_CHECKING:
    from mtpx_torch.trunk import Trunk


class CompiledStep:
    """Steps of the target over rows of one sequence at a time. `fixed`: in the row-invariant tier."""

    def __init__(self, trunk: Trunk, context: int, *, fixed: bool) -> None:
        self.trunk, self._context, self._fixed = trunk, context, fixed
        self._graphs: Graphs[Step] = Graphs(trunk.bucket)
        self._positions = torch.arange(reach(context) + REACH, device=trunk.device)

    @property
    def why(self) -> str:
        """Why it is not compiled; "" if it is."""
        return self._graphs.why

    def route(self, rows: int) -> Route | None:
        """What a step of so many rows would run as now, `None` where it has to be eager."""
        if self._graphs.of(rows) is None:
            return None
        return Route("compiled", "1" if max(rows, self.trunk.bucket) == 1 else f"2-{MOST_ROWS}")

    @torch.inference_mode()
    def make(self) -> None:
        """Compile now, unless that was done. A failure is no error: `why` says it."""
        self._graphs.make(self._compiled)

    def run(
        self, ids: torch.Tensor, start: int, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> Step:
        """ids (rows,) at positions from `start` on; keys, values (kv_heads, room, d) a layer."""
        graph = self._graphs.of(ids.shape[0])
        assert graph is not None
        x, positions, reached = self._inputs(ids, start)
        return graph(self.trunk, x, positions, reached, keys, values, fixed=self._fixed)

    def _inputs(
        self, ids: torch.Tensor, start: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embeddings and positions, padded to the bucket, and the positions attention reads."""
        end = start + ids.shape[0]
        if extra := self.trunk.padding(ids.shape[0]):
            ids = torch.cat([ids, ids.new_zeros(extra)])
        positions = self._positions[start : start + ids.shape[0]]
        return self.trunk.embedding[ids], positions, self._positions[: reach(end)].view(-1, PIECE)

    def _compiled(self, rows: int) -> Callable[..., Step]:
        trunk, config = self.trunk, self.trunk.config
        graph = compiled(step, trunk.device)
        shape = (config.layers, 1, config.kv_heads, self._context, config.head_dim)
        keys, values = KVCache(*shape, trunk.dtype, trunk.device).of(0)
        ids = torch.arange(1, rows + 1, device=trunk.device) % config.vocab
        x, positions, reached = self._inputs(ids, max(0, min(REACH, self._context) - rows))
        leave_open([x, positions], reached, room=self._positions.shape[0])
        got, want = (
            run(trunk, x, positions, reached, keys, values, fixed=self._fixed)
            for run in (graph, step)
        )
        near(got.logits, want.logits)
        return graph
