"""Text of an answer as it streams into a terminal: wrapped at words, markdown set off by styles.

The text itself is never changed: what the model wrote is what can be copied, markers included. Code
between fences is not wrapped. Words are held back until they are whole, so that none is broken over
two lines, and no character is shown before what combines with it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from wcwidth import wcswidth, wcwidth

BOLD, PLAIN_WEIGHT = "\x1b[1m", "\x1b[22m"
DIM = "\x1b[2m"
CODE, PLAIN_COLOUR = "\x1b[36m", "\x1b[39m"

FENCES = ("```", "~~~")

_UNSAFE = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SAFE = {code: "\ufffd" for code in _UNSAFE if chr(code) not in "\n\t"} | {ord("\r"): None}


def safe(text: str) -> str:
    """`text` without what a terminal would obey: a model may write escape sequences, and marks that
    reverse the direction of everything after them."""
    return text.translate(_SAFE)


class Flow:
    """Turns pieces of text into what is to be written to a terminal `width()` columns wide.

    `styled`: whether escape sequences for bold and colours may be used.
    """

    def __init__(self, width: Callable[[], int], *, styled: bool) -> None:
        self._width, self._styled = width, styled
        self._word = ""
        self._column = 0
        self._begins = True
        self._fence = ""
        self._heading = self._bold = self._code = False

    @property
    def at_edge(self) -> bool:
        """Whether the cursor waits in the last column: the terminal wraps with the next character,
        and would not if the cursor were moved in between."""
        return self._column > 0 and self._column % max(1, self._width()) == 0

    @property
    def column(self) -> int:
        """Columns used on the current line, 0 at its start."""
        return self._column

    def push(self, text: str) -> str:
        """What can be written now."""
        out = []
        for c in safe(text):
            if c == "\n":
                out.append(self._flush() + self._line_end() + "\n")
                self._column, self._begins = 0, True
            elif c in " \t":
                out.append(self._flush() + self._space(c))
            else:
                self._word += c
                if _breaks_after(c) or len(self._word) > 4 * self._width():
                    out.append(self._flush())
        return "".join(out)

    def finish(self) -> str:
        """What was held back, and the end of every style."""
        return self._flush() + self._line_end()

    def _flush(self) -> str:
        word, self._word = self._word, ""
        if not word:
            return ""
        width = max(0, wcswidth(word))
        out = ""
        if not self._fence and self._column > 0 and self._column + width > self._width() - 1:
            out, self._column = "\n", 0
        self._column += width
        begins, self._begins = self._begins, False
        return out + self._set_off(word, begins)

    def _space(self, c: str) -> str:
        size = 8 - self._column % 8 if c == "\t" else 1
        if not self._fence and not self._begins and self._column + size > self._width() - 1:
            self._column = 0
            return "\n"
        self._column += size
        return c

    def _set_off(self, word: str, begins: bool) -> str:
        """The word with the styles that begin and end in it."""
        if begins and (mark := word[:3]) in FENCES and self._fence in ("", mark):
            closes, self._fence = bool(self._fence), "" if self._fence else mark
            return self._style(DIM, word, PLAIN_WEIGHT if closes else "")
        if self._fence:
            return word
        if begins and 1 <= len(word) <= 6 and not word.strip("#"):
            self._heading = True
            return self._style(BOLD, word)
        out, rest = "", word
        while rest:
            if rest[0] == "`":
                self._code = not self._code
                out += self._style(CODE, "`") if self._code else self._style("", "`", PLAIN_COLOUR)
                rest = rest[1:]
            elif rest.startswith("**") and not self._code and not self._heading:
                self._bold = not self._bold
                out += (
                    self._style(BOLD, "**") if self._bold else self._style("", "**", PLAIN_WEIGHT)
                )
                rest = rest[2:]
            else:
                out, rest = out + rest[0], rest[1:]
        return out

    def _line_end(self) -> str:
        """The end of what does not go on over a line's end; of a fence's own line, the dimness."""
        ends = self._heading or self._bold or self._code or bool(self._fence)
        self._heading = self._bold = self._code = False
        return self._style("", "", PLAIN_WEIGHT + PLAIN_COLOUR) if ends else ""

    def _style(self, before: str, text: str, after: str = "") -> str:
        return before + text + after if self._styled else text


def _breaks_after(c: str) -> bool:
    """Whether a line may end after this character without a space: Chinese, Japanese, Korean."""
    return wcwidth(c) == 2 and unicodedata.category(c)[0] in "LP"
