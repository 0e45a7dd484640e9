"""The engine with the windows the conformance kit looks through (`mtpx.testing.Inspectable`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch

from mtpx.backend import Drafts, FloatArray, Slot
from mtpx_torch.engine import TorchEngine
from mtpx_torch.propose import SlotDrafts, TorchDrafts
from mtpx_torch.slot import TorchSlot


class InspectableEngine(TorchEngine):
    """For tests. `InspectableEngine.of(engine)` shares everything with the engine it looks into."""

    @classmethod
    def of(cls, engine: TorchEngine) -> InspectableEngine:
        inside = cls.__new__(cls)
        inside.__dict__ = engine.__dict__
        return inside

    @torch.inference_mode()
    def force(self, slots: Sequence[Slot], drafts: Sequence[Sequence[int]]) -> TorchDrafts:
        made = self.propose(slots, [len(d) for d in drafts])
        for i, (slot, wanted) in enumerate(zip(slots, drafts, strict=True)):
            if not wanted:
                continue
            own = made.slots[i]
            assert own is not None
            assert own.tokens.shape[0] == len(wanted)
            tokens = torch.tensor(list(wanted), device=self.device)
            q = None
            if own.q is not None:
                q = torch.zeros_like(own.q)
                q[torch.arange(len(wanted)), tokens] = 1.0
            made.slots[i] = SlotDrafts(tokens, own.confidence, q, own.u)
            assert isinstance(slot, TorchSlot)
        return made

    def drafted(self, drafts: Drafts) -> list[list[int]]:
        made = cast(TorchDrafts, drafts).slots
        return [[] if s is None else [int(t) for t in s.tokens] for s in made]

    @torch.inference_mode()
    def logits(self, slot: Slot) -> FloatArray:
        (mine,) = self._mine([slot])
        mine.check_ready(self._info)
        step, _ = self.forwards.step([(mine, mine.tokens[-1:], mine.filled)])
        out: FloatArray = step.logits[0].double().cpu().numpy()
        return np.array(out)

    def pairs(self, slot: Slot) -> tuple[int, int, int]:
        """The rows past `head_rows` are whatever the last propose left; none of them is ever read
        before it is written again, so none counts as provisional state that is kept."""
        (mine,) = self._mine([slot])
        first, end = self.proposer.ready(mine) if self.proposer is not None else (0, 0)
        return mine.head_rows, 0, end - first if mine.head else 0

    @torch.inference_mode()
    def poison(self, slot: Slot) -> None:
        """A NaN among the slot's cached values reaches every later row of it, and no other slot."""
        (mine,) = self._mine([slot])
        self.cache.values[0][mine.index, 0, 0, 0] = torch.nan
