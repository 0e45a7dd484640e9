"""Checks of chains that end early: asked between two head steps, a slot stops, and all else is as ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mtpx.backend import Drafts, FloatArray
from mtpx.sampling import Sampling
from mtpx.testing.drive import (
    GREEDY,
    Finding,
    compare_states,
    compare_texts,
    opened,
    plain_text,
)
from mtpx.testing.marginal import marginal_p_value, pilot
from mtpx.testing.sampled import ALLOWED, verify_all
from mtpx.testing.subject import Subject


def being_asked_changes_no_draft(subject: Subject) -> Finding:
    """Drafts and confidences are the same whether the head is asked after every step, by array or by
    number, or runs through, drawn or argmax; what it shows when it asks are the confidences of the drafts
    made so far."""
    found = Finding()
    for sampling in (GREEDY, Sampling(temperature=subject.temperature)):
        made = []
        for kind in (None, Questions, LoneQuestions):
            with subject.engine() as engine:
                slot = opened(engine, subject.prompts[0], sampling, seed=7)
                depth = min(subject.depth, engine.info.head_depth_limit)
                said = None if kind is None else kind([depth])
                drafts = engine.propose([slot], [depth], said)
                made.append((subject.drafted(engine, drafts), np.asarray(drafts.confidence)))
                if said is not None:
                    said.compare(drafts, subject.tolerance)
        through, sure = made[0]
        for steps, again in made[1:]:
            assert steps == through, (
                f"asked after every step the head drafts {steps}, otherwise {through}"
            )
            assert np.abs(sure - again).max(initial=0.0) <= subject.tolerance, (
                "asked after every step the head is differently sure of its drafts"
            )
        found.compared += 1
    return found


def a_chain_that_stops_leaves_a_plain_state(subject: Subject) -> Finding:
    """Slots that stop after 1, 2, ... drafts, side by side and alone: as many drafts as each was let make,
    the text of plain decode, and the state of a fresh run."""
    found = Finding()
    with subject.engine(width=3) as engine:
        depth = min(subject.depth, engine.info.head_depth_limit)
        slots = [opened(engine, prompt) for prompt in subject.prompts[:2]]
        for first in range(1, depth + 1):
            stops = [first, depth + 1 - first]
            before = [list(slot.tokens) for slot in slots]
            said = Questions(stops)
            drafts = engine.propose(slots, [depth] * 2, said)
            assert drafts.counts == stops, (
                f"slots that were let make {stops} drafts of {depth} made {drafts.counts}"
            )
            said.compare(drafts, subject.tolerance)
            outcomes = engine.verify(slots, drafts, drafts.counts)
            for i, outcome in enumerate(outcomes):
                what = f"prompt {i}, stopped after {stops[i]} of {depth} drafts"
                ref = plain_text(engine, before[i], len(outcome.committed))
                found.add(compare_texts(subject, engine, before[i], ref, outcome.committed, what))
                found.add(compare_states(subject, engine, slots[i], what))
            lone = slots[:1]
            told = LoneQuestions([first])
            drafts = engine.propose(lone, [depth], told)
            assert drafts.counts == [first], (
                f"a slot that was let make {first} of {depth} drafts, alone, made {drafts.counts[0]}"
            )
            told.compare(drafts, subject.tolerance)
            engine.verify(lone, drafts, drafts.counts)
            what = f"alone, stopped after {first} of {depth} drafts"
            found.add(compare_states(subject, engine, slots[0], what))
    return found


def stopping_early_keeps_the_distribution(subject: Subject) -> Finding:
    """A third draft is made where the head is surer of the second than it mostly is; all that is made is
    verified. (How sure it is of the first is the same for every request: the prompt is.)"""
    sampling = Sampling(temperature=subject.temperature)
    drafts = [d.confidence for d in pilot(subject, sampling)]
    floors = [
        min(sure[0] for sure in drafts) - subject.tolerance,
        float(np.median([c for sure in drafts for c in sure[1:]] or [0.0])),
    ]

    def stop(sure: Sequence[float]) -> bool:
        return sure[-1] < floors[min(len(sure), 2) - 1]

    p = marginal_p_value(subject, sampling, verify_all, stop)
    assert p >= ALLOWED, (
        f"where chains stop early the text does not follow the target: p = {p:.2g} in "
        f"{subject.samples} samples"
    )
    return Finding(compared=subject.samples)


class Questions:
    """A `go_on` that lets slot i make stops[i] drafts, and keeps what it was shown."""

    alone: Callable[[float], bool] | None = None

    def __init__(self, stops: Sequence[int]) -> None:
        self.stops = list(stops)
        self.shown: list[FloatArray] = []

    def __call__(self, confidence: FloatArray) -> list[bool]:
        self.shown.append(np.array(confidence, dtype=np.float64))
        return [confidence.shape[1] < stop for stop in self.stops]

    def compare(self, drafts: Drafts, tolerance: float) -> None:
        """Raises `AssertionError` unless it was asked once a step, shown a row for every slot, and
        shown the confidences the drafts have."""
        after = np.asarray(drafts.confidence, dtype=np.float64)
        for j, shown in enumerate(self.shown, 1):
            assert shown.shape == (len(self.stops), j), (
                f"asked after step {j} it was shown confidences of shape {shown.shape}, not "
                f"{(len(self.stops), j)}"
            )
            for row, have, count in zip(shown, after, drafts.counts, strict=True):
                known = min(j, count)
                assert np.isnan(row[known:]).all(), "a draft that was not made has a confidence"
                gap = np.abs(row[:known] - have[:known]).max(initial=0.0)
                assert gap <= tolerance, (
                    f"asked after step {j} it was shown a confidence {gap:.3g} from the draft's own"
                )


class LoneQuestions(Questions):
    """The same of one slot, which may be asked about by number (`mtpx.chain.AloneGoOn`)."""

    def __init__(self, stops: Sequence[int]) -> None:
        super().__init__(stops)
        self.alone = self._alone
        self._told: list[float] = []

    def _alone(self, confidence: float) -> bool:
        self._told.append(confidence)
        return self(np.array([self._told]))[0]
