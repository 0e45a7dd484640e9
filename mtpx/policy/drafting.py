"""What drafts cost apart from the forward that verifies them: head steps, reading how sure the head is, and
a forward whose shape changes.

Where rounds tell what drafting took (`Round.draft_ms`), head steps are a curve of their own, by how many were
made: the first finds the head's weights evicted by the target's, or waits for something, and says little of
the others. What a reading takes is told by the round where the device's work is the host's (`Round.ask_ms`);
elsewhere it is the difference to the same chain unread. Where draft and verify are
known as a sum only, both are fitted from sums (`mtpx.policy.cutting`).
"""

from __future__ import annotations

from typing import Any

from mtpx.errors import PolicyError
from mtpx.policy.cost import checked_costs, interpolate, usable_ms
from mtpx.round import Round

TRANSITION = 0.15
"""Extra cost of a changed shape, relative, until it has been seen (published)."""

SEEN = 16
"""Changes of shape after which what one takes is known."""

FIRM = 0.03
"""Relative deviation of a depth's cost above which a change to it tells nothing about changes."""

STALLED = 0.5
"""Relative extra of a change above which it is a stall's: left out."""

LATELY = 16
"""Rounds within which a chain without reading still says what reading adds; after that it is taken to have changed
as the chains that were read."""

PRICED = 16
"""Readings of a kind whose price is told by whatever is known of unread chains, though none was made lately."""

STALL, COLD = 3.0, 4
"""Times its mean that a reading is believed to have taken, where it is timed by itself; how many of the first are
one mean only if none of them was quicker."""

CLAMP = 0.25
"""Largest relative innovation of one sample: a stall moves a mean by a fortieth."""

WEIGHT, LEAST_WEIGHT = 0.1, 0.05
"""Of a head step's newest sample; of a change's, once many were seen."""


def beside_ms(round: Round) -> float | None:
    """What a round took beside its forward, where it tells: head steps, readings, the host's share."""
    if round.verify_ms is not None:
        return round.round_ms - round.verify_ms
    return round.draft_ms


class ChainTimes:
    """ms of chains by head steps made: means of the first samples, then EWMAs, each sample clamped."""

    def __init__(self) -> None:
        self.ms: dict[int, float] = {}
        self.count: dict[int, int] = {}
        self.seen: dict[int, int] = {}

    def sample(self, steps: int, ms: float, now: int) -> None:
        count = self.count[steps] = self.count.get(steps, 0) + 1
        self.seen[steps] = now
        old = self.ms.get(steps)
        if old is None:
            self.ms[steps] = ms
        else:
            bound = CLAMP * old
            self.ms[steps] = old + max(WEIGHT, 1.0 / count) * min(bound, max(-bound, ms - old))

    def state(self) -> dict[str, Any]:
        return {"ms": {str(k): [ms, self.count[k]] for k, ms in self.ms.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PolicyError` unless `state` came from `state()`."""
        for steps, (ms, count) in checked_costs(state.get("ms"), 2).items():
            self.ms[steps], self.count[steps] = ms, max(1, int(min(count, 1e6)))
            self.seen[steps] = -LATELY


class DraftCosts:
    """`unread`, and `read[stepwise]` once or after each draft: what chains take. `price[stepwise]`: ms of a
    reading, once a round or, stepwise, once a draft; `transition`: relative extra cost of a forward whose shape
    changes; `step_ms`: a head step, where it is known from sums only."""

    def __init__(self) -> None:
        self.unread = ChainTimes()
        self.read = {False: ChainTimes(), True: ChainTimes()}
        self.price = {False: 0.0, True: 0.0}
        self.step_ms: float | None = None
        self.transition = TRANSITION
        self._changes = 0
        self._priced = {False: 0, True: 0}
        self._now = 0

    @property
    def apart(self) -> bool:
        """Whether rounds tell what drafting took, without reading."""
        return any(self.unread.ms)

    @property
    def known(self) -> bool:
        return self.apart or self.step_ms is not None

    def table(self, depth: int) -> list[float]:
        """(depth + 1,) ms of so many head steps, unread; beyond the timed ones as their last steps."""
        step = self.step_ms or 0.0
        if not self.apart:
            return [step * d for d in range(depth + 1)]
        curve = sorted(self.unread.ms.items())
        if curve[0][0]:
            curve = [(0, 0.0), *curve]
        (before, before_ms), (last, ms) = curve[-2:]
        step = max(0.0, (ms - before_ms) / (last - before))
        return [
            interpolate(curve, d) if d <= last else ms + step * (d - last) for d in range(depth + 1)
        ]

    def note(
        self,
        steps: int,
        ms: float | None,
        reads: int,
        *,
        stepwise: bool,
        asked: float | None = None,
    ) -> None:
        """`steps` head steps took `ms`, where the round tells; confidences were read `reads` times, which took
        `asked` ms of it, if that is known."""
        self._now += 1
        if ms is None or not usable_ms(ms):
            return
        if reads and asked is not None and 0.0 < asked < ms:
            self._note_asked(asked / reads, stepwise=stepwise)
            self.unread.sample(steps, ms - asked, self._now)
        elif not reads:
            self.unread.sample(steps, ms, self._now)
        elif not self.apart:
            step, old = ms / steps, self.step_ms
            # A stall is worth no more than the cost model's clamp gives it.
            self.step_ms = step if old is None else old + WEIGHT * min(step - old, CLAMP * old)
        else:
            self._note_read(steps, ms, reads, stepwise=stepwise)

    def _note_read(self, steps: int, ms: float, reads: int, *, stepwise: bool) -> None:
        read, unread = self.read[stepwise], self.unread
        read.sample(steps, ms, self._now)
        known = unread.ms.get(steps)
        if known is None:
            return
        if self._now - unread.seen[steps] < LATELY or self._priced[stepwise] < PRICED:
            self._learn_price(stepwise, min(ms - known, known) / reads)
        else:
            unread.ms[steps] = max(0.1 * known, read.ms[steps] - reads * self.price[stepwise])

    def _note_asked(self, ms: float, *, stepwise: bool) -> None:
        """A reading that was timed by itself; the first few may all have found everything cold."""
        if self._priced[stepwise] and ms < self.price[stepwise] and self._priced[stepwise] < COLD:
            self.price[stepwise] = ms
        self._learn_price(stepwise, min(ms, STALL * self.price[stepwise] or ms))

    def _learn_price(self, stepwise: bool, ms: float) -> None:
        """A reading took `ms`."""
        self._priced[stepwise] += 1
        weight = max(LEAST_WEIGHT, 1.0 / self._priced[stepwise])
        self.price[stepwise] += weight * (ms - self.price[stepwise])
        if not self._priced[not stepwise]:
            # Until that has been seen, too.
            self.price[not stepwise] = self.price[stepwise]

    def note_transition(self, ms: float, expected: float, deviation: float) -> None:
        """A forward whose shape was another than the one before: what it took, what it should have, and the
        relative deviation of that."""
        extra = ms / expected - 1.0
        if deviation > FIRM or not extra < STALLED:
            return
        self._changes += 1
        # A mean while there are few, `TRANSITION` being the first of them.
        weight = max(LEAST_WEIGHT, 1.0 / (1 + self._changes))
        self.transition += weight * (max(-STALLED, extra) - self.transition)

    @property
    def changes_known(self) -> bool:
        """Whether enough changes of shape were seen to tell a round's time without one."""
        return self._changes >= SEEN

    def state(self) -> dict[str, Any]:
        return {
            "unread": self.unread.state(),
            "read": [self.read[False].state(), self.read[True].state()],
            "price": [self.price[False], self.price[True]],
            "priced": [self._priced[False], self._priced[True]],
            "step_ms": self.step_ms,
            "transition": self.transition,
            "changes": self._changes,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PolicyError` and the errors of what is no such state; it is then to be thrown away."""
        self.unread.restore(state["unread"])
        for way, times in zip((False, True), state["read"], strict=True):
            self.read[way].restore(times)
        priced = [min(int(n), 1000) for n in state["priced"]]
        self._priced = dict(zip((False, True), priced, strict=True))
        self.price = dict(zip((False, True), map(float, state["price"]), strict=True))
        self.step_ms = None if state["step_ms"] is None else float(state["step_ms"])
        self.transition = float(state["transition"])
        self._changes = min(int(state["changes"]), 1000)
        sane = (
            abs(self.transition) <= STALLED
            and self._changes >= 0
            and min(priced) >= 0
            and 0.0 <= (self.step_ms or 0.0) < 1e9
            and all(abs(ms) < 1e9 for ms in self.price.values())
        )
        if not sane:
            raise PolicyError("the stored costs of drafts leave their range")
