"""Plain decode in the fastest precision: what MTP in any other one has to beat.

A head that pays in a slow precision may still be slower than plain decode in a fast one, which is there
for the asking. So where a bench is of a precision that `--precision auto` would not take, plain decode
in the one it takes runs inside the same blocks, as C beside A and B. A block's order is a palindrome
(CABBAC, ACBBCA or ABCCBA, or the like with A and B exchanged), so that a linear drift of the machine
cancels between any two of the three.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from mtpx.errors import BenchError

if TYPE_CHECKING:
    from mtpx.bench.verdict import Verdict

Order = Literal[
    "ABBA", "BAAB", "CABBAC", "ACBBCA", "ABCCBA", "CBAABC", "BCAACB", "BACCAB"
]  # fmt: skip
"""A is plain, B the arm, C plain in the fastest precision."""

PREFIX = "plain in "


class Fastest(msgspec.Struct, frozen=True):
    """Plain decode in the precision that `--precision auto` takes here, where that is another one than
    the bench's: its name, the tier it runs in, and the bytes of weights its step reads."""

    precision: str
    tier: str
    plain_step_bytes: int = 0

    @property
    def arm(self) -> str:
        """The name of its runs."""
        return f"{PREFIX}{self.precision}"


def fastest_in(design: dict[str, Any] | None) -> Fastest | None:
    """What the design in a run record says of it. Raises `BenchError` for a damaged one."""
    said = (design or {}).get("fastest")
    if said is None:
        return None
    try:
        return msgspec.convert(said, Fastest)
    except msgspec.ValidationError as error:
        raise BenchError(f"the design in the trace's run record cannot be read: {error}") from None


def with_third(orders: Sequence[Order], seed: int) -> list[Order]:
    """Each order of A and B (ABBA or BAAB) with C put in: first, between or last of a half, each equally
    often (to within one) among those that begin with A and among those that begin with B."""
    rng = random.Random(f"{seed}/fastest")
    places: dict[str, list[int]] = {}
    for order in ("ABBA", "BAAB"):
        turns = rng.sample(range(3), 3)
        found = [turns[i % 3] for i in range(orders.count(order))]
        rng.shuffle(found)
        places[order] = found
    made: list[Order] = []
    for order in orders:
        at = places[order].pop()
        half = order[:at] + "C" + order[at:2]
        made.append(msgspec.convert(half + half[::-1], Order))
    return made


def precision_of(arm: str) -> str:
    """The precision of an arm called as `Fastest.arm` calls it."""
    return arm.removeprefix(PREFIX)


def held_to(verdict: Verdict) -> str:
    """The plain decode that a verdict is against, in words."""
    if not verdict.against:
        return "plain decode in its own precision"
    return f"plain decode in {precision_of(verdict.against)}, the fastest precision here"


def leading(own: Verdict, fastest: Verdict | None) -> Verdict:
    """Of an arm's verdicts against its own precision's plain decode and the fastest's, the one that says
    whether MTP pays here: the less favourable, its own where they agree."""
    worse = ("pays", "inconclusive", "none", "does not pay").index
    if fastest is None or worse(own.verdict) >= worse(fastest.verdict):
        return own
    return fastest
