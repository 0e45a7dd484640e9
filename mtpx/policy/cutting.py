"""Whether to read the head's confidence, and how deep to draft when it decides.

Two ways to use it. *Cut*: make all drafts, read once, verify those that pay. *Stepwise*: read after
every draft, and make another only if that pays; it saves head steps, and costs a reading a draft. Reading
costs a synchronisation and a draft that is cut its head step, so all of it must pay:

- *Off* until the last `ROWS` rounds of calibrated confidences, rehearsed (`mtpx.policy.rehearsal`), say that one
  of the ways beats the selected depth by `MARGIN`. Confidences arrive with the outcomes for nothing.
- *Measuring*: `READS` rounds that read and still make and verify everything: what they take longer is the
  price of reading, of each way its own. Where draft and verify are not timed apart, `CUTS` rounds that
  verify one draft less, whatever the confidences: the price of a head step is in the difference of
  their sums. A reading costs the same wherever it is made, so these rounds draft no deeper than costs
  `DEAREST` of what they are worth: a deep chain that nobody cuts is a dear place to ask.
- *On* while the gain exceeds that price; else off, and asked again later and later.

A cut changes the shape of the forward, and a changed shape costs extra (`transition`, learned): every depth
but the last round's is priced with it, in the rehearsal as in the rounds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mtpx.errors import PolicyError
from mtpx.policy.cost import MeasuredCosts, interpolate
from mtpx.policy.drafting import DraftCosts
from mtpx.policy.rehearsal import Prices, rehearse, seen

DOUBT = 0.03
"""What that estimate may be off while shapes seldom change."""

ROWS = 128
"""Rounds of confidences that are rehearsed."""

EVERY, PATIENCE = 64, 256
"""Rounds between two looks: at first, and at most, while they change nothing."""

READS, CUTS = 16, 7

DEAREST = 0.1
"""Share of a round's worth that a measuring round may lose, against the selected depth."""

SURE = 0.012
"""Relative deviation of a depth's cost at which the price of reading is measured there."""

SEEDS = 8
"""Most rounds it is timed in for that."""

MARGIN = 0.002
"""Relative gain below which confidence is not used: the rehearsal is an estimate."""

STAY = -0.003
"""Relative gain above which what is on stays on: going off and on again measures the price anew."""

DEEPER = 2
"""Drafts past the selected depth that are considered: sure chains may be worth more than the mean one."""


class Cutting:
    """One policy's use of confidence. `depth` is how deep a round may draft while `reading`, 0 otherwise;
    `stepwise` says which way."""

    def __init__(self) -> None:
        self.depth = 0
        self.stepwise = False
        self.gain = 0.0
        self.drafts = DraftCosts()
        self.last = 0
        self._rounds_off = 0
        self._measured: set[bool] = set()
        self._rows: deque[tuple[str, list[float]]] = deque(maxlen=ROWS)
        self._wait = self._regret = EVERY
        self._since = 0
        self._reads = self._seeds = 0
        self._measured_at = 2
        self._steps: list[float] = []
        self._extra: list[float] = []

    @property
    def reading(self) -> bool:
        return self.depth > 0

    @property
    def drafting(self) -> int:
        """How deep this round drafts."""
        return min(self.depth, self._measured_at) if self.measuring else self.depth

    def seeds(self, costs: MeasuredCosts, depth: int) -> bool:
        """Whether this round drafts `depth` deep and does not read: the price of reading is told from what
        rounds of that depth take without it. `SEEDS` such rounds at most; a depth that was not timed in
        them is given up."""
        known = costs.measured(depth)
        if known and (not self._unread or self._reads or costs.deviation(depth) <= SURE):
            return False
        self._seeds += 1
        if self._seeds > SEEDS and not known:
            self.off()
        return self._seeds <= SEEDS

    def recheck(self, *, on: bool = False) -> None:
        """Look again at once: another depth was selected. `on`: even while reading, since costs are others."""
        if on or not self.depth:
            self._since = self._wait

    @property
    def _unread(self) -> bool:
        """Whether the price of reading has to be measured: where rounds tell what drafting took, they tell it."""
        return self._reads < READS and not self.drafts.apart

    def off(self) -> None:
        """Stop reading until the next look."""
        self.depth = 0

    # -- what a round teaches ------------------------------------------------------------------

    def note(self, mode: str, confidences: Sequence[float] | None) -> None:
        """A sequence's confidences, of a round that looked at them or not."""
        if confidences and all(-1e9 < c <= 0.0 for c in confidences):
            self._rows.append((mode, list(confidences)))

    def _reading_ms(self, drafted: int) -> float:
        return self.drafts.price[self.stepwise] * (drafted if self.stepwise else 1)

    def full(self, ms: float, drafted: int, expected: float | None, error: float) -> float | None:
        """A clean round that read and verified everything: its time without the reading, once the
        price of that is known, else `None`. `expected`: what it should take, give or take `error` ms."""
        if self._unread:
            if expected is not None:
                self._extra.append(ms - expected)
                self._reads += 1
            if self._reads == READS:
                # What may be an error of the expectation is not held against reading.
                extra = max(0.0, sorted(self._extra)[READS // 2] - error)
                self.drafts.price[self.stepwise] = extra / (drafted if self.stepwise else 1)
                self._measured.add(self.stepwise)
            return None
        left = ms - self._reading_ms(drafted)
        return left if left > 0.0 else None

    def cut(self, ms: float, drafted: int, verified: int, expected: float | None) -> float | None:
        """A clean round that was cut: the time of a full round at `verified`, or `None` if that cannot
        be told. `expected`: what the cost model says that is; it gives the head step's price where
        draft and verify are only known as a sum."""
        spare = drafted - verified
        ms -= self._reading_ms(drafted)
        if self.drafts.known:
            table = self.drafts.table(drafted)
            left = ms - (table[drafted] - table[verified])
            return left if left > 0.0 else None
        if expected is not None and spare > 0:
            self._steps.append(max(0.0, (ms - expected) / spare))
            if len(self._steps) == CUTS:
                self.drafts.step_ms = sorted(self._steps)[CUTS // 2]
                self._steps.clear()
        return None

    # -- deciding ------------------------------------------------------------------------------

    def tick(self, rounds: int = 1) -> None:
        """So many rounds have passed."""
        self._since += rounds
        self._rounds_off = 0 if self.depth else self._rounds_off + rounds

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
        """Rehearse the recent rounds and switch on, off, or to another depth or way.

        `tokens` (k + 1,): expected tokens by depth; `accepts` and `means` as in `rehearsal.seen`."""
        self._since = 0
        was = self.depth, self.stepwise
        base = max(1, selected)
        depths = sorted(
            {d for d in (*range(base, base + DEEPER + 1), self.depth) if 1 <= d <= limit}
        )
        if not depths:
            self.off()
            return
        rows = seen(list(self._rows), depths[-1], accepts, means)
        curve = [(d, ms) for d, ms in costs.curve() if costs.measured(d)]
        own_ms = interpolate(curve, selected)
        # Shapes seldom change while it is off: what may be an error is no reason against.
        doubt = 0.0 if self.depth else DOUBT
        prices = self.prices(curve, depths[-1], tokens[selected] / own_ms, doubt)
        plain = sum(row.tokens[selected] for row in rows) / len(rows) / own_ms
        best, best_value = (0, False), 0.0
        for depth in depths:
            for stepwise in (False, True) if depth > 1 else (False,):
                value = rehearse(
                    rows,
                    depth,
                    prices,
                    stepwise=stepwise,
                    read_ms=max(0.0, self.drafts.price[stepwise]),
                )
                if value > best_value:
                    best, best_value = (depth, stepwise), value
        self.gain = best_value / plain - 1.0
        worth = {d: tokens[d] / _straight(curve, d) for d in depths}
        least = (1.0 - DEAREST) * tokens[selected] / own_ms
        # Stepwise, one draft is made without being asked about.
        self._measured_at = max([2, *(d for d in depths if worth[d] >= least)])
        if self.gain > (STAY if was[0] else MARGIN):
            self.depth, self.stepwise = best
        else:
            self.off()
        if self.depth != was[0]:
            self._seeds = 0
        if self.depth and (not was[0] or self.stepwise != was[1]):
            self._switched_on()
        self._schedule(was)

    def _schedule(self, was: tuple[int, bool]) -> None:
        """When to look again: soon after a change; what was on in vain is tried later each time."""
        if self.depth:
            if was[0]:
                self._regret = max(EVERY, self._regret // 2)
            self._wait = (
                EVERY if (self.depth, self.stepwise) != was else min(2 * self._wait, PATIENCE)
            )
        elif was[0]:
            self._regret = min(2 * self._regret, 4 * PATIENCE)
            self._wait = self._regret
        else:
            self._wait = max(self._regret, min(2 * self._wait, PATIENCE))

    def _switched_on(self) -> None:
        """Measure the price of reading this way, unless that was done not long ago."""
        if self._rounds_off > PATIENCE:
            self._measured.clear()
        self._rounds_off = 0
        self._reads = READS if self.stepwise in self._measured else 0
        self._extra = []

    def prices(
        self, curve: list[tuple[int, float]], depth: int, rate: float, doubt: float = 0.0
    ) -> Prices:
        """What rounds up to `depth` cost, by the measured `curve`; beyond it, by its last straight line.
        A change of shape is priced at `doubt` less than it seems to cost."""
        draft = self.drafts.table(depth)
        verify = [max(1e-6, _straight(curve, d) - draft[d]) for d in range(depth + 1)]
        return Prices(verify, draft, 1.0 + max(0.0, self.drafts.transition - doubt), rate)

    @property
    def measuring(self) -> bool:
        """Whether drafts are all made, and cut whatever the confidences: a price is being measured."""
        return self._unread or not self.drafts.known

    def forced(self, drafted: int) -> int:
        """How many drafts a measuring round verifies."""
        return drafted if self._unread else max(0, drafted - 1)

    def explain(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "depth": self.depth,
            "stepwise": self.stepwise,
            "gain": self.gain,
            "read_ms": self.drafts.price[False],
            "ask_ms": self.drafts.price[True],
            "transition": self.drafts.transition,
        }
        if self.drafts.known:
            out["draft_ms"] = self.drafts.table(max(2, self.depth))
        return out

    # -- keeping -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON can hold it."""
        return {
            "depth": self.depth,
            "stepwise": self.stepwise,
            "gain": self.gain,
            "drafts": self.drafts.state(),
            "since": self._since,
            "wait": [self._wait, self._regret],
            # The samples of a price half measured are not kept.
            "measured": sorted(self._measured),
            "rows": [[mode, *row] for mode, row in self._rows],
        }

    def restore(self, state: dict[str, Any], modes: Sequence[str]) -> None:
        """Raises `PolicyError` and the errors of what is no such state; it is then to be thrown away."""
        self.depth, self.stepwise = int(state["depth"]), bool(state["stepwise"])
        self._measured = {bool(way) for way in state["measured"]}
        self._reads = READS if self.stepwise in self._measured else 0
        self.gain = float(state["gain"])
        self.drafts.restore(state["drafts"])
        self._since = int(state["since"])
        self._wait, self._regret = map(int, state["wait"])
        for mode, *row in state["rows"]:
            if mode not in modes or len(row) > 64:
                raise PolicyError("the stored confidences are not a policy's state")
            self._rows.append((mode, [float(c) for c in row]))
        sane = (
            0 <= self.depth <= 64
            and self._since >= 0
            and all(EVERY <= wait <= 4 * PATIENCE for wait in (self._wait, self._regret))
            and math.isfinite(self.gain)
        )
        if not sane:
            raise PolicyError("the stored use of confidence leaves its range")


def _straight(curve: list[tuple[int, float]], depth: int) -> float:
    """As `interpolate`, and beyond the last cell on the line through the last two, never downwards."""
    last, ms = curve[-1]
    if depth <= last or len(curve) < 2:
        return interpolate(curve, depth)
    before, before_ms = curve[-2]
    return ms + max(0.0, (ms - before_ms) / (last - before)) * (depth - last)
