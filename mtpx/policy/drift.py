"""How often drafts stand in content that changes: a long mean, a change detector, and second thoughts.

Drift. A weight of 0.1 takes dozens of rounds to see prose follow code, and its noise alone (±0.1 at
a rate of 0.7) mistakes one depth for another for ever. A mean over `memory` observations is 5 times
quieter; what it lacks in speed is the business of a change detector: Page's two-sided CUSUM
(1954, "Continuous inspection schemes") on the residuals of all positions pooled, since content
moves all of them the same way. An alarm replaces each rate by the mean since the excursion began, drawn
towards the long mean, and carries positions that were not reached along by the same shift in
log-odds. From 0.85 to 0.4 that takes 4 to 8 rounds at depth 3.

False alarms. Eight drafts that fall in a row may be luck, and a policy that parks on them sees no
other. So what the rates were before the alarm stays possible, by Bayes' rule over the drafts judged since:
it adds to the variance (`errors`), is worth a trial while one in ten (`hoped`), and holds again once
nothing else is likely. Where no draft is judged for long, what a text was like before, it may be again.

Other texts. What the last answer ended with says little of the next one: a table of figures after
which nothing is drafted is no reason to begin a story without drafts. A mean over `LONG` observations,
that no alarm touches, stands for `BEGINNING` of them when an answer begins, the newest for at most
`CARRIED` (`begin`).
"""

from __future__ import annotations

import math
from typing import Any

from mtpx.errors import PolicyError
from mtpx.policy.acceptance import TRUST, check_counts, checked_numbers, checked_rates

MEMORY = 200.0
"""Observations a rate averages over when a change detector stands by: ±0.02 at a rate of 0.7."""

LONG = 2000.0
"""Observations of the mean that outlives answers: some dozen of them."""

BEGINNING = 32.0
"""Observations that the long mean is worth when an answer begins. Fewer, and four first drafts that
fall park a head that pays; many more, and a text unlike the others is met too slowly."""

CARRIED = 16.0
"""Observations that the end of one answer is worth for the next: talk often stays with its subject."""

UNSEEN = 0.5
"""Share of that worth that is left by each answer in which no draft was judged: a head that was parked by the
first text it met is tried on the next ones."""

SLACK = 0.2
"""Residual that the detector forgives each observation: about half of the smallest shift worth an alarm."""

ALARM = 5.0
"""Excursion that is an alarm: at rates around 0.8 a false one in some 9,000 observations."""

REMEMBERED = 4.0
"""Observations that the long mean is worth in the rate after an alarm."""

FALSE_ALARM = 0.3
"""Probability that the rates before an alarm still hold, until drafts are judged."""

RETURN = 1000.0
"""Rounds without a judged draft after which half of that probability is back."""

POSSIBLE, LIKELY = 0.1, 0.9
"""That probability, below which it is no reason for a trial, and above which the alarm is taken back."""

SETTLED = 50.0
"""Observations of a rate after which what it was before the alarm is no question any more."""

STALE = 3000.0
"""Rounds after which an unobserved rate is worth one observation."""

FRESH = 8
"""Rounds within which an observation has no age."""

PRIOR = 0.7
"""Rate of a position of which nothing is known, worth two observations."""


class DriftingAcceptance:
    """Conditional acceptance by position that follows changing content: a long mean, a detector.

    `advance(rounds)` lets time pass, so that what has not been observed lately counts for less.
    """

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.counts: list[float] = []
        self.alarms = 0
        self._long: list[tuple[float, float]] = []
        self._seen: list[int] = []
        self._reached: list[float] = []
        self._now = 0
        self._up = self._down = 0.0
        self._risen: list[list[float]] = []
        self._fallen: list[list[float]] = []
        self._held = 0.0
        self._idle = 0
        self._weighed = 0
        self._before: list[float] = []
        self._after: list[float] = []

    @property
    def frontier(self) -> int:
        """The deepest position such that it and all before it are trusted (0: none)."""
        for i, count in enumerate(self._reached):
            if count < TRUST:
                return i
        return len(self._reached)

    def advance(self, rounds: int = 1) -> None:
        self._now += rounds

    def begin(self) -> None:
        """An answer begins: its text is more like all texts so far than like the end of the last one."""
        self._up = self._down = 0.0
        for pair in (*self._risen, *self._fallen):
            pair[0] = pair[1] = 0.0
        for i, (mean, seen) in enumerate(self._long):
            weight, n = min(seen, BEGINNING), min(self.counts[i], CARRIED)
            if weight + n > 0.0:
                self.rates[i] = (weight * mean + n * self.rates[i]) / (weight + n)
                # No more than were observed, and as long ago: nothing was seen by beginning.
                self.counts[i] = UNSEEN**self._idle * min(weight + n, max(seen, 1.0))
        self._idle += 1

    def worth(self, position: int) -> float:
        """Observations this rate is worth now."""
        if position >= len(self.counts):
            return 0.0
        age = max(0, self._now - self._seen[position] - FRESH)
        return 1.0 / (1.0 / max(self.counts[position], 1e-9) + age / STALE)

    def expected(self, limit: int) -> list[float]:
        """Rates of positions 0..limit-1. One under `TRUST` is drawn towards the one before it."""
        out: list[float] = []
        before = PRIOR
        for i in range(limit):
            if i < len(self.rates):
                n = self._reached[i]
                rate = self.rates[i]
                if n < TRUST:
                    rate = (n * rate + 2.0 * before) / (n + 2.0)
            else:
                rate = before
            out.append(rate)
            before = rate
        return out

    def errors(self, rates: list[float]) -> list[float]:
        """Variance of each of these rates (`expected`), by how much was seen and how long ago, and by what
        they were before an alarm that may have been none.

        Laplace's rule of succession keeps a rate of 0 or 1 from passing for certain."""
        out: list[float] = []
        luck = self._luck
        for i, rate in enumerate(rates):
            n = self.worth(i)
            middle = (n * rate + 1.0) / (n + 2.0)
            doubt = 0.0
            if i < len(self._before):
                doubt = luck * (self._before[i] - self._after[i]) ** 2
            out.append(middle * (1.0 - middle) / (n + 2.0) + doubt)
        return out

    @property
    def _luck(self) -> float:
        """Probability that the rates before the last alarm hold (again)."""
        if not self._before:
            return 0.0
        age = max(0, self._now - self._weighed - FRESH)
        return self._held + (FALSE_ALARM - self._held) * age / (age + RETURN)

    def hoped(self, limit: int) -> list[float] | None:
        """Rates of positions 0..limit-1 before the last alarm, while they may hold."""
        if self._luck < POSSIBLE:
            return None
        return [*self._before, *[self._before[-1]] * limit][:limit]

    def observe(self, judged: int, accepted: int) -> bool:
        """A sequence's round; True if it raised an alarm. Raises `PolicyError` on impossible counts."""
        check_counts(judged, accepted)
        alarm = False
        if judged:
            self._idle = 0
        for i in range(judged):
            stood = 1.0 if i < accepted else 0.0
            if i == len(self.rates):
                self.rates.append(self.expected(i + 1)[i])
                self.counts.append(0.0)
                self._long.append((self.rates[i], 0.0))
                self._seen.append(self._now)
                self._reached.append(0.0)
                self._risen.append([0.0, 0.0])
                self._fallen.append([0.0, 0.0])
            if i < len(self._before):
                self._weigh(i, stood)
            rate, n = self.rates[i], self.worth(i)
            if n >= TRUST:
                alarm |= self._watch(i, stood, stood - rate)
                rate, n = self.rates[i], self.worth(i)
            n = min(n + 1.0, MEMORY)
            self.counts[i] = n
            self.rates[i] = rate + (stood - rate) / n
            self._seen[i] = self._now
            self._reached[i] += 1.0
            mean, seen = self._long[i]
            seen = min(seen + 1.0, LONG)
            self._long[i] = (mean + (stood - mean) / seen, seen)
        return alarm

    def imagine(self, position: int, stands: float) -> None:
        """A draft that was reached and not verified, of which `stands` is believed."""
        if position < len(self.rates):
            n = min(self.worth(position) + 1.0, MEMORY)
            self.counts[position] = n
            self.rates[position] += (stands - self.rates[position]) / n
            self._seen[position] = self._now

    def _weigh(self, i: int, stood: float) -> None:
        """Bayes' rule on whether the last alarm was luck; taken back if it was."""
        old, new = (min(max(rates[i], 0.02), 0.98) for rates in (self._before, self._after))
        luck = self._luck
        held = luck * (old if stood else 1.0 - old)
        self._held = held / (held + (1.0 - luck) * (new if stood else 1.0 - new))
        self._weighed = self._now
        if self._held > LIKELY:
            self.rates[: len(self._before)] = self._before
            self._before = []
        elif self.counts[i] >= SETTLED:
            self._before = []

    def _watch(self, i: int, stood: float, residual: float) -> bool:
        self._up = max(0.0, self._up + residual - SLACK)
        self._down = max(0.0, self._down - residual - SLACK)
        for level, sample in ((self._up, self._risen), (self._down, self._fallen)):
            if level == 0.0:
                for one in sample:
                    one[0] = one[1] = 0.0
            else:
                sample[i][0] += 1.0
                sample[i][1] += stood
        if self._up < ALARM and self._down < ALARM:
            return False
        self._replace(self._risen if self._up >= ALARM else self._fallen)
        self._up = self._down = 0.0
        self.alarms += 1
        return True

    def _replace(self, sample: list[list[float]]) -> None:
        """The rates since the excursion began; those not reached move along in log-odds."""
        before = list(self.rates)
        shifts: list[float] = []
        for i, (n, hits) in enumerate(sample):
            if n >= 3.0:
                prior = self.rates[i] + REMEMBERED * self._long[i][0]
                fresh = (hits + prior) / (n + 1.0 + REMEMBERED)
                shifts.append(_logit(fresh) - _logit(self.rates[i]))
                self.rates[i], self.counts[i] = fresh, n
        shift = sum(shifts) / len(shifts) if shifts else 0.0
        for i, (n, _) in enumerate(sample):
            if n < 3.0:
                self.rates[i] = 1.0 / (1.0 + math.exp(-_logit(self.rates[i]) - shift))
                self.counts[i] = min(self.counts[i], 4.0)
        self._before, self._after = before, list(self.rates)
        self._held, self._weighed = FALSE_ALARM, self._now
        for pair in (*self._risen, *self._fallen):
            pair[0] = pair[1] = 0.0

    def state(self) -> dict[str, Any]:
        return {
            "rates": list(self.rates),
            "counts": list(self.counts),
            "ages": [self._now - seen for seen in self._seen],
            "reached": list(self._reached),
            "long": {
                "rates": [mean for mean, _ in self._long],
                "counts": [seen for _, seen in self._long],
            },
            "idle": self._idle,
            "alarm": {
                "before": list(self._before),
                "after": list(self._after) if self._before else [],
                "held": self._held,
                "age": self._now - self._weighed,
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PolicyError` unless `state` came from `state()`."""
        rates, counts = checked_rates(state)
        means, seen = checked_rates(state.get("long"))
        ages, reached = checked_numbers(state.get("ages")), checked_numbers(state.get("reached"))
        if not len(rates) == len(means) == len(ages) == len(reached):
            raise PolicyError("the stored acceptance rates and their long means do not match")
        alarm, idle = state.get("alarm"), state.get("idle")
        if not isinstance(alarm, dict) or not isinstance(idle, int) or idle < 0:
            raise PolicyError("the stored acceptance rates are not a policy's state")
        before, after = (checked_numbers(alarm.get(when), 1.0) for when in ("before", "after"))
        (held,), (age,) = (
            checked_numbers([alarm.get("held")], 1.0),
            checked_numbers([alarm.get("age")]),
        )
        if not len(before) == len(after) <= len(rates):
            raise PolicyError(
                "the stored acceptance rates and those before their alarm do not match"
            )
        self.__init__()  # type: ignore[misc]
        self.rates, self.counts = rates, counts
        self._long = list(zip(means, seen, strict=True))
        self._seen = [-int(age) for age in ages]
        self._reached = reached
        self._risen = [[0.0, 0.0] for _ in rates]
        self._fallen = [[0.0, 0.0] for _ in rates]
        self._idle = min(idle, 1000)
        self._before, self._after = before, after
        self._held, self._weighed = held, -int(age)


def _logit(rate: float) -> float:
    rate = min(max(rate, 0.02), 0.98)
    return math.log(rate / (1.0 - rate))
