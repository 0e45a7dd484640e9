"""What a round costs at each depth.

Facts (the public controller): an EWMA of the wall time of a whole round per visited depth, weight
0.3, one sample moving it by at most 25 % before the weight; read by straight lines between sampled
depths, flat outside; ready once two distinct depths are sampled.

What `MeasuredCosts` adds:

- *Ageing.* The depth in use shows how the machine changes (context grows: the same ms for every
  depth; heat: the same factor). Other depths follow it, by the smaller of the two: an optimistic
  error is tested within a few rounds and healed, a pessimistic one would never be noticed. The
  reference is the level when a depth was last sampled, so noise cannot ratchet it down.
- *Stalls.* A sample over `HOLD` times the estimate is held, not believed. Four in a row are a slower
  machine (one sample in a hundred stalls: 1e-8) and believed at once, whole. Nothing makes a
  round too fast: two low ones are enough.
- *Changes.* A round whose shape was another than the one before is no sample. Once it is known what a change
  takes (`changed`), it is one without that, of its own depth only: depths that are in use and never twice in a row
  would grow old else.
- *First samples.* A stall in a depth's first sample would hide the depth for good. Changing shape only
  makes a round longer, so the round that went there is an upper bound (`bound`): a first sample far
  above it, or, without one, far above what was seen at other depths, is kept only once a second has
  confirmed it, the lower of the two.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

from mtpx.errors import PolicyError

WEIGHT = 0.3
"""Of the newest sample."""

CLAMP = 0.25
"""Largest relative innovation of one sample, before the weight: one stall moves 7.5 %."""

HOLD = 1.5
"""Above this factor a sample is held: published stalls are 2 to 6 times, noise a few per cent."""

SLOWER, FASTER = 4, 2
"""Held samples in a row that are believed."""

IN_USE = 3
"""Rounds since the last sample within which a depth counts as in use: its surprises are the machine's."""

LATELY = 64
"""Rounds since the last sample within which a depth's own cost is taken to be what it was."""

UNDONE = 200
"""Rounds within which a machine that is told to be slower by the depth by which it was told so before, and that
another depth then found as fast as ever, is not: the depth is dearer than it was thought to be."""

FORGOTTEN = 2000.0
"""Rounds without a sample after which half of what a slower machine added to a depth's cost is taken back."""

DRIFT = 5e-6
"""Variance a depth's own cost, relative to the machine, gains a round: 5 % deviation in 500 rounds."""


RESTORED = 4e-4
"""Least variance of a cost that another process measured. A machine that is busier or cooler today is so at every
depth, which the first rounds tell."""

JUMP_DOUBT = 0.01
"""Variance, at least, of every depth that did not show a jump of the machine."""

TOO_DEAR = 0.1
"""Relative excess over what a round took that changed its shape, from which on a cost is taken to be an error."""

CHANGE = 0.03
"""Relative deviation of what a change of shape takes."""

FIRST_SPREAD = 0.02
"""Relative noise of a round's time until it has been measured."""


class CostModel:
    """The facts' cost curve of one width: EWMA with a clamp, interpolated, flat outside."""

    def __init__(self, *, weight: float = WEIGHT, clamp: float = CLAMP) -> None:
        self.weight = weight
        self.clamp = clamp
        self.ms: dict[int, float] = {}

    @property
    def ready(self) -> bool:
        return len(self.ms) >= 2

    def sample(self, depth: int, ms: float) -> None:
        """A clean round time. Raises `PolicyError` unless it is a time above 0."""
        check_ms(ms)
        old = self.ms.get(depth)
        if old is None:
            self.ms[depth] = ms
        else:
            bound = self.clamp * old
            self.ms[depth] = old + self.weight * min(bound, max(-bound, ms - old))

    def cost(self, depth: int) -> float:
        """ms of a round. Raises `PolicyError` while nothing was sampled."""
        if not self.ms:
            raise PolicyError("no round was timed yet; there is no cost to read")
        return interpolate(sorted(self.ms.items()), depth)

    def state(self) -> dict[str, Any]:
        return {"ms": {str(d): ms for d, ms in self.ms.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PolicyError` unless `state` came from `state()`."""
        self.ms = {depth: ms for depth, (ms,) in checked_costs(state.get("ms"), 1).items()}


NEVER = -(10**9)
"""A round before all others."""


class Cost:
    """One depth's estimate: ms, samples, round of the last one, the machine's level then; rounds in which it told
    that the machine was slower, and in which another depth took that back."""

    __slots__ = (
        "count",
        "doubt",
        "held",
        "ms",
        "rose",
        "route",
        "scale",
        "seen",
        "shift",
        "undone",
        "variance",
    )

    def __init__(self, ms: float, seen: int, scale: float, shift: float) -> None:
        self.ms = ms
        self.count = 1
        self.variance = FIRST_SPREAD * FIRST_SPREAD
        self.seen = seen
        self.scale = scale
        self.shift = shift
        self.held: list[float] = []
        self.doubt = False
        self.route = ""
        self.rose = self.undone = NEVER


class MeasuredCosts:
    """Costs of one width on a machine that changes; depths age together. See the module. `surprises` counts the
    samples that were held first and then believed."""

    def __init__(self) -> None:
        self.depths: dict[int, Cost] = {}
        self.scale = 1.0
        self.shift = 0.0
        self._aside: dict[tuple[str, int], Cost] = {}
        self._bound: tuple[int, float] = (-1, 0.0)
        self._now = 0
        self._spread = FIRST_SPREAD
        self.surprises = 0

    @property
    def ready(self) -> bool:
        return len(self.depths) >= 2

    def advance(self, rounds: int = 1) -> None:
        self._now += rounds

    @property
    def rounds(self) -> int:
        """Rounds that have passed since this was made."""
        return self._now

    def measured(self, depth: int) -> bool:
        """Whether this depth has a sample that is not doubted."""
        found = self.depths.get(depth)
        return found is not None and not found.doubt

    def age(self, depth: int) -> int:
        return self._now - self.depths[depth].seen

    def cost(self, depth: int) -> float | None:
        """ms of a round at this depth now, if it was ever sampled."""
        found = self.depths.get(depth)
        return None if found is None else self._aged(found)

    def _aged(self, c: Cost) -> float:
        by_factor, by_shift = self._by_factor(c), self._by_shift(c)
        # Below half of the one the other is no ageing but a sum of errors.
        aged = max(min(by_factor, by_shift), 0.5 * by_factor)
        if aged <= c.ms:
            return aged
        unseen = max(0, self._now - c.seen - IN_USE)
        return c.ms + (aged - c.ms) * FORGOTTEN / (FORGOTTEN + unseen)

    def _by_factor(self, c: Cost) -> float:
        return c.ms * self.scale / c.scale

    def _by_shift(self, c: Cost) -> float:
        return c.ms + self.shift - c.shift

    def curve(self) -> list[tuple[int, float]]:
        """(depth, ms) of every sampled depth, ascending."""
        return [(d, self._aged(self.depths[d])) for d in sorted(self.depths)]

    def deviation(self, depth: int) -> float:
        """Relative standard deviation of this depth's estimate: noise, and what time adds."""
        c = self.depths[depth]
        return math.sqrt(self._variance(c) + DRIFT * (self._now - c.seen))

    def _variance(self, c: Cost) -> float:
        """Of its last sample's time: noise may have shown itself only after a depth's few samples."""
        return max(c.variance, self._spread * self._spread / c.count)

    def sample(self, depth: int, ms: float) -> bool:
        """A clean round time; False if it was held as a stall. Raises `PolicyError` unless above 0."""
        check_ms(ms)
        c = self.depths.get(depth)
        if c is None:
            c = Cost(ms, self._now, self.scale, self.shift)
            most = max((self._aged(o) for o in self.depths.values()), default=ms)
            if self._bound[0] == depth:
                most = min(most, self._bound[1])
            c.doubt = ms > HOLD * most
            self.depths[depth] = c
            return not c.doubt
        now = self._aged(c)
        if c.doubt:
            c.doubt = False
            self._set(c, min(ms, now))
            return True
        ratio = ms / now
        if self._surprising(ratio):
            if c.held and (c.held[-1] > 1.0) != (ratio > 1.0):
                c.held.clear()
            c.held.append(ratio)
            if len(c.held) < (SLOWER if ratio > 1.0 else FASTER):
                return False
            self._believe(c, now, sorted(c.held)[len(c.held) // 2])
            return True
        c.held.clear()
        off = _clamped(ratio)
        self._spread += 0.02 * (1.25 * abs(off) - self._spread)
        age = self._now - c.seen
        own = self._own(c, age if age > IN_USE else 0, 0.0)
        machine = max(0.0, WEIGHT - own) if age <= IN_USE else 0.0
        if machine:
            self.scale *= 1.0 + machine * off
            self.shift += now * machine * off
        self._set(c, now * (1.0 + (own + machine) * off))
        return True

    def changed(self, depth: int, ms: float) -> None:
        """A round that changed to this depth would have taken `ms` had it not: a sample of the depth's own, less
        certain than others, and no surprise to be believed."""
        c = self.depths.get(depth)
        if c is None or c.doubt or c.held or not usable_ms(ms):
            return
        now = self._aged(c)
        ratio = ms / now
        if not self._surprising(ratio):
            own = self._own(c, self._now - c.seen, CHANGE)
            self._set(c, now * (1.0 + own * _clamped(ratio)))

    def _surprising(self, ratio: float) -> bool:
        """Whether a time of `ratio` times the estimate is more than noise."""
        surprise = max(HOLD, 1.0 + 5.0 * self._spread)
        return ratio > surprise or ratio < 1.0 / surprise

    def _own(self, c: Cost, age: int, more: float) -> float:
        """The share of a sample's surprise that is the depth's own, `age` rounds after the last one, and what that
        leaves of its variance. `more`: relative deviation of the sample beside the noise of rounds."""
        variance = self._variance(c) + DRIFT * age
        own = variance / (variance + self._spread * self._spread + more * more)
        c.variance = (1.0 - own) * variance
        return own

    def bound(self, depth: int, ms: float) -> None:
        """A round that changed to this depth: a clean one takes no longer. What is believed to, is corrected."""
        self._bound = depth, ms
        c = self.depths.get(depth)
        if c is None or c.doubt:
            return
        now = self._aged(c)
        if ms < now * (1.0 - max(TOO_DEAR, 3.0 * self._spread)):
            if self._now - c.seen <= LATELY and c.count > SLOWER:
                self._jump(now, ms / now)
                for other in self.depths.values():
                    if other is not c and self._now - other.rose <= UNDONE:
                        other.undone = self._now
            else:
                c.variance = max(c.variance, JUMP_DOUBT)
            self._set(c, ms)

    def _believe(self, c: Cost, now: float, ratio: float) -> None:
        """A held surprise was no stall: the machine's if this depth is in use, else the depth's own."""
        self.surprises += 1
        in_use = self._now - c.seen <= IN_USE * SLOWER and c.count > SLOWER
        if in_use and not (ratio > 1.0 and self._now - c.undone <= UNDONE):
            self._jump(now, ratio)
            if ratio > 1.0:
                c.rose = self._now
            # Whether the others were slowed as much is worth asking.
            for other in self.depths.values():
                other.variance = max(other.variance, JUMP_DOUBT)
        else:
            c.variance = self._spread * self._spread
        self._set(c, now * ratio)
        c.held.clear()

    def _jump(self, now: float, ratio: float) -> None:
        """The machine takes `ratio` of the time, told by a depth that took `now` ms before."""
        self.scale *= ratio
        self.shift += now * (ratio - 1.0)

    def _set(self, c: Cost, ms: float) -> None:
        c.ms = ms
        c.count += 1
        c.seen = self._now
        c.scale, c.shift = self.scale, self.shift

    def take_route(self, depth: int, route: str) -> None:
        """The route a forward at this depth takes from now on. Another one than its estimate is from
        puts that aside until the route comes back; a depth without estimate is seeded anew."""
        c = self.depths.get(depth)
        if c is None or c.route == route:
            return
        if not c.route:
            c.route = route
            return
        self._aside[c.route, depth] = self.depths.pop(depth)
        back = self._aside.pop((route, depth), None)
        if back is not None:
            self.depths[depth] = back

    def state(self) -> dict[str, Any]:
        """A depth's numbers: ms now (for who reads it), samples, variance, rounds since the last one, ms then, what
        the machine's factor and its difference since then make of that, rounds since it was found to blame the
        machine."""
        return {
            "ms": {str(d): self._row(c) for d, c in self.depths.items() if not c.doubt},
            "routes": {str(d): c.route for d, c in self.depths.items() if not c.doubt},
            "aside": [
                [route, {str(d): self._row(c)}]
                for (route, d), c in self._aside.items()
                if not c.doubt
            ],
            "rounds": self._now,
            "spread": self._spread,
        }

    def _row(self, c: Cost) -> list[float]:
        return [
            self._aged(c),
            c.count,
            max(c.variance, RESTORED),
            self._now - c.seen,
            c.ms,
            self._by_factor(c),
            max(0.0, self._by_shift(c)),
            self._now - c.undone,
        ]

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PolicyError` unless `state` came from `state()`."""
        rounds, spread = state.get("rounds"), state.get("spread")
        if not isinstance(rounds, int) or not 0 <= rounds < 1e12:
            raise PolicyError(f"the stored costs are {rounds!r} rounds old; that is no count")
        if not isinstance(spread, float) or not 0.0 <= spread <= 1.0:
            raise PolicyError(f"the stored costs have a noise of {spread!r}; it must be 0 to 1")
        routes, aside = state.get("routes"), state.get("aside")
        if not isinstance(routes, dict) or not isinstance(aside, list):
            raise PolicyError("the stored costs do not say by which route")
        here = _restored(state.get("ms"), rounds)
        try:
            there = [(str(route), _restored(table, rounds)) for route, table in aside]
        except (TypeError, ValueError) as error:
            raise PolicyError("the stored costs of other routes are none") from error
        self.__init__()  # type: ignore[misc]
        self._now, self._spread = rounds, spread
        self.depths = here
        for depth, c in here.items():
            c.route = str(routes.get(str(depth), ""))
        for route, table in there:
            for depth, c in table.items():
                c.route = route
                self._aside[route, depth] = c


def _clamped(ratio: float) -> float:
    """A time's surprise, relative to the estimate, as far as one sample is believed."""
    return min(CLAMP, max(-CLAMP, ratio - 1.0))


def _restored(table: Any, now: int) -> dict[int, Cost]:
    """The costs of a stored table, the machine's level now being 1 and 0."""
    out = {}
    for depth, cells in checked_costs(table, 8).items():
        _, count, variance, age, ms, by_factor, by_shift, undone = cells
        if not (usable_ms(ms) and usable_ms(by_factor)):
            raise PolicyError(f"the cost of depth {depth} is {cells!r}; it must be above 0 ms")
        c = out[depth] = Cost(ms, now - int(min(age, 1e12)), ms / by_factor, ms - by_shift)
        c.count = max(1, int(min(count, 1e6)))
        c.variance = min(1.0, max(variance, RESTORED))
        c.undone = now - int(min(undone, 1e12))
    return out


def interpolate(curve: list[tuple[int, float]], depth: int) -> float:
    """Straight lines between (depth, ms) cells, ascending; flat outside."""
    i = bisect_left(curve, (depth, -math.inf))
    if i == len(curve):
        return curve[-1][1]
    d, ms = curve[i]
    if d == depth or i == 0:
        return ms
    d0, ms0 = curve[i - 1]
    return ms0 + (ms - ms0) * (depth - d0) / (d - d0)


def usable_ms(ms: float) -> bool:
    """Whether this is a time: finite, above 0 (a clock that goes backwards makes others)."""
    return 0.0 < ms < 1e9


def check_ms(ms: float) -> None:
    if not usable_ms(ms):
        raise PolicyError(f"a round of {ms!r} ms is not a time above 0; the clock is not usable")


def checked_costs(table: Any, fields: int) -> dict[int, tuple[float, ...]]:
    """{depth: numbers} of a stored cost table, each checked; the first number is ms.

    Raises `PolicyError` on NaN, zero, negative or missing numbers and on what is no depth."""
    if not isinstance(table, dict):
        raise PolicyError("the stored costs are not a table of depths")
    out: dict[int, tuple[float, ...]] = {}
    for key, value in table.items():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        try:
            depth = int(key)
            cells = tuple(float(n) for n in numbers)
        except (TypeError, ValueError, OverflowError) as error:
            raise PolicyError(f"the stored costs hold {key!r}: {value!r}; not a cost") from error
        if len(cells) != fields:
            raise PolicyError(f"the cost of depth {key} is {len(cells)} numbers, not {fields}")
        if not 0 <= depth <= 64 or not usable_ms(cells[0]):
            raise PolicyError(f"the cost of depth {key} is {value!r}; it must be above 0 ms")
        if not all(0.0 <= n < math.inf for n in cells):
            raise PolicyError(f"the cost of depth {key} is {value!r}; numbers must be finite")
        out[depth] = cells
    return out
