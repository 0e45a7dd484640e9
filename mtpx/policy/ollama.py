"""The public controller of Ollama's MLX runner, re-written from its published facts and nothing else:
the baseline that `AdaptiveDepth` is compared with.

EWMA costs with a clamp, EWMA acceptance by position, climbing at most one past the frontier, seeding
the shallowest depth without a clean sample, probing one past the selection at a doubling interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mtpx.errors import PolicyError
from mtpx.policy.acceptance import AcceptanceModel
from mtpx.policy.cost import CostModel
from mtpx.policy.gate import Gate
from mtpx.round import Decision, Round

if TYPE_CHECKING:
    from mtpx.backend import FloatArray
    from mtpx.policy import Batch

FIRST_INTERVAL, LAST_INTERVAL = 4, 512
"""Rounds between probes: where it starts, and what it doubles up to while probes change nothing."""


class OllamaDepth:
    """Measured costs, measured acceptance, one position at a time."""

    name = "ollama"
    wants_confidence = False

    def __init__(self) -> None:
        self.acceptance = AcceptanceModel()
        self.cost = CostModel()
        self.selected = 0
        self.interval = FIRST_INTERVAL
        self._since = 0
        self._gate = Gate()
        self._decision = Decision()

    def limit(self, cap: int) -> int:
        """One past the acceptance frontier, held to the head's own limit."""
        return min(self.acceptance.frontier + 1, cap)

    def select(self, limit: int) -> int:
        """argmax of committed(N) / cost(N) over 0..limit, ties to the shallower; 0 until costs are
        ready."""
        if not self.cost.ready:
            return 0
        rates = [self.acceptance.committed(d) / self.cost.cost(d) for d in range(limit + 1)]
        return rates.index(max(rates))

    def propose(self, batch: Batch) -> int:
        limit = self.limit(batch.limit)
        chosen = self.select(limit)
        if chosen != self.selected:
            self.selected, self.interval, self._since = chosen, FIRST_INTERVAL, 0
        depth, reason = chosen, "selected"
        unseeded = [d for d in range(limit + 1) if d not in self.cost.ms]
        if unseeded:
            depth, reason = unseeded[0], "seed"
        elif self._since >= self.interval and chosen < limit:
            depth, reason = chosen + 1, "probe"
            self.interval, self._since = min(2 * self.interval, LAST_INTERVAL), 0
        self._decision = Decision(selected=chosen, reason=reason)
        return depth

    def verify(self, confidence: FloatArray) -> list[int]:
        return [int(np.isfinite(row).sum()) for row in confidence]

    def decision(self) -> Decision:
        return self._decision

    def observe(self, round: Round) -> None:
        self._since += 1
        for slot in round.slots:
            self.acceptance.observe(slot.judged, slot.accepted)
        self._decision.excluded = excluded = self._gate.excluded(round)
        self._decision.cost_sample = not excluded
        if not excluded:
            self.cost.sample(round.depth, round.round_ms)

    def explain(self) -> dict[str, Any]:
        return {
            "selected": self.selected,
            "cost_ms": {str(d): ms for d, ms in sorted(self.cost.ms.items())},
            "acceptance": list(self.acceptance.rates),
            "frontier": self.acceptance.frontier,
            "interval": self.interval,
        }

    def parameters(self) -> dict[str, Any]:
        return {"first_interval": FIRST_INTERVAL, "last_interval": LAST_INTERVAL}

    def state(self) -> dict[str, Any]:
        return {
            "acceptance": self.acceptance.state(),
            "cost": self.cost.state(),
            "selected": self.selected,
            "interval": self.interval,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PolicyError` unless `state` came from `state()`."""
        fresh = OllamaDepth()
        try:
            fresh.acceptance.restore(state["acceptance"])
            fresh.cost.restore(state["cost"])
            fresh.selected = int(state["selected"])
            fresh.interval = int(state["interval"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PolicyError("this is not the state of the policy 'ollama'") from error
        if not 0 <= fresh.selected <= 64 or not FIRST_INTERVAL <= fresh.interval <= LAST_INTERVAL:
            raise PolicyError("the stored state of the policy 'ollama' leaves its range")
        self.__dict__.update(fresh.__dict__)
