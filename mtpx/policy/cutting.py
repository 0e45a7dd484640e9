"""Whether to read the head's confidence, and how deep to draft when drafts may be cut.

Reading costs a synchronisation, drafting what is then cut costs head steps, so both must pay:

- *Off* until the last `ROWS` rounds of calibrated confidences, replayed, say that drafting K and cutting
  beats the selected depth by `MARGIN`. Confidences arrive with the outcomes for nothing.
- *Measuring*: `READS` rounds that read and still verify everything: what they take longer is the
  price of reading. Where draft and verify are not timed apart, `CUTS` rounds that verify one draft
  less, whatever the confidences: the price of a head step is in the difference of their sums.
- *On* while the gain exceeds that price; else off, and asked again later and later.

A cut changes the shape of the forward, and a changed shape costs extra (`transition`, learned): every depth
but the last round's is priced with it, in the replay as in the rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mtpx.policy.acceptance import expected_tokens
from mtpx.policy.cost import MeasuredCosts, interpolate, usable_ms
from mtpx.policy.cut import free_cut, stopping_cut

TRANSITION = 0.15
"""Extra cost of a changed shape, relative, until it has been seen."""

ROWS = 64
"""Rounds of confidences that are replayed."""

EVERY, PATIENCE = 64, 256
"""Rounds between two looks: at first, and at most, while they change nothing."""

READS, CUTS = 16, 7

MARGIN = 0.006
"""Relative gain below which cutting stays off: the replay is an estimate."""


class Cutting:
    """One policy's cuts. `depth` is how deep to draft while `reading`; 0 otherwise."""

    def __init__(self) -> None:
        self.depth = 0
        self.gain = 0.0
        self.read_ms = 0.0
        self.step_ms: float | None = None
        self.transition = TRANSITION
        self.last = 0
        self._rows: deque[tuple[str, list[float]]] = deque(maxlen=ROWS)
        self._wait = EVERY
        self._since = 0
        self._reads = 0
        self._steps: list[float] = []
        self._extra: list[float] = []

    @property
    def reading(self) -> bool:
        return self.depth > 0

    def recheck(self) -> None:
        """Look again at once: another depth was selected."""
        self._since = self._wait

    # -- what a round teaches ------------------------------------------------------------------

    def note(self, mode: str, confidences: Sequence[float] | None) -> None:
        """A sequence's confidences, of a round that looked at them or not."""
        if confidences:
            self._rows.append((mode, list(confidences)))

    def note_draft(self, steps: int, ms: float | None) -> None:
        """What `steps` head steps took, where the round tells."""
        if steps and ms is not None and usable_ms(ms):
            step = ms / steps
            old = self.step_ms
            # A stall is worth no more than the cost model's clamp gives it.
            self.step_ms = step if old is None else old + 0.1 * min(step - old, 0.25 * old)

    def note_transition(self, ms: float, expected: float | None) -> None:
        """A round whose shape was another than the one before: what it took, what it should have."""
        if expected is not None:
            extra = min(0.5, max(-0.5, ms / expected - 1.0))
            self.transition += 0.2 * (extra - self.transition)

    def full(self, ms: float, expected: float | None) -> float | None:
        """A clean round that read and verified everything: its time without the reading, once the
        price of that is known, else `None`."""
        if self._reads < READS:
            if expected is not None:
                self._extra.append(ms - expected)
                self._reads += 1
            if self._reads == READS:
                self.read_ms = max(0.0, sorted(self._extra)[READS // 2])
            return None
        left = ms - self.read_ms
        return left if left > 0.0 else None

    def cut(self, ms: float, drafted: int, verified: int, expected: float | None) -> float | None:
        """A clean round that was cut: the time of a full round at `verified`, or `None` if that cannot
        be told. `expected`: what the cost model says that is; it gives the head step's price where
        draft and verify are only known as a sum."""
        spare = drafted - verified
        ms -= self.read_ms
        if self.step_ms is not None:
            left = ms - self.step_ms * spare
            return left if left > 0.0 else None
        if expected is not None and spare > 0:
            self._steps.append(max(0.0, (ms - expected) / spare))
            if len(self._steps) == CUTS:
                self.step_ms = sorted(self._steps)[CUTS // 2]
                self._steps.clear()
        return None

    # -- deciding ------------------------------------------------------------------------------

    def tick(self) -> None:
        """A round has passed."""
        self._since += 1

    @property
    def due(self) -> bool:
        """Whether it is time for `look`."""
        return self._since >= self._wait and len(self._rows) == ROWS

    def look(
        self,
        costs: MeasuredCosts,
        tokens: Sequence[float],
        selected: int,
        limit: int,
        accepts: Callable[[str, int, float, float], float],
        means: Callable[[str, int], list[float]],
    ) -> None:
        """Replay the recent confidences and switch on, off or to another depth.

        `accepts(mode, position, confidence, rate)`: calibrated P(stands); `means(mode, k)`: mean rates."""
        self._since = 0
        was = self.depth
        curve = [(d, ms) for d, ms in costs.curve() if costs.measured(d)]
        best, best_value = 0, 0.0
        plain_value = 0.0
        for depth in sorted({max(1, selected), selected + 1, selected + 2, was or 1}):
            if depth > limit:
                continue
            verify = self.verify_ms(curve, depth)
            lam = tokens[selected] / interpolate(curve, selected)
            got = spent = whole = 0.0
            last = depth
            mean = {mode: means(mode, depth) for mode in {mode for mode, _ in self._rows}}
            for mode, row in self._rows:
                rates = mean[mode]
                p = [
                    accepts(mode, j, row[j], rates[j]) if j < len(row) else rates[j]
                    for j in range(depth)
                ]
                priced = self.priced(verify, last)
                last = v = self.rule(mode, p, rates, priced, lam)
                committed = expected_tokens(p)
                got += committed[v]
                spent += priced[v] + self.read_ms
                if depth == max(1, selected):
                    whole += committed[min(depth, selected)]
            spent += len(self._rows) * (self.step_ms or 0.0) * depth
            if whole:
                plain_value = whole / len(self._rows) / interpolate(curve, selected)
            if got / spent > best_value:
                best, best_value = depth, got / spent
        self.gain = best_value / plain_value - 1.0 if plain_value else 0.0
        self.depth = best if self.gain > MARGIN else 0
        if self.depth and not was:
            self._reads, self._extra = 0, []
        self._wait = EVERY if self.depth != was else min(2 * self._wait, PATIENCE)

    def verify_ms(self, curve: list[tuple[int, float]], depth: int) -> list[float]:
        """V(0..depth): a round's cost without its head steps."""
        step = self.step_ms or 0.0
        return [max(1e-6, interpolate(curve, d) - step * d) for d in range(depth + 1)]

    def priced(self, verify: Sequence[float], last: int) -> list[float]:
        """V(0..k) with what a change from `last` drafts costs."""
        more = 1.0 + max(0.0, self.transition)
        return [ms if v == last else ms * more for v, ms in enumerate(verify)]

    @staticmethod
    def rule(
        mode: str,
        p: Sequence[float],
        rates: Sequence[float],
        verify: Sequence[float],
        lam: float,
    ) -> int:
        """Drafts to verify: any rule where drafts are argmax, a stopping rule where they are drawn."""
        if mode == "greedy":
            return free_cut(p, verify, lam)
        return stopping_cut(p, rates, verify, lam)

    def forced(self, drafted: int) -> int | None:
        """How many drafts a measuring round verifies, whatever the confidences; `None` when they decide."""
        if self._reads < READS:
            return drafted
        if self.step_ms is None:
            return max(0, drafted - 1)
        return None

    def explain(self) -> dict[str, Any]:
        out: dict[str, Any] = {"depth": self.depth, "gain": self.gain, "read_ms": self.read_ms}
        out["transition"] = self.transition
        if self.step_ms is not None:
            out["step_ms"] = self.step_ms
        return out
