"""Which slots make another draft: what every backend's propose asks between two head steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from mtpx.backend import FloatArray, GoOn


class AloneGoOn(Protocol):
    """A `GoOn` that may also be asked about one sequence with a number: the confidence of its newest draft,
    draft after draft, also of the last one there is room for (whatever is answered then). Between two
    head steps all Python is found in no cache: on the embedded model a question put as an array takes
    50 µs, as a number 6. `alone` is `None` where only arrays will do."""

    alone: Callable[[float], bool] | None

    def __call__(self, confidence: FloatArray) -> Sequence[bool]: ...


class Chain:
    """One propose, head step by head step.

    `live` are the slots that make a draft in the next step: those with room left (`caps`) that `go_on`,
    where there is one, lets go on. Without it nothing is ever read from the device. A lone slot is asked
    about by number, if `go_on` can be (`AloneGoOn`). `asked_ns`: what reading and asking took.
    """

    def __init__(self, caps: Sequence[int], go_on: GoOn | None = None) -> None:
        self.live = [i for i, cap in enumerate(caps) if cap > 0]
        self.steps = 0
        self._caps = list(caps)
        self._go_on = go_on
        self._alone = getattr(go_on, "alone", None) if len(self._caps) == 1 else None
        self.asked_ns = 0

    def step(self, read: Callable[[], Sequence[float]]) -> list[int]:
        """A draft was made for every slot of `live`; returns those that make another, the new `live`.

        `read` gives the confidences of the drafts just made, one for each slot of `live` in its order; it
        is called only where `go_on` is to be asked. Not to be called once `live` is empty.
        """
        self.steps += 1
        if self._alone is not None:
            begun = perf_counter_ns()
            if not self._alone(read()[0]) or self.steps >= self._caps[0]:
                self.live = []
            self.asked_ns += perf_counter_ns() - begun
            return self.live
        going = [i for i in self.live if self._caps[i] > self.steps]
        if going and self._go_on is not None:
            begun = perf_counter_ns()
            if self.steps == 1:
                self._seen = np.full((len(self._caps), max(self._caps)), np.nan)
            for i, confidence in zip(self.live, read(), strict=True):
                self._seen[i, self.steps - 1] = confidence
            answer = self._go_on(self._seen[:, : self.steps])
            going = [i for i in going if answer[i]]
            self.asked_ns += perf_counter_ns() - begun
        self.live = going
        return going


def among(go_on: GoOn, which: Sequence[int], width: int) -> GoOn:
    """`go_on` for a backend that drafts for the slots `which` of `width` only: it is shown a row for every
    slot all the same."""
    if len(which) == width:
        return go_on

    def asked(confidence: FloatArray) -> list[bool]:
        whole = np.full((width, confidence.shape[1]), np.nan)
        whole[list(which)] = confidence
        answer = go_on(whole)
        return [answer[i] for i in which]

    return asked


def lengths(go_on: GoOn, confidence: FloatArray) -> list[int]:
    """Drafts that each slot makes where all confidences there could be, (n, k), are known beforehand."""
    chain = Chain([confidence.shape[1]] * len(confidence), go_on)
    counts = [0] * len(confidence)
    while chain.live:
        for i in chain.live:
            counts[i] += 1
        newest = confidence[chain.live, chain.steps]
        chain.step(newest.tolist)
    return counts
