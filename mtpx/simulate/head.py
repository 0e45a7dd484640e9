"""The simulated head: it knows the target, and errs as often as it is told to.

Its KV matters: whether a draft stands is decided by a hash of the slot's head rows, so that a stale
row changes the drafts that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mtpx.backend import FloatArray
from mtpx.errors import BackendError
from mtpx.sampling import USE_DRAFT, Array, distribution, draw, uniforms
from mtpx.simulate.language import Language, mix, unit
from mtpx.simulate.regime import Regime
from mtpx.simulate.slot import SimulatedSlot

_RECYCLED = 7
"""Marks a head row made from the head's own hidden state."""


@dataclass(frozen=True, slots=True)
class SimulatedDrafts:
    """The drafts of each slot, the distributions they were drawn from, their confidences, and each
    slot's length when they were made. `reading` is called when confidences are read before verify."""

    tokens: list[list[int]]
    q: list[list[Array]]
    log_confidence: list[list[float]]
    lengths: list[int]
    draft_ms: float
    reading: Callable[[], object] = lambda: None

    @property
    def counts(self) -> list[int]:
        return [len(row) for row in self.tokens]

    @property
    def confidence(self) -> FloatArray:
        self.reading()
        out = np.full((len(self.tokens), max(self.counts, default=0)), np.nan)
        for row, values in zip(out, self.log_confidence, strict=True):
            row[: len(values)] = values
        return out


@dataclass(frozen=True, slots=True)
class Draft:
    """One slot's drafts, their distributions, their confidences."""

    tokens: list[int]
    q: list[Array]
    log_confidence: list[float]


class Drafting:
    """One slot's drafts while they are made: queued pairs are written first, the rows of later steps are
    provisional. The head is calibrated: exp(confidence) is the probability that the draft
    stands (at least 1/V, as a top-1 probability is)."""

    def __init__(
        self,
        slot: SimulatedSlot,
        cap: int,
        language: Language,
        regime: Regime,
        round: int,
    ) -> None:
        if not slot.head:
            raise BackendError("this sequence is a plain run (head=False); it cannot propose")
        self.made = Draft([], [], [])
        self._slot, self._language = slot, language
        self._regime, self._rates = regime, regime.rates(round)
        slot.drop_provisional()
        slot.flush()
        self._state = mix(slot.last_state(language.start), slot.ids[-1])
        self._row = slot.head_rows[-1] if slot.head_rows else mix(language.start, _RECYCLED)
        self._u = uniforms(slot.seed, slot.request, slot.round, cap)
        self._history = slot.history()

    def step(self) -> float:
        """One more draft; its confidence."""
        slot, made = self._slot, self.made
        j = len(made.tokens)
        if j:
            self._row = mix(mix(self._row, made.tokens[-1]), _RECYCLED)
            slot.head_rows.append(self._row)
        logits = self._language.logits(self._state)
        p = distribution(logits, slot.sampling, self._history.followed_by(made.tokens))
        chance = np.array(unit(self._row, 1))
        stands = float(self._regime.stands(j, np.array(self._rates[j]), chance))
        if slot.sampling.greedy:
            token = greedy_draft(p, stands, self._row)
            q = np.zeros_like(p)
            q[token] = 1.0
        else:
            q = draft_distribution(p, stands)
            token = draw(q, float(self._u[j, USE_DRAFT]))
        made.tokens.append(token)
        made.q.append(q)
        made.log_confidence.append(float(np.log(max(stands, 1.0 / p.size))))
        self._state = mix(self._state, token)
        return made.log_confidence[-1]


def greedy_draft(p: Array, accepted: float, head_state: int) -> int:
    """The target's own argmax with probability `accepted`, else any other token."""
    best = int(np.argmax(p))
    if unit(head_state, 2) < accepted or p.size == 1:
        return best
    return (best + 1 + int(unit(head_state, 3) * (p.size - 1))) % p.size


def draft_distribution(p: Array, accepted: float) -> Array:
    """(V,) q with Σ min(p, q) = `accepted`, so that a draft drawn from it stands that often.

    A mixture of p and p with its ranks reversed; where even the reversed one overlaps too much, of p
    and its least likely token (which leaves at least that token's own probability). Σ min(p, q)
    is 1 - the total variation distance, which is linear in the mixture (Leviathan et al. 2023,
    theorem 3.5).
    """
    wanted = 1.0 - accepted
    order = np.argsort(p, kind="stable")
    other = np.empty_like(p)
    other[order] = p[order[::-1]]
    distance = float(np.maximum(p - other, 0.0).sum())
    if distance < wanted:
        other = np.zeros_like(p)
        other[order[0]] = 1.0
        distance = 1.0 - float(p[order[0]])
    share = min(1.0, wanted / distance) if distance > 0.0 else 0.0
    q: Array = (1.0 - share) * p + share * other
    return q
