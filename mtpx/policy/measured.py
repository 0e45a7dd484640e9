"""Depth from what was measured: a cost table and a calibration, an objective and a slack.

Nothing is learned on the way and nothing is tried: the same table, calibration, batch and confidences
always give the same depths. Where there is no table for a context, nothing is approximated: the
policy decodes plain and says so once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mtpx.policy.calibration import Calibration
from mtpx.policy.planner import (
    Choice,
    Objective,
    check_objective,
    propose_depth,
    sequence_depths,
)
from mtpx.policy.table import CostTable, context_bucket
from mtpx.round import Decision, Round

if TYPE_CHECKING:
    from mtpx.backend import FloatArray
    from mtpx.policy import Batch

SLACK = 0.1
"""Speed given up for energy unless told otherwise, as a fraction."""


class MeasuredPlanner:
    """Proposes the planner's depth and verifies the rows that pay.

    `tables` are of one machine and pack, one a context bucket. `max_width` is the width above which the
    scheduler decodes everyone plain (default: no cap of its own). `warn` gets a sentence once for
    what has to be read from the nearest measured width, and for contexts without a table.

    Confidences are read only where they may be used: for drafts that are argmax. A batch's depths
    come from one width, that of the whole batch, in both steps. Raises `PolicyError` as
    `mtpx.policy.planner.check_objective` does, and for two tables of one bucket.
    """

    name = "measured"

    def __init__(
        self,
        tables: CostTable | Sequence[CostTable],
        calibration: Calibration,
        *,
        objective: Objective = "speed",
        slack: float = SLACK,
        max_width: int | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        given = [tables] if isinstance(tables, CostTable) else list(tables)
        self.tables = {table.key.context: table for table in given}
        for table in given:
            check_objective(objective, slack, table)
        self.calibration = calibration
        self.objective, self.slack, self.max_width = objective, slack, max_width
        self._warn = warn
        self._said: set[str] = set()
        self._choices: dict[tuple[int, int, int], Choice] = {}
        self._choice = Choice(0, "", [])
        self._table: CostTable | None = None
        self._greedy: list[bool] = []
        self._decision = Decision()
        self.wants_confidence = False

    def propose(self, batch: Batch) -> int:
        n, limit = batch.width, batch.limit
        self._greedy = batch.greedy
        bucket = context_bucket(max(batch.contexts, default=1))
        table = self._table = self.tables.get(bucket)
        if limit <= 0:
            return self._chose(Choice(0, "by_cap", []), "cap")
        if table is None:
            measured = ", ".join(str(b) for b in sorted(self.tables))
            self._say(
                f"no cost table covers a context of {bucket} tokens (measured: up to {measured}), so this "
                f"decodes plain; `mtpx measure --context {bucket}` makes one"
            )
            return self._chose(Choice(0, "by_cost", []), "park")
        if not table.covers(n):
            self._say(
                f"the cost table was measured at widths {', '.join(map(str, table.widths))}; width {n} is "
                "read from the nearest"
            )
        at = (bucket, n, min(limit, table.max_k))
        choice = self._choices.get(at)
        if choice is None:
            choice = self._choices[at] = propose_depth(
                table,
                self.calibration,
                n,
                self.slack,
                n if self.max_width is None else self.max_width,
                objective=self.objective,
                limit=limit,
            )
        if choice.depth:
            return self._chose(choice, "selected")
        return self._chose(choice, "cap" if choice.zero == "by_cap" else "park")

    def _chose(self, choice: Choice, reason: str) -> int:
        self._choice = choice
        usable = choice.depth > 0 and bool(self.calibration.accept)
        self.wants_confidence = usable and any(self._greedy)
        self._decision = Decision(selected=choice.depth, reason=reason)
        return choice.depth

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._warn(sentence)

    def verify(self, confidence: FloatArray) -> list[int]:
        """Depths for the drafts of the round just proposed, (n, k) confidences."""
        counts: list[int] = np.isfinite(confidence).sum(axis=1).tolist()
        if self._table is None or not self._choice.depth:
            return counts
        said: list[list[float]] = [
            row[:count].tolist() if greedy else []
            for row, count, greedy in zip(confidence, counts, self._greedy, strict=True)
        ]
        depth = self._choice.depth
        depths = sequence_depths(
            self._table,
            self.calibration,
            said,
            counts,
            depth,
            len(counts) * depth,
            self.slack,
            objective=self.objective,
        )
        self._decision.cut = sum(counts) - sum(depths)
        return depths

    def decision(self) -> Decision:
        return self._decision

    def observe(self, round: Round) -> None:
        pass

    def explain(self) -> dict[str, Any]:
        """What was weighed for the round just chosen, by depth, and why nothing was drafted, if so."""
        choice = self._choice
        parked = {"parked": self._why_plain()} if choice.zero == "by_cost" else {}
        return parked | {
            "depth": choice.depth,
            "zero": choice.zero,
            "options": [
                {
                    "depth": option.rows,
                    "tokens": option.tokens,
                    "ms": option.ms,
                    "joules": option.joules,
                    "feasible": option.feasible,
                }
                for option in choice.options
            ],
        }

    def _why_plain(self) -> str:
        drafting = self._choice.options[1:]
        if not drafting:
            return "there is no cost table for a context this long"
        best = max(drafting, key=lambda option: option.tokens_per_s)
        plain = self._choice.options[0].tokens_per_s
        return (
            f"its cost table expects {best.tokens_per_s:.3g} tok/s at depth {best.rows} and {plain:.3g} "
            f"of plain decode"
            + ("" if self.objective == "speed" else f" (objective {self.objective})")
        )

    def parameters(self) -> dict[str, Any]:
        return {
            "objective": self.objective,
            "slack": self.slack,
            "max_width": self.max_width,
            "contexts": sorted(self.tables),
            "tables": [table.file_name() for table in self.tables.values()],
            "calibration": self.calibration.file_name(),
        }

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
