"""Which depth: one protocol, many policies.

Policies are pure: no clock and no randomness of their own. Time and outcomes come in through
`observe`, so the same object runs live, on the simulated backend and in a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mtpx.backend import FloatArray
from mtpx.policy.fixed import FixedDepth
from mtpx.round import Decision, Round, Route

__all__ = ["Batch", "DepthPolicy", "FixedDepth", "LoneStoppingPolicy", "StoppingPolicy"]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a policy may know before a round.

    `caps[i]` is the deepest slot i can use: the head's limit held to its remaining budget - 1, and 0
    where it is parked. `contexts[i]` is its length in tokens, `greedy[i]` its sampling regime.
    `route(k)` says what a verify at depth k would run as now.
    """

    caps: list[int]
    contexts: list[int]
    greedy: list[bool]
    route: Callable[[int], Route]

    @property
    def width(self) -> int:
        return len(self.caps)

    @property
    def limit(self) -> int:
        """The deepest depth any slot can use."""
        return max(self.caps, default=0)


@runtime_checkable
class DepthPolicy(Protocol):
    """Chooses how many drafts are proposed, and how many of them are verified.

    `wants_confidence` makes the loop read the head's confidences before verify (that costs a
    synchronisation) and call `verify` with them, (n, k) with NaN where a slot has no draft; the
    answer is one depth a slot. Whether draft j of a slot is verified may depend on that slot's
    confidences 1..j only, unless its drafts are argmax (see `mtpx.sampling`): anything else biases
    the text. `decision()` explains the round just chosen. `state()` and `restore()` carry what was
    learned across requests and processes; `explain()` shows the current belief.
    """

    name: str

    @property
    def wants_confidence(self) -> bool: ...

    def propose(self, batch: Batch) -> int: ...

    def verify(self, confidence: FloatArray) -> list[int]: ...

    def decision(self) -> Decision: ...

    def observe(self, round: Round) -> None: ...

    def explain(self) -> dict[str, Any]: ...

    def parameters(self) -> dict[str, Any]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class StoppingPolicy(DepthPolicy, Protocol):
    """A policy that may end a chain of drafts before the depth it proposed.

    While `wants_steps`, the engine asks `go_on` after every head step but the last: (n, j) confidences of
    the drafts made so far, NaN where a slot has none; the answer is one bool a slot. Every draft
    that was made may be verified, so the text stays exact whatever is answered. But where
    drafts are drawn, how many there are tells of their confidences: a `verify` that cuts such a chain
    may cut its last draft only (`mtpx.policy.cut`).
    """

    @property
    def wants_steps(self) -> bool: ...

    def go_on(self, confidence: FloatArray) -> list[bool]: ...


@runtime_checkable
class LoneStoppingPolicy(StoppingPolicy, Protocol):
    """One that answers for a lone sequence by number, which is quicker (`mtpx.chain.AloneGoOn`).

    `lone_goes_on` is asked instead of `go_on`, with the confidence of the newest draft, draft after draft of
    the round: whether there is to be another. It is also told of the last one there is room for; then
    `lone_verify` is asked instead of `verify`: how many of the drafts it was told of are verified.
    """

    def lone_goes_on(self, confidence: float) -> bool: ...

    def lone_verify(self) -> int: ...
