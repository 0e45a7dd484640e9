"""Depths that chains are judged by, timed again: chains that shun what they take for dear would never notice that
it is not."""

from __future__ import annotations

from collections.abc import Iterable

from mtpx.policy.cost import MeasuredCosts

STALE, AGAIN = 400, 8
"""Rounds after which a depth is timed again that chains of drafts are judged by, and most rounds spent on that."""


class Retiming:
    """Counts the rounds spent on each depth."""

    def __init__(self) -> None:
        self._tries: dict[int, int] = {}

    def due(self, costs: MeasuredCosts, depths: Iterable[int]) -> int | None:
        """The first of these depths that was not timed for long, if there is one; a round is spent on it."""
        for depth in depths:
            if not costs.measured(depth) or costs.age(depth) <= STALE:
                self._tries.pop(depth, None)
            elif self._tries.get(depth, 0) < AGAIN:
                self._tries[depth] = self._tries.get(depth, 0) + 1
                return depth
        return None
