"""What the simulated machine costs and how well its head drafts: data, loadable from TOML.

name = "a wall before a dip"
acceptance = [0.8, 0.75, 0.7]
noise = 0.02

[cost_ms]            # by width: the target's forward at depth 0, 1, 2, 3
1 = [10.0, 20.0, 20.0, 14.0]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from mtpx.errors import PolicyError
from mtpx.sampling import Array


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From round `at` on, reached over `over` rounds in a straight line: every cost times
    `cost_factor`, and `acceptance` in place of what it was (empty: unchanged)."""

    at: int
    over: int = 0
    cost_factor: float = 1.0
    acceptance: Sequence[float] = ()


class Regime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine, one head, one text.

    `acceptance[j]`: P(draft j + 1 accepted | all before it accepted); its length is the head's
    depth limit. `cost_ms[w][d]`: a target forward at width w and depth d, straight lines between
    widths and beyond the last depth, flat outside the widths. `draft_ms`: one head step.
    `read_ms`: one reading of confidences before verify, or between two head steps. `prefill_ms`: one
    prompt token. `context_ms`: added to a forward for every 1,000 tokens of the longest context.
    `noise`: relative standard deviation of every time. `transition`: factor on a forward whose rows
    differ from the one before. `stall`: probability that a forward is `stall_factor` (low, high) times
    too long. `spread` (0..1): how far the head's confidence, which is calibrated, moves around
    `acceptance` from draft to draft; or, in its place, `sure[j]`: how often each of a number of equally
    likely drafts at position j stands, moved to where their mean is the acceptance. A shape runs eager
    at `eager_factor` times its cost until it was used `compile_after` times (0: never compiled) or
    warmed; compiling takes `compile_ms`. `changes` move the regime with the round.

    Raises `PolicyError` when a number is outside its range.
    """

    name: str = "simulated"
    acceptance: Sequence[float] = (0.8, 0.7, 0.6, 0.5)
    cost_ms: Mapping[int, Sequence[float]] = msgspec.field(
        default_factory=lambda: {1: (10.0, 11.0)}
    )
    draft_ms: float = 0.5
    read_ms: float = 0.0
    prefill_ms: float = 0.1
    context_ms: float = 0.0
    noise: float = 0.0
    transition: float = 1.0
    stall: float = 0.0
    stall_factor: tuple[float, float] = (2.0, 6.0)
    spread: float = 0.0
    sure: Sequence[Sequence[float]] = ()
    eager_factor: float = 1.0
    compile_after: int = 0
    compile_ms: float = 0.0
    changes: Sequence[Change] = ()

    def __post_init__(self) -> None:
        rates = [*self.acceptance, *(a for c in self.changes for a in c.acceptance)]
        costs = [cost for row in self.cost_ms.values() for cost in row]
        amounts = [
            self.draft_ms,
            self.read_ms,
            self.prefill_ms,
            self.context_ms,
            self.noise,
            self.compile_ms,
            self.compile_after,
            *(n for c in self.changes for n in (c.at, c.over)),
        ]
        factors = [self.transition, self.eager_factor, *self.stall_factor]
        factors += [c.cost_factor for c in self.changes]
        self._demand(all(0 <= a <= 1 for a in rates), "acceptance rates lie in 0..1")
        self._demand(
            bool(self.cost_ms) and all(w > 0 and row for w, row in self.cost_ms.items()),
            "cost_ms needs costs for a width of 1 or more",
        )
        self._demand(all(0 < c < math.inf for c in costs), "costs are above 0 ms")
        self._demand(0 <= self.stall <= 1, "stall is a probability, 0..1")
        self._demand(0 <= self.spread <= 1, "spread lies in 0..1")
        self._demand(
            all(row and all(0 <= p <= 1 for p in row) for row in self.sure),
            "sure holds rates in 0..1 for each position it speaks of",
        )
        self._demand(all(0 <= n < math.inf for n in amounts), "times and counts are 0 or more")
        self._demand(all(0 < f < math.inf for f in factors), "factors are above 0")
        self._demand(
            all(len(c.acceptance) in (0, len(self.acceptance)) for c in self.changes),
            f"a change gives a rate for each of the {len(self.acceptance)} positions, or none",
        )

    def _demand(self, holds: bool, sentence: str) -> None:
        if not holds:
            raise PolicyError(f"regime {self.name!r} is not usable: {sentence}")

    @property
    def depth_limit(self) -> int:
        return len(self.acceptance)

    def rates(self, round: int) -> list[float]:
        """Conditional acceptance by position at this round."""
        rates = list(self.acceptance)
        for change in self.changes:
            if change.acceptance:
                share = _progress(change, round)
                rates = [a + share * (b - a) for a, b in zip(rates, change.acceptance, strict=True)]
        return rates

    @property
    def confident(self) -> bool:
        """Whether the head's confidence says more than the position's rate."""
        return bool(self.spread or self.sure)

    def stands(self, position: int, rate: Array, chance: Array) -> Array:
        """P(a draft at `position` stands), (...,), where its rate is `rate` (...,): `chance` (..., uniform in
        [0, 1)) picks among drafts from unsure to sure; its mean over `chance` is `rate`."""
        if position >= len(self.sure):
            room = np.minimum(rate, 1.0 - rate)
            return np.asarray(rate + self.spread * room * (2.0 * chance - 1.0)).clip(0.0, 1.0)
        row = np.sort(np.asarray(self.sure[position], dtype=np.float64))
        mean = float(row.mean())
        p = row[(chance * len(row)).astype(np.int64)]
        lower = p * (rate / mean) if mean > 0.0 else np.broadcast_to(rate, p.shape)
        higher = 1.0 - (1.0 - p) * ((1.0 - rate) / (1.0 - mean)) if mean < 1.0 else p
        return np.where(rate <= mean, lower, higher).clip(0.0, 1.0)

    def forward_ms(self, width: int, depth: float, *, round: int = 0, context: int = 0) -> float:
        """Expected time of one target forward, ms, without noise, transition, stalls and
        `eager_factor`. `depth` is the mean over the batch where depths differ."""
        widths = sorted(self.cost_ms)
        base = np.interp(width, widths, [_at_depth(self.cost_ms[w], depth) for w in widths])
        factor = 1.0
        for change in self.changes:
            factor *= 1.0 + _progress(change, round) * (change.cost_factor - 1.0)
        return (float(base) + self.context_ms * context / 1000.0) * factor

    def draft_total_ms(self, depth: int, *, round: int = 0) -> float:
        """Expected time of `depth` head steps, ms."""
        factor = 1.0
        for change in self.changes:
            factor *= 1.0 + _progress(change, round) * (change.cost_factor - 1.0)
        return self.draft_ms * depth * factor

    def expected_tokens(self, depth: int, *, round: int = 0) -> float:
        """Expected committed tokens of a round: 1 + Σ_k Π_{i≤k} a_i."""
        return 1.0 + float(np.sum(np.cumprod(self.rates(round)[:depth])))

    def expected_rate(
        self, depth: int, *, width: int = 1, round: int = 0, context: int = 0
    ) -> float:
        """Expected tokens per ms at this depth, all sequences together."""
        cost = self.forward_ms(width, depth, round=round, context=context)
        return (
            width
            * self.expected_tokens(depth, round=round)
            / (cost + self.draft_total_ms(depth, round=round))
        )

    def best_depth(self, *, width: int = 1, round: int = 0, context: int = 0) -> int:
        """The depth with the highest expected rate, ties to the shallower."""
        rates = [
            self.expected_rate(d, width=width, round=round, context=context)
            for d in range(self.depth_limit + 1)
        ]
        return int(np.argmax(rates))


def load_regime(path: Path) -> Regime:
    """A regime from a TOML file. Raises `PolicyError` with the file's name if it is not one."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Regime)
    except OSError as error:
        raise PolicyError(f"cannot read the regime {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, PolicyError) as error:
        raise PolicyError(f"{path} is not a regime: {error}") from error


def _progress(change: Change, round: int) -> float:
    """How far a change has come at this round, 0..1."""
    if round < change.at:
        return 0.0
    return 1.0 if change.over == 0 else min(1.0, (round - change.at) / change.over)


def _at_depth(costs: Sequence[float], depth: float) -> float:
    if depth <= len(costs) - 1:
        return float(np.interp(depth, range(len(costs)), costs))
    slope = costs[-1] - costs[-2] if len(costs) > 1 else 0.0
    return costs[-1] + max(0.0, slope) * (depth - len(costs) + 1)
