"""The target's step on the compiled route.

It is not made beside the decoding: torch's compiler is Python for the most part, and rounds that waited
for it took seconds. Another process makes it (`mtpx_torch.maker`), and a round never compiles anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mtpx.round import Route
from mtpx_torch.attention import PIECE, REACH, reach
from mtpx_torch.cache import KVCache
from mtpx_torch.graphs import MOST_ROWS, Graphs, Job
from mtpx_torch.places import Places
from mtpx_torch.step import Step, step

if TYPE_CHECKING:
    from mtpx_torch.trunk import Trunk


class CompiledStep:
    """Steps of the target over rows of one sequence at a time. `fixed`: in the row-invariant tier."""

    def __init__(self, trunk: Trunk, context: int, *, fixed: bool) -> None:
        self.trunk, self._context, self._fixed = trunk, context, fixed
        self._graphs: Graphs[Step] = Graphs(trunk.bucket)
        self._positions = torch.arange(reach(context) + REACH, device=trunk.device)

    def route(self, rows: int) -> Route | None:
        """What a step of so many rows would run as now, `None` where it has to be eager."""
        if self._graphs.of(rows) is None:
            return None
        return Route("compiled", "1" if max(rows, self.trunk.bucket) == 1 else f"2-{MOST_ROWS}")

    def jobs(self) -> list[Job[Step]]:
        """The graphs that it takes."""
        return [self._job(rows) for rows in self._graphs.sizes]

    def run(
        self, ids: torch.Tensor, start: int, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> Step:
        """ids (rows,) at positions from `start` on; keys, values (kv_heads, room, d) a layer."""
        graph = self._graphs.of(ids.shape[0])
        assert graph is not None
        return graph(*self._inputs(ids, start), keys, values)

    def _inputs(
        self, ids: torch.Tensor, start: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embeddings and positions, padded to the bucket, and the positions attention reads."""
        end = start + ids.shape[0]
        if extra := self.trunk.padding(ids.shape[0]):
            ids = torch.cat([ids, ids.new_zeros(extra)])
        positions = self._positions[start : start + ids.shape[0]]
        return self.trunk.embedding[ids], positions, self._positions[: reach(end)].view(-1, PIECE)

    def _job(self, rows: int) -> Job[Step]:
        trunk, fixed, config = self.trunk, self._fixed, self.trunk.config

        def function(
            x: torch.Tensor,
            positions: torch.Tensor,
            reached: torch.Tensor,
            keys: list[torch.Tensor],
            values: list[torch.Tensor],
        ) -> Step:
            return step(trunk, x, positions, reached, keys, values, fixed=fixed)

        ids = torch.arange(1, rows + 1, device=trunk.device) % config.vocab
        inputs = self._inputs(ids, max(0, min(REACH, self._context) - rows))
        shape = (config.layers, 1, config.kv_heads, self._context, config.head_dim)
        return Job(
            name="step-1" if rows == 1 else "step-n",
            function=function,
            result=Step,
            # Copies: what was made for inference alone cannot be compiled with.
            inputs=(
                *(x.clone() for x in inputs),
                *KVCache(*shape, trunk.dtype, trunk.device).of(0),
            ),
            by_row=2,
            room=self._positions.shape[0],
            weights=Places(trunk.blocks, trunk.norm, trunk.output, trunk.rotary),
            graphs=self._graphs,
        )
