"""A round in which the head's confidence decides: how long its chains become, how much of them is verified.

Made when the round is proposed, or taken again for the next one; what it is made of does not change within a
round, so that a decision about draft j depends on confidences 1..j of its sequence and on nothing drawn
later (`mtpx.policy.cut`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mtpx.backend import FloatArray
from mtpx.policy.acceptance import expected_tokens
from mtpx.policy.cost import MeasuredCosts, interpolate
from mtpx.policy.cut import goes_on
from mtpx.policy.cutting import Cutting
from mtpx.policy.experience import Experience
from mtpx.policy.rehearsal import drafts_to_verify


class InformedRound:
    """`modes` and `caps` (n,): each sequence's sampling regime and the most drafts it may make this round;
    `selected`: the depth whose rate a draft has to beat. `cut` and `stopped` count what was not verified,
    and what was not made."""

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
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.cut = self.stopped = 0
        self._verify = self._prices.after(self._cutting.last)

    def suits(self, modes: Sequence[str], caps: Sequence[int]) -> bool:
        """Whether it was made for sequences like these."""
        return self._modes == modes and self._caps == caps

    def go_on(self, confidence: FloatArray) -> list[bool]:
        """Which sequences draft another after j drafts, (n, j)."""
        made = confidence.shape[1]
        answer = []
        for mode, cap, row in zip(self._modes, self._caps, confidence.tolist(), strict=True):
            if made >= cap or math.isnan(row[-1]):
                answer.append(False)
                continue
            further = self._cutting.measuring or goes_on(
                self._accepts(mode, row),
                self._means[mode][:cap],
                self._verify,
                self._prices.step,
                self._prices.rate,
            )
            if not further:
                self.stopped += cap - made
            answer.append(further)
        return answer

    def verify(self, confidence: FloatArray) -> list[int]:
        """Drafts to verify of (n, k) confidences, NaN where there is no draft."""
        depths = []
        for mode, padded in zip(self._modes, confidence.tolist(), strict=True):
            row = [c for c in padded if not math.isnan(c)]
            if self._cutting.measuring:
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
