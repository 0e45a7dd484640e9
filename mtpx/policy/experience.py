"""What the adaptive policy has seen: how often drafts stand, how sure the head was, what rounds cost.

Acceptance and calibration are kept apart for greedy and for sampled text, costs for every shape of
batch. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mtpx.errors import PolicyError
from mtpx.policy.confidence import Calibration
from mtpx.policy.cost import MeasuredCosts
from mtpx.policy.drift import DriftingAcceptance
from mtpx.round import SlotRound

GROUPS = 16
"""Batch shapes whose costs are kept."""

MODES = ("greedy", "sampled")

Group = tuple[int, int]
"""(width, sequences of it that may draft): rounds of one group cost alike."""


class Experience:
    """`fixed_costs[d]` prices depth d for good where it is given; otherwise costs are what rounds took."""

    def __init__(self, fixed_costs: Sequence[float] = ()) -> None:
        self.fixed_costs = list(fixed_costs)
        self.acceptance = {mode: DriftingAcceptance() for mode in MODES}
        self.calibration = {mode: Calibration() for mode in MODES}
        self.costs: dict[Group, MeasuredCosts] = {}

    def advance(self, rounds: int = 1) -> None:
        """So many rounds have passed: everything is older."""
        for model in self.acceptance.values():
            model.advance(rounds)
        for costs in self.costs.values():
            costs.advance(rounds)

    def begin(self) -> None:
        """An answer begins, on a text of its own."""
        for model in self.acceptance.values():
            model.begin()
        for calibration in self.calibration.values():
            calibration.begin()

    def costs_of(self, group: Group) -> MeasuredCosts:
        """This group's costs; those of a new one are empty, or the fixed ones."""
        costs = self.costs.get(group)
        if costs is None:
            while len(self.costs) >= GROUPS:
                del self.costs[next(iter(self.costs))]
            costs = self.costs[group] = MeasuredCosts()
            for depth, ms in enumerate(self.fixed_costs):
                # Twice: a first sample far above the others would be doubted.
                costs.sample(depth, ms)
                costs.sample(depth, ms)
        return costs

    def rates(self, modes: Sequence[str], limit: int) -> tuple[list[float], list[float]]:
        """Acceptance by position, and its variance: the batch's mean over sampling regimes."""
        first = self.acceptance[modes[0]]
        rates = first.expected(limit)
        errors = first.errors(rates)
        if len(modes) == 1 or all(mode == modes[0] for mode in modes):
            return rates, errors
        share = sum(mode == modes[0] for mode in modes) / len(modes)
        other = self.acceptance[MODES[modes[0] == MODES[0]]]
        more = other.expected(limit)
        far = other.errors(more)
        return (
            [share * x + (1.0 - share) * y for x, y in zip(rates, more, strict=True)],
            [share * x + (1.0 - share) * y for x, y in zip(errors, far, strict=True)],
        )

    def hoped(self, modes: Sequence[str], limit: int) -> list[float] | None:
        """Acceptance by position had content not changed after all, while that is possible."""
        return self.acceptance[modes[0]].hoped(limit)

    def means(self, mode: str, k: int) -> list[float]:
        return self.acceptance[mode].expected(k)

    def accepts(self, mode: str, position: int, confidence: float, rate: float) -> float:
        """P(the draft at `position` stands), given how sure the head is and the position's mean."""
        return self.calibration[mode].accepts(position, confidence, rate)

    def table(self, mode: str, position: int, rate: float) -> list[float]:
        """The same of every bucket of confidence."""
        return self.calibration[mode].table(position, rate)

    def calibrated(self, modes: Iterable[str]) -> bool:
        return all(self.calibration[mode].ready for mode in set(modes))

    def learn(self, slot: SlotRound, mode: str) -> bool:
        """Acceptance and calibration from one sequence; True if its content has changed. Raises
        `PolicyError` for an outcome that is none."""
        if slot.accepted > slot.verified or slot.verified > slot.drafted:
            raise PolicyError(
                f"the engine reported {slot.accepted} accepted of {slot.verified} verified of "
                f"{slot.drafted} drafts; that is no outcome"
            )
        if not slot.drafted:
            return False
        judged, confidences = slot.judged, slot.confidences
        alarm = self.acceptance[mode].observe(judged, slot.accepted)
        if confidences:
            if judged == slot.verified == slot.accepted < len(confidences):
                # The draft that was cut would have stood as often as its confidence says; without
                # it only the sure ones would be counted.
                rate = self.means(mode, judged + 1)[judged]
                p = self.accepts(mode, judged, confidences[judged], rate)
                self.acceptance[mode].imagine(judged, p)
            self.calibration[mode].observe(confidences, judged, slot.accepted)
        return alarm

    def explain(self) -> dict[str, Any]:
        """Frontier and acceptance by sampling regime, cost in ms per (width, drafting) and depth."""
        return {
            "frontier": {mode: model.frontier for mode, model in self.acceptance.items()},
            "acceptance": {
                mode: {
                    "rates": model.expected(len(model.rates)),
                    "reached": [model.worth(i) for i in range(len(model.rates))],
                }
                for mode, model in self.acceptance.items()
                if model.rates
            },
            "cost_ms": {
                _key(group): {str(d): ms for d, ms in costs.curve()}
                for group, costs in self.costs.items()
            },
        }

    def state(self) -> dict[str, Any]:
        """All of it but fixed costs, as JSON can hold it."""
        return {
            "acceptance": {mode: model.state() for mode, model in self.acceptance.items()},
            "calibration": {mode: c.state() for mode, c in self.calibration.items()},
            "costs": {
                _key(group): costs.state() for group, costs in self.costs.items() if costs.depths
            }
            if not self.fixed_costs
            else {},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state()` gave. Raises `PolicyError` and the errors of what is no such state;
        it is then to be thrown away."""
        for mode in MODES:
            self.acceptance[mode].restore(state["acceptance"][mode])
            self.calibration[mode].restore(state["calibration"][mode])
        for key, costs in list(state["costs"].items())[-GROUPS:]:
            width, drafting = (int(n) for n in key.split("/"))
            if not self.fixed_costs:
                self.costs_of((width, drafting)).restore(costs)


def why_parked(priced: Sequence[tuple[int, float, float]]) -> str:
    """Why nothing is drafted, from (depth, ms, tokens) of a round, plain decode's first."""
    drafting = [one for one in priced if one[0]]
    if not drafting or priced[0][0]:
        return "rounds with drafts have not been timed yet"
    _, plain_ms, _ = priced[0]
    depth, ms, tokens = max(drafting, key=lambda one: one[2] / one[1])
    return (
        f"drafts do not pay here: a round at depth {depth} takes {ms / plain_ms:.2f} times a plain one "
        f"and gives {tokens:.2f} tokens"
    )


def _key(group: Group) -> str:
    return f"{group[0]}/{group[1]}"
