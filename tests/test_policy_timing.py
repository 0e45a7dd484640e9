"""What a round's time teaches of its depth where its shape is another than the one before."""

from __future__ import annotations

import pytest

from mtpx.policy.cost import MeasuredCosts
from mtpx.policy.cutting import Cutting
from mtpx.policy.experience import Experience
from mtpx.policy.timing import Timing
from mtpx.round import Round, Route, SlotRound

FORWARD, STEPS = (10.0, 11.0, 12.0, 13.0), (0.1, 1.0, 1.6, 2.0)
MORE = 1.05
"""What a changed shape takes, relative."""


class Rounds:
    """Rounds that tell what their drafts took."""

    def __init__(self) -> None:
        self.seen, self.cutting = Experience(), Cutting()
        self.timing = Timing(self.seen, self.cutting, feedback=True)
        self.costs: MeasuredCosts = self.seen.costs_of((1, 1))
        self.last = 0
        for made in (0, 1, 2, 3):
            for _ in range(20):
                self.round(made, made, FORWARD)

    def round(self, made: int, verified: int, forward: tuple[float, ...]) -> None:
        changed = verified != self.last
        verify = forward[verified] * (MORE if changed else 1.0)
        slot = SlotRound(0, 0, made, verified, 0, 1)
        round = Round(0, 0, made, [slot], verify + STEPS[made], Route("compiled", ""))
        round.verify_ms = verify
        self.seen.advance()
        self.timing.even(
            self.costs, round, made, verified, "transition" if changed else "", informed=False
        )
        self.last = verified


def test_a_depth_that_is_never_used_twice_in_a_row_is_timed_by_its_changes() -> None:
    """Chains that go by confidence verify 1, 1, 2, 1: what depth 2 is judged by would grow old."""
    rounds = Rounds()
    for _ in range(40):
        for verified in (1, 1, 2):
            rounds.round(verified, verified, FORWARD)
    assert rounds.costs.cost(2) == pytest.approx(12.0 + 1.6, rel=0.01)
    dearer = (10.0, 11.0, 14.0, 13.0)
    for _ in range(60):
        for verified in (1, 1, 2):
            rounds.round(verified, verified, dearer)
    assert rounds.costs.cost(2) == pytest.approx(14.0 + 1.6, rel=0.06)
    assert rounds.costs.cost(1) == pytest.approx(11.0 + 1.0, rel=0.03)


def test_a_chain_that_was_cut_times_the_forward_it_had() -> None:
    rounds = Rounds()
    dearer = (10.0, 11.0, 14.0, 13.0)
    for _ in range(80):
        rounds.round(1, 1, dearer)
        rounds.round(1, 1, dearer)
        rounds.round(3, 2, dearer)
    assert rounds.costs.cost(2) == pytest.approx(14.0 + 1.6, rel=0.06)
    assert rounds.costs.cost(3) == pytest.approx(13.0 + 2.0, rel=0.03)


def test_changes_teach_nothing_of_a_depth_before_it_is_known_what_a_change_takes() -> None:
    rounds = Rounds()
    rounds.costs.changed(1, 12.2)
    before = rounds.costs.cost(2)
    assert not rounds.cutting.drafts.changes_known
    rounds.round(2, 2, (10.0, 11.0, 12.4, 13.0))
    assert rounds.costs.cost(2) == before


@pytest.mark.parametrize("ms", [0.0, -1.0, float("nan"), 60.0, 1.0])
def test_a_changed_round_that_stalled_or_has_no_time_is_ignored(ms: float) -> None:
    costs = MeasuredCosts()
    for _ in range(9):
        costs.advance()
        costs.sample(1, 10.0)
    costs.changed(1, ms)
    costs.changed(3, 12.0)
    assert costs.cost(1) == pytest.approx(10.0)
    assert not costs.measured(3), "a depth's first sample is of two equal rounds"
