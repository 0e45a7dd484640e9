"""A conversation: turns so far, what of them fits into the context, reuse of what was computed.

When the conversation outgrows the context, the oldest turns leave it whole; the system prompt stays.
They leave for good: the transcript keeps them, the model no longer sees them.
"""

from __future__ import annotations

import secrets
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec

from mtpx.config import Environment
from mtpx.errors import MtpxError, PromptError

if TYPE_CHECKING:
    from mtpx.answer import Generation
    from mtpx.api import Model
    from mtpx.backend import Slot
    from mtpx.generation import Stream
    from mtpx.reuse import Reused

ROOM_SHARE = 4
"""A fourth of the context is kept free for the answer: old turns leave before it gets shorter."""


class Turn(msgspec.Struct, frozen=True):
    """A question and its answer, as far as it came."""

    question: str
    answer: str


class Session:
    """A conversation with `model`; one answer at a time.

    `system` is the system prompt ("": none, then the template may have its own). `thinking` switches
    a template's thinking on or off, `None` leaves it to the template. `turns` is the transcript;
    `left` of them, the oldest, the model no longer sees. `log` is told, in a line each, what is stored
    for the next turn and what is adopted from the last (by default to stderr if `MTPX_CARRY_DEBUG` is
    set, else not at all).
    """

    def __init__(
        self,
        model: Model,
        *,
        system: str = "",
        thinking: bool | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.model = model
        self.system, self.thinking = system, thinking
        self.turns: list[Turn] = []
        self.left = 0
        self.used = 0
        self._id = 1 + secrets.randbits(31)
        self._state: object | None = None
        if log is None and Environment.from_environ().carry_debug:
            log = partial(print, file=sys.stderr, flush=True)
        self._log = log

    def ask(
        self, question: str, *, replace: bool = False, max_tokens: int, **options: Any
    ) -> Reply:
        """The answer as pieces of text; it becomes a turn when it has ended with some text.

        `replace` puts it in the place of the last turn. `max_tokens` and `options` are those of
        `Model.stream`. Raises `MtpxError` for whatever cannot be done as asked; the conversation is
        then as it was.
        """
        if not question.strip():
            raise PromptError("the question is empty: give some text")
        if replace and not self.turns:
            raise PromptError("there is no turn to replace yet")
        turns = self.turns[:-1] if replace else self.turns
        context = self.model.engine.info.context_limit
        most = context - min(max_tokens, context // ROOM_SHARE)
        first = min(self.left, len(turns))

        def fits(n: int) -> bool:
            return len(self._encode(turns[n:], question)) <= most

        left = first
        if turns[first:] and not fits(first):
            left += 1 + bisect_left(range(first + 1, len(turns)), True, key=fits)
        stream = self.model.stream(
            self._encode(turns[left:], question),
            max_tokens=max_tokens,
            session=self._id,
            reuse=self._state,
            on_reuse=self._adopted,
            before_close=self._keep,
            **options,
        )
        return Reply(self, stream, question, replace=replace, left=left)

    def undo(self) -> Turn:
        """Take the last turn back. Raises `PromptError` when there is none."""
        if not self.turns:
            raise PromptError("there is no turn to take back")
        turn = self.turns.pop()
        self.left = min(self.left, len(self.turns))
        return turn

    def reset(self) -> None:
        """Forget every turn; the system prompt stays."""
        self.turns, self.left, self.used, self._state = [], 0, 0, None

    @property
    def state(self) -> object | None:
        """What the last turn computed (a snapshot of the engine's)."""
        return self._state

    def adopt(self, session: int, state: object) -> None:
        """Go on from a state that an earlier process kept, as the session it belongs to."""
        self._id, self._state = session, state

    def restart(self, system: str, turns: list[Turn]) -> None:
        """Go on from this conversation instead."""
        self.reset()
        self.system, self.turns = system, list(turns)

    def messages(self, turns: list[Turn], question: str = "") -> list[dict[str, str]]:
        """What the template is given: the system prompt, `turns`, and `question` if there is one."""
        found = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            found.append({"role": "user", "content": turn.question})
            found.append({"role": "assistant", "content": turn.answer})
        if question:
            found.append({"role": "user", "content": question})
        return found

    def _encode(self, turns: list[Turn], question: str) -> list[int]:
        return self.model.encode(self.messages(turns, question), thinking=self.thinking)

    def _keep(self, slot: Slot) -> None:
        self._state = None  # before the new one is made: there is room for one
        # What cannot be kept is computed again.
        with suppress(MtpxError, RuntimeError, MemoryError):
            self._state = slot.snapshot()
        if self._log is not None:
            kept = "nothing" if self._state is None else f"{len(slot.tokens):,} tokens"
            head = getattr(self._state, "head", None)
            rows = (
                f", {head.rows:,} rows of the head up to pair {head.last_pair_key:,}"
                if head
                else ""
            )
            self._log(f"carry: session {self._id:x} stores {kept}{rows}")

    def _adopted(self, reused: Reused) -> None:
        if self._log is not None:
            said = [f"carry: session {self._id:x} adopts {reused.tokens:,} tokens", reused.why]
            said.append("" if reused.carry is None else str(reused.carry))
            self._log("; ".join(filter(None, said)))


class Reply:
    """An answer being given in a session: iterate for the text; `result` is there at its end.

    `forgot` is how many turns had to leave the context for it.
    """

    def __init__(
        self, session: Session, stream: Stream, question: str, *, replace: bool, left: int
    ) -> None:
        self._session, self._stream = session, stream
        self._question, self._replace, self._left = question, replace, left
        self._ended = False
        self.forgot = max(0, left - session.left)

    @property
    def result(self) -> Generation:
        return self._stream.result

    def __iter__(self) -> Iterator[str]:
        try:
            yield from self._stream
        finally:
            self.close()

    def close(self) -> None:
        """Stop here; what was made stays. Closing twice is harmless."""
        self._stream.close()
        if self._ended:
            return
        self._ended = True
        result, session = self.result, self._session
        if result.stop == "error" or not result.text.strip():
            return
        session.used = result.prompt_tokens + result.tokens
        if self._replace:
            session.turns.pop()
        session.turns.append(Turn(self._question, result.text))
        session.left = self._left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
