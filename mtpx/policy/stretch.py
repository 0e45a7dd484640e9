"""Rounds that need no thought: what is chosen stays chosen, and what they teach is learned later, together.

Between two rounds a forward has been through the weights of the whole model, and the policy's code and tables are
in no cache any more: what takes some 20 µs in a simulation takes 143 µs beside the embedded model, 1.5 % of its
rounds. Learned from eight at a time, rounds cost less than half of that. So a stretch of rounds decides by
what was known at its beginning, and ends at once where a round is not what was expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtpx.policy.informed import InformedRound
from mtpx.round import Decision, Round

if TYPE_CHECKING:
    from mtpx.policy import Batch

CLEAR = 1.3
"""A time within this factor of the expected one is no stall, whatever the rounds before it teach."""


class Stretch:
    """`left` rounds at `depth`, of one sequence, each as `selected` for `reason`.
    `expected`: ms of a whole round by drafts verified. `pending`: rounds not learned from yet, each with its
    decision and why its time is no sample. `drafts`: ms of so many head steps, where they are known."""

    __slots__ = (
        "_drafts",
        "_expected",
        "_greedy",
        "_requests",
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
    ) -> None:
        self.left = rounds
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
        whether its time is a sample does not depend on the rounds before it."""
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
        if verified < made:
            if made >= len(self._drafts):
                return False
            expected += self._drafts[made] - self._drafts[verified]
        return expected < CLEAR * round.round_ms and round.round_ms < CLEAR * expected
