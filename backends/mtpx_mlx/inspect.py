"""The engine with the windows the conformance kit looks through (`mtpx.testing.Inspectable`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
import numpy as np

from mtpx.backend import Drafts, FloatArray, Slot
from mtpx_mlx.engine import MlxEngine
from mtpx_mlx.propose import MlxDrafts, SlotDrafts


class InspectableEngine(MlxEngine):
    """For tests. `InspectableEngine.of(engine)` shares everything with the engine it looks into."""

    @classmethod
    def of(cls, engine: MlxEngine) -> InspectableEngine:
        inside = cls.__new__(cls)
        inside.__dict__ = engine.__dict__
        return inside

    def force(self, slots: Sequence[Slot], drafts: Sequence[Sequence[int]]) -> MlxDrafts:
        made = self.propose(slots, [len(d) for d in drafts])
        for i, wanted in enumerate(drafts):
            if not wanted:
                continue
            own = made.slots[i]
            assert own is not None
            assert own.tokens.shape[0] == len(wanted)
            tokens = mx.array(list(wanted), dtype=mx.uint32)
            q = None
            if own.q is not None:
                q = mx.zeros_like(own.q)
                q[mx.arange(len(wanted)), tokens] = 1.0
            made.slots[i] = SlotDrafts(tokens, own.confidence, q, own.u)
        return made

    def drafted(self, drafts: Drafts) -> list[list[int]]:
        made = cast(MlxDrafts, drafts).slots
        return [[] if s is None else cast("list[int]", s.tokens.tolist()) for s in made]

    def logits(self, slot: Slot) -> FloatArray:
        (mine,) = self._mine([slot])
        mine.check_ready(self._info)
        mine.settle()
        with mx.stream(self.device):
            rows = self.target(mx.array(mine.tokens[-1:]), mine.state)
            out: FloatArray = np.array(rows.logits[0].astype(mx.float32)).astype(np.float64)
            mine.settle()
        return out

    def pairs(self, slot: Slot) -> tuple[int, int, int]:
        """The rows past `head.rows` are whatever the last propose left; none of them is ever read
        before it is written again, so none counts as provisional state that is kept."""
        (mine,) = self._mine([slot])
        if mine.head is None:
            return 0, 0, 0
        first, end = mine.head.ready(mine.pairs)
        return mine.head.rows, 0, end - first

    def poison(self, slot: Slot) -> None:
        """A NaN among the slot's cached values reaches every later row of it, and no other slot."""
        (mine,) = self._mine([slot])
        mine.settle()
        attention = next(c for c in mine.state.caches if hasattr(c, "values"))
        attention.values[0, 0, 0, 0] = float("nan")
