"""A round in which the head's confidence decides: how long its chains become, how much of them is verified.

Made when the round is proposed, or taken again for the next one; what it is made of does not change within a
round, so that a decision about draft j depends on confidences 1..j of its sequence and on nothing drawn
later (`mtpx.policy.cut`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from mtpx.backend import FloatArray
from mtpx.policy.acceptance import expected_tokens
from mtpx.policy.confidence import EDGES
from mtpx.policy.cost import MeasuredCosts, interpolate
from mtpx.policy.cut import goes_on
from mtpx.policy.cutting import Cutting
from mtpx.policy.experience import Experience
from mtpx.policy.rehearsal import drafts_to_verify


class InformedRound:
    """`modes` and `caps` (n,): each sequence's sampling regime and the most drafts it may make this round;
    `selected`: the depth whose rate a draft has to beat. `cut` and `stopped` count what was not verified,
    and what was not made; `settled` says that all that was made is verified, unread."""

    def __init__(
        self,
        cutting: Cutting,
        experience: Experience,
        costs: MeasuredCosts,
        modes: Sequence[str],
        caps: Sequence[int],
        selected: int,
    ) -> None:
        self._cutting, self._experience = cutting, experience
        self._modes, self._caps = list(modes), list(caps)
        depth = max(caps, default=0)
        curve = [(d, ms) for d, ms in costs.curve() if costs.measured(d)]
        self._means = {mode: experience.means(mode, max(depth, selected)) for mode in set(modes)}
        tokens = [expected_tokens(self._means[mode])[selected] for mode in modes]
        # What is to be beaten is not the selected depth but what confidence makes of it.
        rate = sum(tokens) / len(tokens) / interpolate(curve, selected)
        rate *= 1.0 + max(0.0, cutting.gain)
        self._prices = cutting.prices(curve, depth, rate)
        self._tables: list[list[float]] = []
        self._least: dict[tuple[int, ...], int] = {}
        self._verified: dict[tuple[int, ...], int] = {}
        self._measuring = cutting.measuring
        if len(modes) == 1 and not self._measuring:
            mode = self._modes[0]
            self._tables = [
                experience.table(mode, j, mean)
                for j, mean in enumerate(self._means[mode][: self._caps[0]])
            ]
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.cut = self.stopped = 0
        self.settled = False
        self._last = self._cutting.last
        self._verify = self._prices.after(self._last)
        self._buckets: list[int] = []

    def suits(self, modes: Sequence[str], caps: Sequence[int]) -> bool:
        """Whether it was made for sequences like these."""
        return (
            self._modes == modes
            and self._caps == caps
            and self._measuring == self._cutting.measuring
        )

    def go_on(self, confidence: FloatArray) -> list[bool]:
        """Which sequences draft another after j drafts, (n, j)."""
        if self._tables:
            return [
                self.lone_goes_on(float(confidence[0, -1])) and len(self._buckets) < self._caps[0]
            ]
        made = confidence.shape[1]
        answer = []
        for mode, cap, row in zip(self._modes, self._caps, confidence.tolist(), strict=True):
            if made >= cap or math.isnan(row[-1]):
                answer.append(False)
                continue
            further = self._measuring or goes_on(
                self._accepts(mode, row),
                self._means[mode][:cap],
                self._verify,
                self._prices.draft,
                self._prices.rate,
            )
            if not further:
                self.stopped += cap - made
            answer.append(further)
        return answer

    def lone_goes_on(self, sure: float) -> bool:
        """As `go_on`, of one sequence, told of each of its drafts: a lookup, as long as its rounds are alike.
        The surer the last draft, the more another is worth, so one bucket says it of all."""
        buckets = self._buckets
        before = (self._last, *buckets)
        bucket = bisect_left(EDGES, sure)
        buckets.append(bucket)
        if self._measuring:
            return True
        left = self._caps[0] - len(buckets)
        if left > 0:
            least = self._least.get(before)
            if least is None:
                least = self._least[before] = self._least_bucket()
            if bucket >= least:
                return True
            self.stopped += left
        key = (*before, bucket)
        depth = self._verified.get(key)
        if depth is None:
            depth = self._verified[key] = self._to_verify(self._looked_up(buckets))
        self.cut = len(buckets) - depth
        self.settled = not self.cut
        return False

    def lone_verify(self) -> int:
        """As `verify`, of the drafts that `lone_goes_on` was told of."""
        made = len(self._buckets)
        if self._measuring:
            self.cut = made - self._cutting.forced(made)
        return made - self.cut

    def _looked_up(self, buckets: Sequence[int]) -> list[float]:
        """P(stands) of a lone sequence's drafts, by the bucket of each one's confidence."""
        return [table[b] for table, b in zip(self._tables, buckets, strict=False)]

    def _to_verify(self, accepts: list[float]) -> int:
        mode = self._modes[0]
        return drafts_to_verify(
            mode,
            accepts,
            self._means[mode][: len(accepts)],
            self._verify,
            self._prices.rate,
            chain=self._cutting.stepwise,
        )

    def _least_bucket(self) -> int:
        """The least bucket of the draft just made with which its chain goes on."""
        accepts = self._looked_up(self._buckets)
        table = self._tables[len(accepts) - 1]
        means, prices = self._means[self._modes[0]][: self._caps[0]], self._prices
        low, high = 0, len(table)
        while low < high:
            middle = (low + high) // 2
            accepts[-1] = table[middle]
            if goes_on(accepts, means, self._verify, prices.draft, prices.rate):
                high = middle
            else:
                low = middle + 1
        return low

    def verify(self, confidence: FloatArray) -> list[int]:
        """Drafts to verify of (n, k) confidences, NaN where there is no draft."""
        if self._tables:
            buckets = [bisect_left(EDGES, sure) for sure in confidence[0].tolist()]
            depth = self._to_verify(self._looked_up(buckets))
            self.cut = len(buckets) - depth
            return [depth]
        depths = []
        for mode, padded in zip(self._modes, confidence.tolist(), strict=True):
            row = [c for c in padded if not math.isnan(c)]
            if self._measuring:
                depths.append(self._cutting.forced(len(row)))
            else:
                depths.append(
                    drafts_to_verify(
                        mode,
                        self._accepts(mode, row),
                        self._means[mode][: len(row)],
                        self._verify,
                        self._prices.rate,
                        chain=self._cutting.stepwise,
                    )
                )
            self.cut += len(row) - depths[-1]
        return depths

    def _accepts(self, mode: str, row: Sequence[float]) -> list[float]:
        mean = self._means[mode]
        return [self._experience.accepts(mode, j, c, mean[j]) for j, c in enumerate(row)]
