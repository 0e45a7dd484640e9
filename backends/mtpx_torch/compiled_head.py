"""The head's step on the compiled route: from a row's embedding to its draft, in one graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from mtpx_torch.attention import PIECE, REACH, reach
from mtpx_torch.cache import KVCache
from mtpx_torch.graphs import Graphs, Job
from mtpx_torch.head import Scored
from mtpx_torch.places import Places
from mtpx_torch.step import attention

if TYPE_CHECKING:
    from mtpx_torch.head import Head


def head_step(
    head: Head,
    embedded: torch.Tensor,
    hidden: torch.Tensor,
    positions: torch.Tensor,
    spots: torch.Tensor,
    reached: torch.Tensor,
    last: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> Scored:
    """embedded, hidden (rows, H) at positions (rows,), written to rows spots (rows,) of keys and values
    (kv_heads, room, d), of which reached (pieces, PIECE) are read. → what the head says after row last (1,)."""
    attend = attention(spots, reached, head.trunk.group, hidden.dtype, fixed=True)
    residual = head.forward(embedded, hidden, positions, attend(keys, values))
    return head.scores(residual[last])


class CompiledHead:
    """Head steps of one sequence at a time."""

    def __init__(self, head: Head, context: int) -> None:
        self.head, self._context = head, context
        self._bucket = head.trunk.bucket
        self._graphs: Graphs[Scored] = Graphs(self._bucket)
        self._places = torch.arange(reach(context) + REACH, device=head.trunk.device)

    def serves(self, rows: int) -> bool:
        return self._graphs.of(rows) is not None

    def jobs(self) -> list[Job[Scored]]:
        """The graphs that it takes."""
        return [self._job(rows) for rows in self._graphs.sizes]

    def run(
        self,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        position: int,
        spot: int,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> Scored:
        """ids (rows,) and hidden (rows, H) from `position` on, written to cache rows from `spot` on."""
        graph = self._graphs.of(ids.shape[0])
        assert graph is not None
        return graph(*self._inputs(ids, hidden, position, spot), keys, values)

    def _inputs(
        self, ids: torch.Tensor, hidden: torch.Tensor, position: int, spot: int
    ) -> tuple[torch.Tensor, ...]:
        """`head_step`'s, padded to the bucket."""
        count = ids.shape[0]
        if extra := max(0, self._bucket - count):
            ids, hidden = F.pad(ids, (0, extra)), F.pad(hidden, (0, 0, 0, extra))
        rows = ids.shape[0]
        return (
            self.head.embedding[ids],
            hidden,
            self._places[position : position + rows],
            self._places[spot : spot + rows],
            self._places[: reach(spot + count)].view(-1, PIECE),
            self._places[count - 1 : count],
        )

    def _job(self, rows: int) -> Job[Scored]:
        head, trunk, config = self.head, self.head.trunk, self.head.trunk.config

        def function(*inputs: torch.Tensor) -> Scored:
            return head_step(head, *inputs)

        cache = KVCache(
            1, 1, config.kv_heads, self._context, config.head_dim, trunk.dtype, trunk.device
        )
        (keys,), (values,) = cache.of(0)
        ids = torch.arange(1, rows + 1, device=trunk.device) % config.vocab
        inputs = self._inputs(ids, head.embedding[ids.flip(0)], 1, 0)
        return Job(
            name="head-1" if rows == 1 else "head-n",
            function=function,
            result=Scored,
            inputs=(*(x.clone() for x in inputs), keys, values),
            by_row=4,
            room=self._places.shape[0],
            weights=Places(head, trunk.rotary, without=("trunk", "embedding")),
            graphs=self._graphs,
        )
