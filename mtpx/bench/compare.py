"""Arms against each other: a policy against the best fixed depth, and against other policies.

Every arm has its own blocks against plain. On a prompt that two arms share, the difference of their log
ratios to plain compares the two; prompts are the unit, and the interval is Student's t at 95 %. The
best fixed depth is the one with the highest mean in these very runs, plain decode among the
candidates. Picking it afterwards flatters it: a policy that equals every depth looks a little worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations

import msgspec

from mtpx.bench import intervals
from mtpx.bench.blocks import Block
from mtpx.bench.design import PLAIN, Arm

Values = dict[tuple[str, str], float]


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """How fast `arm` is, relative to `other`: the geometric mean over prompts, and its 95 % interval
    (absent for a single prompt). `suite` "" is all of them; `best`: whether `other` is the best fixed
    depth of that part."""

    arm: str
    other: str
    suite: str
    prompts: int
    ratio: float
    low: float | None = None
    high: float | None = None
    best: bool = False


def comparisons(arms: Sequence[Arm], blocks: Iterable[Block]) -> list[Comparison]:
    """Each policy arm against the best fixed depth, and policy arms against each other, the first
    named first; per suite where there are several, and over all. Empty where fewer than two arms have
    matched plain runs."""
    policies = [arm.name for arm in arms if arm.policy]
    fixed = [arm.name for arm in arms if arm.mode == "mtp" and not arm.policy]
    known = list(blocks)
    suites = sorted({block.suite for block in known})
    parts = [*suites, ""] if len(suites) > 1 else [""]
    values = {name: _values(name, known) for name in (*policies, *fixed)}
    out: list[Comparison] = []
    for name in policies:
        for part in parts if fixed else ():
            mine = _part(values[name], part)
            candidates = {other: _part(values[other], part) for other in fixed}
            candidates[PLAIN] = dict.fromkeys(mine, 0.0)
            shared = {o: v for o, v in candidates.items() if v.keys() & mine.keys()}
            if mine and shared:
                best = max(shared, key=lambda o: math.fsum(shared[o].values()) / len(shared[o]))
                out.append(_compared(name, best, part, mine, shared[best], best=True))
    for name, other in combinations(policies, 2):
        for part in parts:
            mine, theirs = _part(values[name], part), _part(values[other], part)
            if mine.keys() & theirs.keys():
                out.append(_compared(name, other, part, mine, theirs, best=False))
    return out


def _values(arm: str, blocks: Iterable[Block]) -> Values:
    """Each prompt's mean log ratio to plain under this arm."""
    logs: dict[tuple[str, str], list[float]] = {}
    for block in blocks:
        if block.arm == arm and not block.against and block.log_ratio is not None:
            logs.setdefault(block.key, []).append(block.log_ratio)
    return {key: math.fsum(found) / len(found) for key, found in logs.items()}


def _part(values: Values, suite: str) -> Values:
    return {key: value for key, value in values.items() if not suite or key[0] == suite}


def _compared(
    arm: str, other: str, suite: str, mine: Values, theirs: Values, *, best: bool
) -> Comparison:
    differences = [mine[key] - theirs[key] for key in mine if key in theirs]
    mean = math.fsum(differences) / len(differences)
    low = high = None
    if len(differences) > 1:
        mean, low, high = intervals.t_interval(differences, 0.95)
        low, high = math.exp(low), math.exp(high)
    return Comparison(arm, other, suite, len(differences), math.exp(mean), low, high, best)
