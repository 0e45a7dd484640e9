"""How often a draft stands, by the head's confidence and by its position: fitted from rounds.

Only drafts that were *reached* count (all before them stood), so a bucket's rate is conditional on
reaching. Buckets are (lower, upper] of the head's top-1 log-probability, the first from -inf. From
the most confident down, buckets are pooled until each pool has `ENOUGH` outcomes, then made monotone
by pooling adjacent violators (Ayer et al. 1955): a more confident draft is never predicted to stand
less often.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mtpx.errors import PolicyError
from mtpx.policy import artifact
from mtpx.policy.artifact import numbers, string
from mtpx.round import Round

if TYPE_CHECKING:
    from mtpx.backend import EngineInfo

SCHEMA = 1
KIND = "calibration"

EDGES = (-4.0, -2.0, -1.0, -0.5, -0.25, -0.1, -0.05, -0.02, -0.005, 0.0)
"""Upper ends of the confidence buckets (natural logarithm); the published choice."""

ENOUGH = 100
"""Outcomes a rate rests on: ±0.05 at a rate of 0.5."""


class HeadIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which head: sha256 of its weights, its vocabulary, how the target is stored.

    `None` is not stated: a trace does not tell the vocabulary, a published calibration none of them.
    Without the sha256 it can be planned with, and fits no head.
    """

    sha256: str | None = None
    vocab_size: int | None = None
    quantisation: str | None = None

    @classmethod
    def of(cls, info: EngineInfo) -> HeadIdentity:
        return cls(info.head_digest, info.vocab_size, info.quantisation)

    def differences(self, other: HeadIdentity) -> list[str]:
        """Fields that say these are two heads: the sha256 unless both state the same, the others where
        both state something else."""
        wrong = [] if self.sha256 is not None and self.sha256 == other.sha256 else ["sha256"]
        for name in ("vocab_size", "quantisation"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None and mine != theirs:
                wrong.append(name)
        return wrong


class Reliability(msgspec.Struct, frozen=True):
    """One bucket (`lower`, `upper`]: what was observed in it and what is predicted for it.
    `lower` is `None` for the first one, `observed` where nothing fell into it."""

    lower: float | None
    upper: float
    reached: int
    accepted: int
    observed: float | None
    predicted: float


class _Buckets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    edges: list[float] = []
    accept: list[float] = []
    reached: list[int] = []
    accepted: list[int] = []


class _Prior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accept: list[float]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    schema: int
    prior: _Prior
    head: HeadIdentity = HeadIdentity()
    buckets: _Buckets = _Buckets()
    about: dict[str, str] = {}


@dataclass(frozen=True)
class Calibration:
    """P(a draft stands | it was reached) of one head.

    `priors[j - 1]` by position j, the last one for all beyond. `accept[i]` for a confidence in
    (edges[i - 1], edges[i]]; empty where only positions are known, then confidences say nothing.
    `reached` and `accepted` count what each bucket was fitted from. Raises `PolicyError` for what
    is no probability, and for buckets that are not monotone.
    """

    head: HeadIdentity
    priors: tuple[float, ...]
    edges: tuple[float, ...] = ()
    accept: tuple[float, ...] = ()
    reached: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    about: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.edges)
        if not self.priors:
            raise PolicyError("the calibration has no rate for draft position 1")
        if not all(0.0 <= p <= 1.0 for p in (*self.priors, *self.accept)):
            raise PolicyError("the calibration holds a rate that is no probability, 0 to 1")
        if not all(map(math.isfinite, self.edges)) or list(self.edges) != sorted(set(self.edges)):
            raise PolicyError("the calibration's bucket edges are not finite and ascending")
        if any(len(part) != size for part in (self.accept, self.reached, self.accepted)):
            raise PolicyError("the calibration does not have one entry for every bucket edge")
        if list(self.accept) != sorted(self.accept):
            raise PolicyError(
                "the calibration says a more confident draft stands less often; fit it again"
            )
        if not all(0 <= a <= n for a, n in zip(self.accepted, self.reached, strict=True)):
            raise PolicyError("the calibration counts more drafts accepted than reached")

    def prior(self, position: int) -> float:
        """P(draft `position` stands | all before it stood), position from 1."""
        return self.priors[min(position, len(self.priors)) - 1]

    def probability(self, confidence: float, position: int) -> float:
        """The same where the head's top-1 log-probability is known. Raises `PolicyError` for NaN."""
        if confidence != confidence:
            raise PolicyError(f"the confidence of draft {position} is not a number")
        if not self.accept:
            return self.prior(position)
        return self.accept[min(bisect_left(self.edges, confidence), len(self.accept) - 1)]

    def check(self, head: HeadIdentity) -> None:
        """Raises `PolicyError` naming the fields in which this was fitted on another head."""
        wrong = [
            f"{name} {_stated(self.head, name)}, not {_stated(head, name)}"
            for name in self.head.differences(head)
        ]
        if wrong:
            raise PolicyError(
                f"this calibration is of another head: {'; '.join(wrong)}; "
                "`mtpx measure --calibrate` makes one for this head"
            )

    def reliability(self) -> list[Reliability]:
        """Observed against predicted rate, bucket by bucket, from the least confident."""
        return [
            Reliability(
                self.edges[i - 1] if i else None,
                self.edges[i],
                n,
                a,
                a / n if n else None,
                self.accept[i],
            )
            for i, (n, a) in enumerate(zip(self.reached, self.accepted, strict=True))
        ]

    def file_name(self) -> str:
        """The name the calibration of this head goes by."""
        import hashlib

        digest = hashlib.sha256(msgspec.json.encode(self.head)).hexdigest()[:16]
        return f"{digest}.calibration.toml"

    def render(self) -> str:
        """The calibration as TOML; `parse_calibration` reads it back equal."""
        lines = [f"kind = {string(KIND)}", f"schema = {SCHEMA}", "", "[head]"]
        for name, value in msgspec.to_builtins(self.head).items():
            lines.append(f"{name} = {string(value) if isinstance(value, str) else value}")
        lines += ["", "[prior]", f"accept = {numbers(list(self.priors))}"]
        if self.edges:
            lines += ["", "[buckets]", f"edges = {numbers(list(self.edges))}"]
            lines.append(f"accept = {numbers(list(self.accept))}")
            lines.append(f"reached = {list(self.reached)}")
            lines.append(f"accepted = {list(self.accepted)}")
        if self.about:
            lines += ["", "[about]"]
            lines += [f"{string(name)} = {string(said)}" for name, said in self.about.items()]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Write the file and read it back. Raises `PolicyError`."""
        artifact.write(path, self.render(), self, parse_calibration)


def parse_calibration(data: bytes, where: str = "the calibration") -> Calibration:
    """The calibration these bytes are. Raises `PolicyError` naming `where`."""
    file = artifact.decode(data, KIND, SCHEMA, _File, where)
    buckets = file.buckets
    try:
        return Calibration(
            file.head,
            tuple(file.prior.accept),
            tuple(buckets.edges),
            tuple(buckets.accept),
            tuple(buckets.reached),
            tuple(buckets.accepted),
            file.about,
        )
    except PolicyError as error:
        raise PolicyError(f"{where} cannot be used: {error}") from None


def read_calibration(path: Path, head: HeadIdentity | None = None) -> Calibration:
    """The calibration in a file, of `head` if one is given. Raises `PolicyError`."""
    found = artifact.read(path, parse_calibration)
    if head is not None:
        try:
            found.check(head)
        except PolicyError as error:
            raise PolicyError(f"{path} does not fit: {error}") from None
    return found


class CalibrationTally:
    """Counts outcomes round by round; `fit` turns them into a `Calibration`."""

    def __init__(self, edges: Sequence[float] = EDGES) -> None:
        self.edges = tuple(edges)
        self.reached = [0] * len(self.edges)
        self.accepted = [0] * len(self.edges)
        self.positions: list[list[int]] = []

    def add(self, round: Round) -> None:
        """Count every draft of this round that was reached and judged."""
        for slot in round.slots:
            for j in range(slot.judged):
                stood = int(j < slot.accepted)
                if j == len(self.positions):
                    self.positions.append([0, 0])
                self.positions[j][0] += 1
                self.positions[j][1] += stood
                said = (
                    slot.confidences[j] if slot.confidences and j < len(slot.confidences) else None
                )
                if said is not None and not math.isnan(said):
                    bucket = min(bisect_left(self.edges, said), len(self.edges) - 1)
                    self.reached[bucket] += 1
                    self.accepted[bucket] += stood

    def fit(self, head: HeadIdentity, about: dict[str, str] | None = None) -> Calibration:
        """The calibration of `head` that these outcomes give.

        prior(j) = accepted / reached at position j, up to the last position that was reached
        `ENOUGH` times. Raises `PolicyError` where there are fewer than `ENOUGH` outcomes with a
        confidence, or at position 1.
        """
        outcomes = sum(self.reached)
        first = self.positions[0][0] if self.positions else 0
        if min(outcomes, first) < ENOUGH:
            raise PolicyError(
                f"{min(outcomes, first)} drafts with a known confidence were judged, and a calibration "
                f"needs {ENOUGH} or more; decode more with drafts on"
            )
        priors = []
        for reached, accepted in self.positions:
            if reached < ENOUGH:
                break
            priors.append(accepted / reached)
        return Calibration(
            head,
            tuple(priors),
            self.edges,
            tuple(monotone_rates(self.reached, self.accepted)),
            tuple(self.reached),
            tuple(self.accepted),
            dict(about or {}),
        )


def fit_calibration(
    rounds: Iterable[Round], head: HeadIdentity, about: dict[str, str] | None = None
) -> Calibration:
    """The calibration of `head` fitted from `rounds`. Raises `PolicyError` on too few outcomes."""
    tally = CalibrationTally()
    for round in rounds:
        tally.add(round)
    return tally.fit(head, about)


def monotone_rates(
    reached: Sequence[int], accepted: Sequence[int], enough: int = ENOUGH
) -> list[float]:
    """A rate for every bucket, never falling with the confidence.

    Buckets are pooled from the last (most confident) down until each pool has `enough` outcomes; a
    remainder at the bottom joins the pool above it. Needs `enough` outcomes in all.
    """
    pools: list[list[int]] = []
    open_pool: list[int] = []
    for bucket in reversed(range(len(reached))):
        open_pool.append(bucket)
        if sum(reached[b] for b in open_pool) >= enough:
            pools.append(open_pool)
            open_pool = []
    pools[-1] += open_pool
    weights = [sum(reached[b] for b in pool) for pool in reversed(pools)]
    rates = [
        sum(accepted[b] for b in pool) / weight
        for pool, weight in zip(reversed(pools), weights, strict=True)
    ]
    from scipy.optimize import isotonic_regression

    fitted = isotonic_regression(rates, weights=weights).x
    out = [0.0] * len(reached)
    for pool, rate in zip(reversed(pools), fitted, strict=True):
        for bucket in pool:
            out[bucket] = min(1.0, max(0.0, float(rate)))
    return out


def histogram_priors(windows: Iterable[Sequence[int]]) -> tuple[float, ...]:
    """Priors by position from histograms of accepted drafts, each [K accepted, ..., 1 accepted, none].

    prior(j) = #(accepted ≥ j) / #(accepted ≥ j - 1). Raises `PolicyError` where the histograms differ
    in length or hold nothing, and stops at the first position that was never reached.
    """
    rows = [list(row) for row in windows]
    if not rows or len(rows[0]) < 2 or any(len(row) != len(rows[0]) for row in rows):
        raise PolicyError("accept histograms need one length: [K accepted, ..., 1 accepted, none]")
    if any(count < 0 for row in rows for count in row):
        raise PolicyError("an accept histogram counts 0 or more steps")
    counts = [sum(column) for column in zip(*rows, strict=True)]
    priors = []
    for j in range(1, len(counts)):
        reached = sum(counts[: len(counts) - j + 1])
        if not reached:
            break
        priors.append(sum(counts[: len(counts) - j]) / reached)
    if not priors:
        raise PolicyError("the accept histograms hold no step")
    return tuple(priors)


def _stated(head: HeadIdentity, name: str) -> str:
    value = getattr(head, name)
    return "not stated" if value is None else str(value)[:16] or "none"
