"""Where a person types: line editing, history, several lines, pastes."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

from mtpx_cli.history import TypedHistory

LONG_LINES, LONG_CHARACTERS = 20, 4000
"""A larger paste is shown as a note that it is there: redrawing it with every key would be slow, and
nobody reads it again."""


class Typed:
    """Reads what a person types. `commands` are completed after a slash with Tab."""

    def __init__(
        self, history: Path, commands: Iterable[str], warn: Callable[[str], None], *, styled: bool
    ) -> None:
        self._pasted: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        output = Vt100_Output.from_pty(sys.stdout)
        # Asking the terminal where its cursor is leaves the answer on the screen if nobody waits.
        output.enable_cpr = False
        self._session: PromptSession[str] = PromptSession(
            history=TypedHistory(history, warn, self._whole),
            completer=_Commands(tuple(commands)),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            enable_history_search=True,
            multiline=True,
            prompt_continuation="... ",
            key_bindings=self._keys(),
            reserve_space_for_menu=0,
            output=output,
        )
        self._prompt = FormattedText([("bold" if styled else "", ">>> ")])

    def read(self, default: str = "") -> str | None:
        """What was typed, `None` to leave. Raises `KeyboardInterrupt` on Ctrl-C in an empty line."""
        self._pasted.clear()

        def start() -> None:
            self._loop = asyncio.get_running_loop()

        try:
            text = self._session.prompt(self._prompt, default=default, pre_run=start)
        except EOFError:
            return None
        finally:
            self._loop = None
        return self._whole(text)

    def interrupt(self, error: Exception) -> None:
        """From another thread: make `read` raise `error` now, if it is reading."""
        loop, app = self._loop, self._session.app

        def leave() -> None:
            if app.is_running:
                app.exit(exception=error)

        if loop is not None:
            loop.call_soon_threadsafe(leave)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @Condition
        def holds_text() -> bool:
            return bool(self._session.default_buffer.text)

        @keys.add("enter")
        def accept(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def newline(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-c", filter=holds_text)
        def clear(event: KeyPressEvent) -> None:
            event.current_buffer.reset()

        @keys.add(Keys.BracketedPaste)
        def paste(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self._noted(event.data))

        return keys

    def _noted(self, data: str) -> str:
        text = data.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.removesuffix("\n").count("\n") + 1
        if lines <= LONG_LINES and len(text) <= LONG_CHARACTERS:
            return text
        self._pasted.append(text)
        size = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        return f"[paste {len(self._pasted)}: {size}]"

    def _whole(self, text: str) -> str:
        """The text with the pastes in the places of their notes."""

        def paste(note: re.Match[str]) -> str:
            number = int(note[1])
            return self._pasted[number - 1] if 0 < number <= len(self._pasted) else note[0]

        return re.sub(r"\[paste (\d{1,6}): \d+ (?:lines|characters)\]", paste, text)


class _Commands(Completer):
    """Slash commands, as the first word."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and " " not in text:
            for name in self._names:
                if name.startswith(text):
                    yield Completion(name + " ", start_position=-len(text), display=name)
