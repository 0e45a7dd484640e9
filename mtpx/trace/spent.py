"""Where the time went: reading prompts, drafting, verifying, the host, compiling."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class TimePart(msgspec.Struct, frozen=True):
    """Time of one kind in requests of one mode, in ms, and its share of all that mode's time. `mode` as of
    rounds: with the precision, where that is not the run's.

    `part`: "prefill"; "draft", "verify", "host" where a round's parts were timed apart, "rest" what is
    left of such rounds; "rounds" what the host leaves of those not timed apart; "compiling" whole rounds
    that compiled something.
    """

    mode: str
    part: str
    ms: float
    share: float


PARTS = ("prefill", "draft", "verify", "host", "rest", "rounds", "compiling")


def time_parts(ms: Mapping[str, Mapping[str, float]]) -> list[TimePart]:
    """From ms by mode and part: plain first, parts in their order; those that took no time are left
    out."""
    out: list[TimePart] = []
    for mode in sorted(ms, key=lambda mode: (not mode.startswith("plain"), mode)):
        total = sum(ms[mode].values())
        spent = ((part, ms[mode].get(part, 0.0)) for part in PARTS)
        out += [TimePart(mode, part, took, took / total) for part, took in spent if took]
    return out
