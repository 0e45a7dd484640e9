"""The host's side of a slot: whole numbers that mean the same whatever device the state lies on.

An engine's own slot adds its state. What refuses a prompt, a round or a draft is here too, so that every
backend says it in the same sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from mtpx.errors import BackendError, PromptError
from mtpx.reuse import Reuse, Reused

if TYPE_CHECKING:
    from mtpx.backend import EngineInfo
    from mtpx.carry import CarriedHead, CarryOutcome
    from mtpx.sampling import Sampling


@dataclass(slots=True, eq=False, kw_only=True, weakref_slot=True)
class HostSlot:
    """`filled` positions of the target's state are valid; `round` counts target forwards that drew
    tokens. `kept` is what was taken over when the slot was opened, `carried` the head's part of that,
    `outcome` what became of it, `carry_ms` the time that took."""

    tokens: list[int]
    prompt: int
    sampling: Sampling
    seed: int
    request: int
    end_ids: frozenset[int]
    session: int = 0
    filled: int = 0
    round: int = 0
    kept: Reuse = Reuse(0)
    carried: CarriedHead | None = None
    outcome: CarryOutcome | None = None
    carry_ms: float | None = None

    @property
    def pairs(self) -> int:
        """Head pairs that the tokens and the target's state make up, the last one's number + 1."""
        return min(self.filled, len(self.tokens) - 1)

    @property
    def reused(self) -> Reused:
        return Reused(self.kept.tokens, self.kept.why, self.outcome, self.carry_ms)

    @property
    def pipelines(self) -> bool:
        """Whether the next step can start before this token is known to the host."""
        return not self.sampling.penalised and self.sampling.logprobs is None

    def cut(self, committed: Sequence[int]) -> tuple[list[int], bool]:
        """`committed` up to and including the first end id, and whether there was one."""
        for i, token in enumerate(committed):
            if token in self.end_ids:
                return list(committed[: i + 1]), True
        return list(committed), False

    def check_ready(self, info: EngineInfo) -> None:
        """Raise `BackendError` before the prompt is in, `PromptError` where nothing more fits."""
        if self.filled != len(self.tokens) - 1:
            raise BackendError(
                f"the slot is not prefilled: {self.filled} of {len(self.tokens) - 1} tokens are in"
            )
        if len(self.tokens) > info.context_limit:
            raise PromptError(
                f"the context of {info.context_limit} tokens is full; nothing more fits"
            )


S = TypeVar("S")


class OpenSlots(Generic[S]):
    """What an engine has open, oldest first. A slot that nobody holds any more takes no place: a Ctrl-C may
    come between the engine's `open` and the name that its slot was to get."""

    def __init__(self) -> None:
        self._held: list[ref[S]] = []

    def __iter__(self) -> Iterator[S]:
        return iter([slot for held in self._held if (slot := held()) is not None])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def append(self, slot: S) -> None:
        self._held = [held for held in self._held if held() is not None] + [ref(slot)]

    def remove(self, slot: S) -> None:
        self._held = [held for held in self._held if held() not in (None, slot)]


def check_opening(
    tokens: Sequence[int], info: EngineInfo, *, opened: int, width: int, closed: bool
) -> None:
    """Raise `PromptError` for a prompt that is empty, too long, or not of this vocabulary, `BackendError`
    where the engine takes no further slot."""
    if closed:
        raise BackendError("the engine is closed; load the pack again")
    if not tokens:
        raise PromptError("the prompt is empty: give at least one token")
    over = len(tokens) - info.context_limit
    if over >= 0:
        raise PromptError(
            f"the prompt has {len(tokens)} tokens, {over + 1} more than fit in the context of "
            f"{info.context_limit} with room for an answer"
        )
    wrong = [t for t in tokens if not 0 <= t < info.vocab_size]
    if wrong:
        raise PromptError(f"token id {wrong[0]} is outside the vocabulary of {info.vocab_size}")
    if opened >= width:
        raise BackendError(
            f"{width} sequences are open, which is all this engine was loaded for; "
            "close one, or load with a larger max_width"
        )


def no_drafts(info: EngineInfo, *, has_head: bool) -> BackendError:
    """Why a slot without a head's state cannot draft."""
    if has_head:
        return BackendError("this request decodes plain: it was opened without the head")
    why = info.details.get("plain")
    return BackendError(why or f"{info.pack} has no head, so nothing can be drafted")
