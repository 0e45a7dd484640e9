"""Rounds that need no thought: what is chosen stays chosen, and what they teach is learned later, together.

Between two rounds a forward has been through the weights of the whole model, and the policy's code and tables are
in no cache any more: what takes some 20 µs in a simulation takes 143 µs beside the embedded model, 1.5 % of its
rounds. Learned from many at a time, rounds cost a third of that. So a stretch of rounds decides by what was
known at its beginning, and ends at once where a round is not what was expected, or its rounds
together accept more or less than was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtpx.policy.informed import InformedRound
from mtpx.round import Decision, Round

if TYPE_CHECKING:
    from mtpx.policy import Batch

CLEAR = 1.3
"""A time within this factor of the expected one is no stall, whatever the rounds before it teach."""

BALANCE = 2.0
"""Drafts more or fewer accepted than expected that end a stretch: its rounds are learned from. With 24 rounds
and this, content that changes is followed as with 8 rounds and without."""


class Stretch:
    """`left` rounds at `depth`, of one sequence, each as `selected` for `reason`.
    `expected`: ms of a whole round by drafts verified, `stand`: drafts accepted of so many. `pending`: rounds
    not learned from yet, each with its decision and why its time is no sample. `drafts`: ms of so many
    head steps, where they are known."""

    __slots__ = (
        "_balance",
        "_drafts",
        "_expected",
        "_greedy",
        "_requests",
        "_stand",
        "depth",
        "informed",
        "left",
        "pending",
        "reason",
        "selected",
    )

    def __init__(
        self,
        rounds: int,
        greedy: bool,
        depth: int,
        selected: int,
        reason: str,
        informed: InformedRound | None,
        expected: dict[int, float],
        drafts: list[float],
        requests: list[int],
        stand: list[float],
    ) -> None:
        self.left = rounds
        self._stand, self._balance = stand, 0.0
        self.depth, self.selected, self.reason = depth, selected, reason
        self.informed = informed
        self.pending: list[tuple[Round, Decision, str]] = []
        self._greedy = greedy
        self._expected, self._drafts = expected, drafts
        self._requests = requests

    def goes_on(self, batch: Batch) -> bool:
        """Whether the next round, of this batch, is one of it."""
        caps = batch.caps
        return (
            self.left > 0
            and len(caps) == 1
            and caps[0] >= self.depth
            and caps[0] > 0
            and batch.greedy[0] == self._greedy
        )

    def ordinary(self, round: Round) -> bool:
        """Whether the round can wait to be learned from: nothing in it could change what is chosen at once, and
        whether its time is a sample does not depend on the rounds before it. It may be the last to wait."""
        slot = round.slots[0]
        verified, made = slot.verified, slot.drafted
        expected = self._expected.get(verified)
        # The first round of a request is looked at at once.
        if (
            expected is None
            or slot.request not in self._requests
            or not slot.accepted <= verified <= made
        ):
            return False
        self._balance += slot.accepted - self._stand[verified]
        if not -BALANCE < self._balance < BALANCE:
            self.left = 0
        if verified < made:
            if made >= len(self._drafts):
                return False
            expected += self._drafts[made] - self._drafts[verified]
        return expected < CLEAR * round.round_ms and round.round_ms < CLEAR * expected
