"""How deep to draft, and which drafts to verify, by tokens per joule or per ms: pure arithmetic.

The answers depend on the table, the calibration, the width and the head's confidences only. They say
how many drafts are made and looked at, never which token is emitted.

Three objectives share one rule, the largest score among what is fast enough, the first of equals:

| objective | score | fast enough |
|---|---|---|
| `energy` | tokens per joule | (1 - slack) × the rate of one draft a sequence |
| `balanced` | tokens per joule | (1 - slack) × the fastest rate there is |
| `speed` | tokens per ms | anything; slack has no say |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from mtpx.errors import PolicyError
from mtpx.policy.calibration import Calibration
from mtpx.policy.table import Array, CostTable

Objective = Literal["speed", "balanced", "energy"]
Zero = Literal["", "by_cap", "by_cost"]

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


class Option(NamedTuple):
    """One way to run a round: `rows` drafts verified (of each sequence, or of the whole batch), the
    `tokens` the batch is expected to commit, `ms` and `joules` it costs, and whether that is fast
    enough to be chosen."""

    rows: int
    tokens: float
    ms: float
    joules: float | None
    feasible: bool

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.ms * 1e3

    @property
    def tokens_per_j(self) -> float | None:
        return None if self.joules is None else self.tokens / self.joules


class Choice(NamedTuple):
    """The depth to propose. `zero` says why it is 0, if it is: `by_cap` (the width is above the
    scheduler's own cap, the table was not looked at) or `by_cost`. `options` are by depth."""

    depth: int
    zero: Zero
    options: list[Option]


class RowPlan(NamedTuple):
    """Drafts to verify, by sequence, and what was weighed: one option for every total of rows.
    `over_budget`: not even one draft a sequence fits into the row budget."""

    depths: list[int]
    options: list[Option]
    over_budget: bool


def check_objective(objective: str, slack: float, table: CostTable) -> None:
    """Raises `PolicyError` for an unknown objective, a slack outside [0, 1), and an objective that
    needs joules on a table without."""
    if objective not in OBJECTIVES:
        raise PolicyError(f"there is no objective {objective!r}; there are {', '.join(OBJECTIVES)}")
    if not 0.0 <= slack < 1.0:
        raise PolicyError(f"slack is a fraction from 0 up to but not 1, got {slack:g}")
    if objective != "speed" and not table.has_joules:
        raise PolicyError(
            f"objective {objective} needs joules, and the cost table of {table.key.pack} has none: it was "
            "measured without an energy meter; use objective speed, or measure where there is a meter"
        )


def propose_depth(
    table: CostTable,
    calibration: Calibration,
    n: int,
    slack: float,
    max_width: int,
    *,
    objective: Objective = "energy",
    limit: int | None = None,
) -> Choice:
    """The depth to draft for `n` sequences.

    E(k) = 1 + Σ_{j≤k} Π_{t≤j} prior(t) tokens a sequence; a step costs verify(n, k) + draft(n, k).
    Ties stay shallower. `limit` bounds the depth (the head's, a budget's end). Above `max_width`
    the answer is 0 without a look at the table: there the scheduler decodes everyone plain.
    Raises `PolicyError` as `check_objective` does, and for a width below 1.
    """
    check_objective(objective, slack, table)
    if n > max_width:
        return Choice(0, "by_cap", [])
    costs = table.costs(n)
    deepest = table.max_k if limit is None else min(limit, table.max_k)
    tokens, reach = [1.0], 1.0
    for position in range(1, deepest + 1):
        reach *= calibration.prior(position)
        tokens.append(tokens[-1] + reach)
    upto = slice(deepest + 1)
    joules = None
    if costs.verify_j is not None and costs.draft_j is not None:
        joules = costs.verify_j[upto] + costs.draft_j[upto]
    weighed = _weigh(
        n * np.array(tokens),
        costs.verify_ms[upto] + costs.draft_ms[upto],
        joules,
        min(1, deepest),
        objective,
        slack,
    )
    return Choice(weighed.best, "" if weighed.best else "by_cost", weighed.options(0))


def sequence_depths(
    table: CostTable,
    calibration: Calibration,
    confidences: Sequence[Sequence[float]],
    known_drafts: Sequence[int],
    k_max: int,
    row_budget: int,
    slack: float,
    *,
    objective: Objective = "energy",
) -> list[int]:
    """Drafts to verify of each sequence, in the caller's order. See `plan_rows`."""
    depths, _, _ = _allocate(
        table, calibration, confidences, known_drafts, k_max, row_budget, slack, objective
    )
    return depths


def plan_rows(
    table: CostTable,
    calibration: Calibration,
    confidences: Sequence[Sequence[float]],
    known_drafts: Sequence[int],
    k_max: int,
    row_budget: int,
    slack: float,
    *,
    objective: Objective = "energy",
) -> RowPlan:
    """How many drafts of each sequence to verify, after they were made.

    `confidences[i]` are the head's top-1 log-probabilities in draft order, its length how many drafts
    there are; an empty one with `known_drafts[i]` > 0 stands for drafts without confidences, judged
    by their position. Sequences whose drafts were *sampled* must enter that way: spending a row on
    a draft because of a later confidence would bias the text.

    Every sequence begins with one draft, if it has one. Where these base rows alone exceed
    `row_budget` (draft rows in all, the pending tokens' own rows not counted) nobody verifies any.
    Further rows go out by gain, the running product of P(accept): largest first, ties to the earlier
    sequence, then to the shallower row. Gains never rise within a sequence, so every prefix of that
    order is the best use of that many rows: exchanging a row for one outside the prefix can only
    lose (and no row comes before one it depends on). Raising a sequence's confidence therefore never
    takes a row from it at an equal total; the total itself may fall, where what was raised had made a
    smaller round good enough.

    The total is found by scanning every reachable one, since measured costs are not monotone in rows.
    R rows cost what the width's cells say at R / n drafts a sequence, on straight lines. The drafts are
    paid for: draft(n, k_max) is the same for every R. Speed is compared with that of the base rows.
    Raises `PolicyError` as `check_objective` does, for a negative budget and for NaN confidences.
    """
    depths, base, weighed = _allocate(
        table, calibration, confidences, known_drafts, k_max, row_budget, slack, objective
    )
    options = weighed.options(base) if weighed else []
    return RowPlan(depths, options, base > row_budget)


class _Weighed(NamedTuple):
    """Options side by side: tokens, ms and joules, which are fast enough, and the best one's index."""

    tokens: Array
    ms: Array
    joules: Array | None
    fast: npt.NDArray[np.bool_]
    best: int

    def options(self, first: int) -> list[Option]:
        """One by one; `first` is how many rows the first of them has."""
        joules = [None] * len(self.ms) if self.joules is None else self.joules.tolist()
        columns = (self.tokens.tolist(), self.ms.tolist(), joules, self.fast.tolist())
        return [Option(first + i, *row) for i, row in enumerate(zip(*columns, strict=True))]


def _allocate(
    table: CostTable,
    calibration: Calibration,
    confidences: Sequence[Sequence[float]],
    known_drafts: Sequence[int],
    k_max: int,
    row_budget: int,
    slack: float,
    objective: Objective,
) -> tuple[list[int], int, _Weighed | None]:
    """(depths, base rows, what was weighed if anything was). See `plan_rows`."""
    check_objective(objective, slack, table)
    if len(confidences) != len(known_drafts):
        raise PolicyError(
            f"there are confidences of {len(confidences)} sequences and draft counts of "
            f"{len(known_drafts)}"
        )
    if k_max < 0 or row_budget < 0 or any(count < 0 for count in known_drafts):
        raise PolicyError("depths, draft counts and row budgets are 0 or more")
    n, deepest = len(confidences), min(k_max, table.max_k)
    depths: list[int] = []
    gains: list[float] = []
    further: list[tuple[float, int, int]] = []
    for i, said in enumerate(confidences):
        cap = min(len(said) or known_drafts[i], deepest)
        depths.append(min(cap, 1))
        gain = 1.0
        for j in range(cap):
            gain *= calibration.probability(said[j], j + 1) if said else calibration.prior(j + 1)
            if j:
                further.append((-gain, i, j))
            else:
                gains.append(gain)
    base = sum(depths)
    if not n or base > row_budget:
        return [0] * n, base, None
    further.sort()
    del further[row_budget - base :]
    costs = table.costs(n)
    tokens = np.cumsum([n + sum(gains), *(-minus_gain for minus_gain, _, _ in further)])
    shares = np.arange(base, base + len(tokens)) / n
    joules = None
    if costs.verify_j is not None and costs.draft_j is not None:
        joules = _between(costs.verify_j, shares) + costs.draft_j[deepest]
    ms = _between(costs.verify_ms, shares) + costs.draft_ms[deepest]
    weighed = _weigh(tokens, ms, joules, 0, objective, slack)
    for _, i, _ in further[: weighed.best]:
        depths[i] += 1
    return depths, base, weighed


def _weigh(
    tokens: Array,
    ms: Array,
    joules: Array | None,
    reference: int,
    objective: Objective,
    slack: float,
) -> _Weighed:
    """Find the best of these; `reference` is the one whose speed objective `energy` compares with."""
    rates = tokens / ms
    if objective == "speed" or joules is None:
        return _Weighed(tokens, ms, joules, np.full(len(ms), True), int(rates.argmax()))
    floor = (1.0 - slack) * (rates[reference] if objective == "energy" else rates.max())
    fast = rates >= floor
    # `argmax` gives the first of equals: the shallower.
    best = int(np.where(fast, tokens / joules, -1.0).argmax())
    return _Weighed(tokens, ms, joules, fast, best)


def _between(cells: Array, shares: Array) -> Array:
    """The cells read at depths between two of them, on straight lines."""
    return np.interp(shares, np.arange(len(cells)), cells)
