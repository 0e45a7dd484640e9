"""Looking at a bench before it is over, without fooling oneself.

Each look at which the bench may stop gives luck another chance, so the error of 5 % is shared out among
them (Lan & DeMets 1983). What is spent by the fraction t of the blocks is that of O'Brien & Fleming's
boundary, 2 - 2 Φ(z / √t) with z = Φ⁻¹(1 - 0.05 / 2): almost nothing early, most of it at the end. A
look's interval has the level 1 - (what it spends); by the union bound the chance of a wrong verdict at
any look is at most 2.5 % on either side, however the looks are related.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from mtpx.errors import BenchError

MOST_LOOKS = 5
"""More looks leave so little for each that they decide nothing earlier."""

ALPHA = 0.05


def check_looks(looks: int) -> int:
    """`looks`, if it is 1 to 5. Raises `BenchError`."""
    if isinstance(looks, bool) or not isinstance(looks, int) or not 1 <= looks <= MOST_LOOKS:
        raise BenchError(f"--looks must be 1 to {MOST_LOOKS}, got {looks}")
    return looks


def look_levels(looks: int) -> list[float]:
    """The level of the interval at each of `looks` equally spaced looks, the last one at the end."""
    normal = NormalDist()
    z = normal.inv_cdf(1.0 - ALPHA / 2)
    spent = [2.0 - 2.0 * normal.cdf(z / math.sqrt((k + 1) / looks)) for k in range(looks)]
    return [
        round(1.0 - (now - before), 12) for before, now in zip([0.0, *spent], spent, strict=False)
    ]


def look_ends(blocks: int, looks: int) -> list[int]:
    """How many of the planned blocks have been run at each look."""
    return [math.ceil((k + 1) * blocks / looks) for k in range(looks)]


def looks_of(design: dict[str, Any] | None) -> int:
    """How often the bench with this design (a run record's) looks. Raises `BenchError` for a damaged one."""
    return check_looks(design.get("looks", 1)) if design else 1
