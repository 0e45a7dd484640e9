"""The same depth every round. Depth 0 is plain decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mtpx.errors import PolicyError
from mtpx.round import Decision, Round

if TYPE_CHECKING:
    from mtpx.backend import FloatArray
    from mtpx.policy import Batch


class FixedDepth:
    """Propose `depth` drafts every round, verify all of them. Learns nothing."""

    name = "fixed"
    wants_confidence = False

    def __init__(self, depth: int) -> None:
        if depth < 0:
            raise PolicyError(f"depth must be 0 or more, got {depth}")
        self.depth = depth

    def propose(self, batch: Batch) -> int:
        return self.depth

    def verify(self, confidence: FloatArray) -> list[int]:
        return [int(np.isfinite(row).sum()) for row in confidence]

    def decision(self) -> Decision:
        return Decision(selected=self.depth, reason="fixed", cost_sample=False, excluded="fixed")

    def observe(self, round: Round) -> None:
        pass

    def explain(self) -> dict[str, Any]:
        return {}

    def parameters(self) -> dict[str, Any]:
        return {"depth": self.depth}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
