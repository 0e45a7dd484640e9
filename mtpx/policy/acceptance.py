"""How often draft i stands, given that all before it stood.

Facts (the public controller): an EWMA of weight 0.1 per position, set by the first observation; position
i is observed only where at least i - 1 drafts stood; trusted after 10 reaches; an under-sampled
position inherits the deepest trusted rate before it, or 1 if there is none.

The adaptive policy's own: `mtpx.policy.drift`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mtpx.errors import PolicyError

WEIGHT = 0.1
"""Of the newest observation (the facts' controller)."""

TRUST = 10
"""Reaches after which a position's rate is trusted."""


class AcceptanceModel:
    """Conditional acceptance by position, of the facts alone: EWMA, trust, inheritance.

    `rate(i)`, `observe(judged, accepted)`: positions count from 0 here.
    """

    def __init__(self, *, weight: float = WEIGHT, trust: int = TRUST) -> None:
        self.weight = weight
        self.trust = trust
        self.rates: list[float] = []
        self.counts: list[float] = []

    @property
    def frontier(self) -> int:
        """The deepest position such that it and all before it are trusted (0: none)."""
        for i, count in enumerate(self.counts):
            if count < self.trust:
                return i
        return len(self.counts)

    def rate(self, position: int) -> float:
        """P(draft at `position` stands | all before it stood), inherited where under-sampled."""
        inherited = 1.0
        for i in range(position + 1):
            trusted = i < len(self.counts) and self.counts[i] >= self.trust
            if trusted:
                inherited = self.rates[i]
        return inherited

    def committed(self, depth: int) -> float:
        """Expected committed tokens of a round: 1 + Σ_{k≤depth} Π_{i≤k} rate(i)."""
        total = reach = inherited = 1.0
        for i in range(depth):
            if i < len(self.counts) and self.counts[i] >= self.trust:
                inherited = self.rates[i]
            reach *= inherited
            total += reach
        return total

    def observe(self, judged: int, accepted: int) -> None:
        """A sequence's round: `judged` positions had a verdict, the first `accepted` stood.

        Raises `PolicyError` if more were accepted than judged."""
        check_counts(judged, accepted)
        for i in range(judged):
            stood = 1.0 if i < accepted else 0.0
            if i == len(self.rates):
                self.rates.append(stood)
                self.counts.append(0.0)
            self.counts[i] += 1
            self.rates[i] += self.weight * (stood - self.rates[i])

    def state(self) -> dict[str, Any]:
        return {"rates": list(self.rates), "counts": list(self.counts)}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `PolicyError` unless `state` came from `state()`."""
        rates, counts = checked_rates(state)
        self.rates, self.counts = rates, counts


def expected_tokens(rates: Sequence[float]) -> list[float]:
    """Expected committed tokens at depth 0..len(rates): 1 + Σ_{k≤d} Π_{i≤k} rates."""
    out = [1.0]
    reach = 1.0
    for rate in rates:
        reach *= rate
        out.append(out[-1] + reach)
    return out


def optimistic_tokens(
    rates: Sequence[float], errors: Sequence[float], z: float, known: int = 0
) -> list[float]:
    """Expected committed tokens at depth 0..k, plus z standard deviations.

    First-order error of 1 + Σ Π a: ∂E_d/∂a_j = (E_d - E_{j-1}) / a_j, errors independent. The first
    `known` rates count as exact. Sums instead of the double loop: Σ w_j (E_d - E_{j-1})²
    = E_d² Σw - 2 E_d ΣwE + ΣwE², with w_j = σ_j² / a_j².
    """
    out = [1.0]
    tokens = reach = 1.0
    a = b = c = 0.0
    for j, (rate, error) in enumerate(zip(rates, errors, strict=True)):
        rate = max(rate, 0.02)
        if j >= known:
            w = error / (rate * rate)
            a += w
            b += w * tokens
            c += w * tokens * tokens
        reach *= rate
        tokens += reach
        variance = tokens * tokens * a - 2.0 * tokens * b + c
        out.append(min(j + 2.0, tokens + z * math.sqrt(max(0.0, variance))))
    return out


def check_counts(judged: int, accepted: int) -> None:
    if accepted < 0 or judged < 0 or accepted > judged:
        raise PolicyError(
            f"the engine reported {accepted} drafts accepted of {judged} verified; "
            "an outcome like that teaches nothing"
        )


def checked_numbers(values: Any, most: float = 1e12) -> list[float]:
    """A stored list of numbers, each 0 to `most`."""
    if not isinstance(values, list):
        raise PolicyError("the stored acceptance rates are not a policy's state")
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise PolicyError("the stored acceptance rates are not a policy's state") from error
    if not all(0.0 <= number <= most for number in numbers):
        raise PolicyError(f"the stored acceptance rates hold a number that is not 0 to {most:g}")
    return numbers


def checked_rates(state: Any) -> tuple[list[float], list[float]]:
    """(rates, counts) out of a stored state, each checked."""
    try:
        rates = [float(r) for r in state["rates"]]
        counts = [float(n) for n in state["counts"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise PolicyError("the stored acceptance rates are not a policy's state") from error
    if len(rates) != len(counts) or len(rates) > 64:
        raise PolicyError(f"the stored state has {len(rates)} rates and {len(counts)} counts")
    if not all(0.0 <= r <= 1.0 for r in rates) or not all(0.0 <= n < math.inf for n in counts):
        raise PolicyError("the stored acceptance rates are not probabilities with counts")
    return rates, counts
