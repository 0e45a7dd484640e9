"""What a head's confidence is worth: how often drafts stood, by how sure the head said it was."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from mtpx.policy.calibration import EDGES
from mtpx.round import SlotRound
from mtpx.trace.acceptance import Proportion, proportion

FOLD = 8192
"""Confidences kept before they are counted."""


class ReliabilityRow(msgspec.Struct, frozen=True):
    """Drafts whose top-1 log-probability (natural logarithm) lies in (`lower`, `upper`]; `lower` is
    absent for the first row. `said` is the mean of the probabilities the head gave them, `stood` how many
    of those that were judged stood. On a calibrated head the two are equal."""

    lower: float | None
    upper: float
    said: float
    stood: Proportion


class ReliabilityTally:
    """Judged drafts with a known confidence, in the calibration's buckets."""

    def __init__(self) -> None:
        self._kept = {True: array("d"), False: array("d")}
        self._stood, self._fell = self._kept[True], self._kept[False]
        self._counts = {stood: np.zeros(len(EDGES), dtype=np.int64) for stood in (True, False)}
        self._said = np.zeros(len(EDGES))

    def add(self, slot: SlotRound, confidences: list[float]) -> None:
        """Count one slot whose numbers are consistent."""
        accepted = slot.accepted
        self._stood.extend(confidences[:accepted])
        if slot.judged > accepted < len(confidences):
            self._fell.append(confidences[accepted])
        if len(self._stood) + len(self._fell) > FOLD:
            self._fold()

    def rows(self) -> list[ReliabilityRow]:
        """From the least confident; buckets into which nothing fell are left out."""
        self._fold()
        out: list[ReliabilityRow] = []
        for i, upper in enumerate(EDGES):
            stood, fell = int(self._counts[True][i]), int(self._counts[False][i])
            known = proportion(stood, stood + fell)
            if known is not None:
                said = float(self._said[i]) / known.trials
                out.append(ReliabilityRow(EDGES[i - 1] if i else None, upper, said, known))
        return out

    def _fold(self) -> None:
        for stood, kept in self._kept.items():
            # A log-probability is at most 0; what is above is rounding, or a damaged number.
            said = np.minimum(np.array(kept), 0.0)
            at = np.searchsorted(EDGES, said)
            self._counts[stood] += np.bincount(at, minlength=len(EDGES))
            self._said += np.bincount(at, weights=np.exp(said), minlength=len(EDGES))
            del kept[:]
