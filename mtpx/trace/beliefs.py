"""What a policy believed along a run: the speed it expected of each depth, and which it held best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from mtpx.trace.schema import BeliefRecord

MOST = 256
"""Beliefs kept of a run, evenly: as many as a picture can show."""


class BeliefPoint(msgspec.Struct, frozen=True):
    """A belief, `after` so many MTP rounds of the run. `tokens_per_s` is what the policy expected of each
    depth it knew something of, by depth; `selected` the depth it held best, absent where it did not
    say."""

    after: int
    selected: int | None
    tokens_per_s: dict[int, float]


class BeliefsTally:
    """Beliefs in the order they were written: the last one whole, those before as points."""

    def __init__(self) -> None:
        self.count = 0
        self.last: BeliefRecord | None = None
        self._last_after = 0
        self._every = 1
        self._points: list[BeliefPoint] = []

    def add(self, record: BeliefRecord, after: int) -> None:
        """A belief, and how many MTP rounds came before it."""
        if self.count % self._every == 0:
            self._points.append(_point(record, after))
            if len(self._points) > MOST:
                del self._points[1::2]
                self._every *= 2
        self.count += 1
        self.last, self._last_after = record, after

    def points(self) -> list[BeliefPoint]:
        """Those that say what was expected of some depth, the last belief among them."""
        found = list(self._points)
        if self.last is not None and (self.count - 1) % self._every:
            found.append(_point(self.last, self._last_after))
        return [point for point in found if point.tokens_per_s]


def _point(record: BeliefRecord, after: int) -> BeliefPoint:
    belief = record.belief
    selected = belief.get("selected", belief.get("depth"))
    return BeliefPoint(
        after,
        selected if isinstance(selected, int) and not isinstance(selected, bool) else None,
        dict(sorted(_speeds(belief))),
    )


def _speeds(belief: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """(depth, tokens/s) from a policy's own words: `tokens_per_s` by depth, or `options` with tokens and
    ms. What reads as neither is passed over: a trace may be of a policy nobody here knows."""
    named = belief.get("tokens_per_s")
    if isinstance(named, dict):
        for depth, speed in named.items():
            rate = _positive(speed)
            if rate is not None and str(depth).isdecimal():
                yield int(depth), rate
        return
    options = belief.get("options")
    for option in options if isinstance(options, list) else []:
        if isinstance(option, dict) and isinstance(option.get("depth"), int):
            tokens, ms = _positive(option.get("tokens")), _positive(option.get("ms"))
            speed = None if tokens is None or ms is None else _positive(1e3 * tokens / ms)
            if speed is not None:
                yield option["depth"], speed


def _positive(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0.0 < value < 1e12 else None
