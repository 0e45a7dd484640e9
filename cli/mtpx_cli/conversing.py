"""A chat as it goes on: questions become answers on the screen, with the figures under them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mtpx_cli.live import Status, Writer, ctrl_c_stops, silent_keys
from mtpx_cli.run import figure, pace, speculation
from mtpx_cli.terminal import complain, note

if TYPE_CHECKING:
    from mtpx.answer import Generation
    from mtpx.api import Depth, Model, TraceTo
    from mtpx.policy.registry import PolicyOptions
    from mtpx.session import Reply, Session, Turn
    from mtpx.sessions import Kept


class Reader(Protocol):
    """Where questions come from: `read` gives the next one, or `None` when there are no more."""

    def read(self, default: str = "") -> str | None: ...


@dataclass(slots=True)
class Choices:
    """What can be changed while chatting. `sampling` holds the fields that differ from the pack's."""

    max_tokens: int
    depth: Depth = None
    policy: PolicyOptions | None = None
    sampling: dict[str, float | int] = field(default_factory=dict)
    seed: int | None = None
    thinking: bool | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """How the chat shows itself: `flowing` wraps and sets off text for a terminal, `styled` may use
    bold and colours, `quiet` says nothing but answers and errors."""

    flowing: bool
    styled: bool
    quiet: bool


class Leave(Exception):
    """The person wants to go."""


class Interrupted(Exception):
    """Ctrl-C, where nobody is there to go on."""


class Chat:
    """One conversation with a person, or with a pipe. `load()` gives the model when it is needed."""

    def __init__(
        self,
        load: Callable[[], Model],
        reader: Reader,
        choices: Choices,
        look: Look,
        *,
        system: str = "",
        trace: Path | None = None,
        trace_text: bool = False,
        person: bool = True,
        kept: Kept | None = None,
    ) -> None:
        self._load, self.reader, self.choices, self.look = load, reader, choices, look
        self._session: Session | None = None
        self._system, self._kept = system, kept
        self.trace, self._trace_text, self.person = trace, trace_text, person
        self.last: Generation | None = None
        self.answers = self.tokens = 0

    @property
    def loaded(self) -> bool:
        """Whether there is somebody to talk with."""
        return self._session is not None

    @property
    def session(self) -> Session:
        """The conversation; the first time, this waits until the model is loaded."""
        if self._session is None:
            from mtpx.session import Session

            model = self._load()
            self._session = Session(model, system=self._system)
            if self._kept is not None:
                self._kept.restore(self._session)
            if self.choices.thinking is not None and not model.thinks:
                self.say(
                    "this model's template has no switch for thinking: --thinking does nothing"
                )
        return self._session

    def say(self, line: str) -> None:
        """A remark, unless quiet."""
        if not self.look.quiet:
            note(line, dim=True)

    def ask(self, question: str, *, replace: bool = False) -> None:
        """Ask, and show the answer as it comes. Raises `MtpxError` where it cannot be done; the
        conversation is then as it was before."""
        with silent_keys():
            session = self.session  # Ctrl-C while the model is loading ends the wait
            self._answer(session, question, replace)

    def _answer(self, session: Session, question: str, replace: bool) -> None:
        with ctrl_c_stops() as stop:
            session.thinking = self.choices.thinking if session.model.thinks else None
            status = Status(session.model.engine.info.context_limit)
            writer = Writer(
                flowing=self.look.flowing,
                styled=self.look.styled,
                live=self.look.flowing and not self.look.quiet,
            )

            def reading(done: int, total: int) -> None:
                if stop.asked:
                    raise KeyboardInterrupt
                if done < total:
                    writer.status(lambda: f"reading the prompt: {done} of {total} tokens")

            reply = self._reply(question, replace, on_prefill=reading, on_round=status.see)
            if reply.forgot:
                turns = f"{reply.forgot} turn{'s' if reply.forgot > 1 else ''}"
                self.say(f"the context is full: the oldest {turns} left it")
            shown = 0
            try:
                for piece in reply:
                    writer.text(piece)
                    shown += len(piece)
                    writer.status(status.line)
                    if stop.asked:
                        break
            except KeyboardInterrupt:
                stop.asked = True
            finally:
                reply.close()
                # Ctrl-C leaves what was held back for a character or a stop string.
                writer.text(reply.result.text[shown:])
                writer.finish()
        self._count(reply.result)
        if stop.asked and not self.person:
            raise Interrupted

    def _reply(self, question: str, replace: bool, **watchers: Any) -> Reply:
        from mtpx.errors import TraceError

        options = {
            "replace": replace,
            "max_tokens": self.choices.max_tokens,
            "depth": self.choices.depth,
            # A number of drafts leaves nothing to choose.
            "policy": None if isinstance(self.choices.depth, int) else self.choices.policy,
            "seed": self.choices.seed,
            **self.choices.sampling,
            **watchers,
        }
        try:
            return self.session.ask(question, trace=self._trace_to(), **options)
        except TraceError as error:
            if self.trace is None:
                raise
            self.trace = None
            complain(f"{error}; this chat leaves no trace")
            return self.session.ask(question, **options)

    def _trace_to(self) -> TraceTo | None:
        if self.trace is None:
            return None
        from mtpx.api import TraceTo

        return TraceTo(self.trace, text=self._trace_text, command="mtpx chat", warn=complain)

    def _count(self, result: Generation) -> None:
        self.last = result
        self.answers += 1
        self.tokens += result.tokens
        context = self.session.model.engine.info.context_limit
        self.say(turn_line(result, context))
        if result.stop == "interrupt" and not result.text.strip():
            self.say("nothing was said yet: the question is not part of the conversation")

    def show(self, turns: list[Turn]) -> None:
        """Turns as they were, for a conversation that was loaded or shortened."""
        for turn in turns:
            note(f">>> {turn.question}", dim=True)
            writer = Writer(flowing=self.look.flowing, styled=self.look.styled, live=False)
            writer.text(turn.answer)
            writer.finish()

    def keep(self) -> None:
        """Write down what was said, if the conversation has a name."""
        if self._kept is not None and self._session is not None:
            self._kept.after_turn(self._session)

    def close(self) -> None:
        """Keep what has a name, let go of the rest. Closing twice is harmless."""
        session, kept = self._session, self._kept
        self._session = self._kept = None
        try:
            if session is not None and kept is not None:
                kept.finish(session)
        finally:
            if kept is not None:
                kept.close()
            if session is not None:
                session.model.close()


def reused(result: Generation) -> list[str]:
    """What of the prompt was there from the turn before; and where that is little of it, why."""
    found = result.reused
    if found is None or not (found.tokens or found.why):
        return []
    said = f"reused {found.tokens:,} of {result.prompt_tokens:,}"
    if found.why and 2 * found.tokens < result.prompt_tokens:
        said += f" ({found.why})"
    return [said]


def turn_line(result: Generation, context: int) -> str:
    """The quiet line under an answer."""
    parts = [*pace(result), *reused(result), speculation(result)]
    if result.speculation == "on" and result.rounds:
        parts[-1] += f", {result.tokens / result.rounds:.2f} tokens a round"
    if (joules := result.token_energy_j) is not None:
        parts.append(f"{figure(joules)} J/token")
    endings = {
        "length": "stopped at max-tokens",
        "context": f"the context of {context} tokens is full",
        "interrupt": "stopped",
    }
    if result.stop in endings:
        parts.append(endings[result.stop])
    if result.looped:
        parts.append("the text repeats itself")
    return "; ".join(parts)
