"""The one record of what happened in a round.

The policy learns from it, the trace stores it, the report reads it, the live line shows it.
Missing is never zero: what was not measured is `None` and is left out of the trace.
"""

from __future__ import annotations

from typing import Literal

import msgspec

RouteKind = Literal["eager", "compiled"]


class Route(msgspec.Struct, frozen=True):
    """How a target forward runs: `kind`, and the shape bucket it falls into (backend's own name)."""

    kind: RouteKind = "eager"
    bucket: str = ""


class SlotRound(msgspec.Struct, omit_defaults=True):
    """One sequence's share of a round.

    `position` is the number of tokens the sequence held when the round began (prompt included).
    `drafted` ≥ `verified` ≥ `accepted`; `committed` is what the round delivered, accepted + 1 unless
    the sequence ended inside the accepted drafts. `confidences` are the head's top-1
    log-probabilities, one a draft, `None` where they were not had.
    """

    request: int
    position: int
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    committed: int = 0
    ended: bool = False
    confidences: list[float] | None = None

    @property
    def judged(self) -> int:
        """Draft positions that received a verdict: the accepted ones, and the first rejected one.

        An end of sequence among the accepted drafts judges nothing after itself: it is the round's
        last token, so nothing is committed beyond the accepted drafts.
        """
        if self.ended and self.committed <= self.accepted:
            return self.accepted
        return min(self.accepted + 1, self.verified)


class Decision(msgspec.Struct, omit_defaults=True):
    """Why the policy chose what it chose, and what became of the round's time.

    `selected` is the depth believed best; `reason` why this round ran at the depth it did:
    "selected", "probe", "seed", "park", "resume", "fixed" or "cap". `cut` counts drafts that were proposed and not
    verified, `stopped` those that were meant to be made and were not, since those before them were too
    unsure for one more to pay. `cost_sample` says whether the round's time became a cost sample; if not,
    `excluded` says why ("transition", "compile", "stall", "resume", "fixed", "clock": the time is none,
    "cap": nothing may be drafted, "ragged": sequences drafted differently, "reading": the price of reading
    confidences is being measured).
    """

    selected: int | None = None
    reason: str = ""
    cut: int = 0
    stopped: int = 0
    cost_sample: bool | None = None
    excluded: str = ""


class Round(msgspec.Struct, tag="round", omit_defaults=True):
    """One round: propose, verify, commit. Times in ms, `start_ns` on a monotonic clock.

    `round_ms` runs from the start of the round to the arrival of its outcome. `draft_ms` and
    `verify_ms` are present only where they were had without a further synchronisation; `host_ms`
    is the loop's and the policy's own share of `round_ms`; `ask_ms` what reading confidences and asking the
    policy about them took, where the device's work is the host's. `energy_j`, where there is a meter, is the
    power it told then times the round's time.
    """

    index: int
    start_ns: int
    depth: int
    slots: list[SlotRound]
    round_ms: float
    route: Route = Route()
    compiled_now: bool = False
    draft_ms: float | None = None
    verify_ms: float | None = None
    host_ms: float | None = None
    ask_ms: float | None = None
    energy_j: float | None = None
    decision: Decision | None = None

    @property
    def width(self) -> int:
        return len(self.slots)

    @property
    def committed(self) -> int:
        return sum(slot.committed for slot in self.slots)
