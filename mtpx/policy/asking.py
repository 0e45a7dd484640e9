"""When another depth is tried, and what trials may cost.

Trials are paid from credit: a few rounds at the start, then `SHARE` of all rounds. Trials of what was
timed before also wait for an interval, 4 to 512 rounds, that doubles while they change nothing; a change
of selection or content resets it. Credit gathers while nothing is tried, so that it is there when a
change is noticed. What is worth a trial: `mtpx.policy.trial`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtpx.errors import PolicyError
from mtpx.policy.acceptance import expected_tokens
from mtpx.policy.cost import MeasuredCosts
from mtpx.policy.trial import Trial, choose

CREDIT, SHARE, MOST = 8.0, 0.003, 10.0
"""Rounds that trials may lose at first; share of rounds that adds to it; the most that gathers."""

RENEWED = 4.0
"""Credit where content seems to have changed, at least: a policy that parks on it sees no other drafts
that could tell. Less where that is frequent, since the share of such text is larger already."""

FIRST_INTERVAL, LAST_INTERVAL = 4, 512
"""Rounds between trials of timed depths: at first, and at most."""

SHORTEST_LAST = 32
"""What `LAST_INTERVAL` shrinks to where content keeps changing: to a quarter of the mean time between
changes."""

TRIAL_LOSS = 0.6
"""Rounds a typical trial loses: what pays for one an interval."""


class Asking:
    """`trial` is the one that goes on, if any; `trials` and `lost` count them and the rounds they were
    expected to lose."""

    def __init__(self) -> None:
        self.trial: Trial | None = None
        self.interval = FIRST_INTERVAL
        self.credit = CREDIT
        self.trials = 0
        self.lost = 0.0
        self._since = 0
        self._calm = 0
        self._pace = 4.0 * LAST_INTERVAL

    # -- what happens --------------------------------------------------------------------------

    def tick(self, rounds: int = 1) -> None:
        """So many rounds have passed."""
        self._since += rounds
        self._calm += rounds
        self.credit = min(MOST, self.credit + rounds * max(SHARE, TRIAL_LOSS / self._longest))

    def selection_changed(self) -> None:
        """Another depth is selected: what is next to it is worth a look soon."""
        self.interval, self._since = FIRST_INTERVAL, 0

    def content_changed(self) -> None:
        """What was not worth trying may be now."""
        self.interval = self._since = FIRST_INTERVAL
        self._pace += 0.3 * (self._calm - self._pace)
        self.credit = max(self.credit, RENEWED * min(1.0, 0.25 * self._pace / LAST_INTERVAL))
        self._calm = 0

    def answer_begins(self) -> None:
        """Its text may be another: a trial is due within a few rounds."""
        self._since = max(self._since, self.interval - FIRST_INTERVAL)

    @property
    def _longest(self) -> int:
        """The longest interval: content that was seen to change is asked about more often."""
        return min(LAST_INTERVAL, max(SHORTEST_LAST, int(self._pace / 4)))

    # -- deciding ------------------------------------------------------------------------------

    def next(
        self,
        costs: MeasuredCosts,
        rates: Sequence[float],
        errors: Sequence[float],
        selected: int,
        hoped: Sequence[float] | None,
        explored: int = 0,
    ) -> None:
        """Begin a trial if one is due, worthwhile and affordable. Arguments as in `trial.choose`."""
        due = self._since >= self.interval
        if not due and len(costs.depths) > len(rates):
            return
        self.trial = choose(
            costs,
            rates,
            errors,
            expected_tokens(rates),
            selected,
            credit=self.credit,
            measured_too=due,
            hoped=hoped,
            explored=explored,
        )
        if self.trial is not None:
            self.credit = max(0.0, self.credit - self.trial.loss)
            self.trials += 1
            self.lost += self.trial.loss
        if due:
            self._since = 0
            self.interval = min(2 * self.interval, self._longest)

    # -- keeping -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "interval": self.interval,
            "credit": self.credit,
            "pace": self._pace,
            "since": self._since,
            "calm": self._calm,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PolicyError` and the errors of what is no such state; it is then to be thrown away."""
        self.interval, self.credit = int(state["interval"]), float(state["credit"])
        self._pace = float(state["pace"])
        self._since, self._calm = int(state["since"]), int(state["calm"])
        if not (0 <= self._since < 1e12 and 0 <= self._calm < 1e12):
            raise PolicyError("the stored rounds since the last trial leave their range")
        if not 0.0 <= self._pace < 1e12:
            raise PolicyError("the stored pace of changes leaves its range")
        if not FIRST_INTERVAL <= self.interval <= LAST_INTERVAL or not 0.0 <= self.credit <= MOST:
            raise PolicyError("the stored cadence of trials leaves its range")
