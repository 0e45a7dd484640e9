"""Questions from a pipe, a file or a terminal that cannot do more: one a line, or several lines
between two lines of three double quotes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

from mtpx_cli.terminal import is_terminal, note

QUOTES = '"""'

LONGEST = 16 << 20
"""Bytes of one line. No context holds as much; a file without line ends must not fill the memory."""


class Lines:
    """Reads questions from stdin."""

    def __init__(self) -> None:
        self._asks = is_terminal(sys.stdin)
        self._number = 0

    def read(self, default: str = "") -> str | None:
        """The next question, `None` after the last one. A question by default is for people who can
        edit it, which here they cannot. Raises `PromptError` for what is no text."""
        for line in self._lines():
            if not line.startswith(QUOTES):
                return line
            rest = line[len(QUOTES) :]
            if rest.endswith(QUOTES):
                return rest.removesuffix(QUOTES)
            block = [rest] if rest else []
            for more in self._lines():
                if more.endswith(QUOTES):
                    last = more.removesuffix(QUOTES)
                    return "\n".join([*block, last] if last else block)
                block.append(more)
            return "\n".join(block)
        return None

    def _lines(self) -> Iterator[str]:
        from mtpx.errors import PromptError

        while sys.stdin is not None:
            if self._asks:
                with suppress(OSError):
                    sys.stderr.write(">>> ")
                    sys.stderr.flush()
            try:
                data = sys.stdin.buffer.readline(LONGEST + 1)
            except OSError as error:
                raise PromptError(f"stdin cannot be read: {error.strerror or error}") from None
            if not data:
                if self._asks:
                    note("")
                return
            self._number += 1
            if len(data) > LONGEST:
                raise PromptError(
                    f"line {self._number} of stdin is longer than {LONGEST >> 20} MiB"
                )
            try:
                yield data.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise PromptError(
                    f"line {self._number} of stdin is not valid UTF-8 (byte {error.start}); "
                    "convert it first (iconv -t UTF-8)"
                ) from None
