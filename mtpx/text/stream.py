"""Tokens to text as they arrive.

What `Detokenizer` hands out is final: it holds back characters whose bytes are not all there, and
any tail that could yet become a stop string. The cost of a token does not depend on how much text
went before it.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from mtpx.errors import PromptError
from mtpx.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"

HELD_LIMIT = 8
"""Tokens held for one character. UTF-8 takes at most four bytes, a byte token each; beyond, the
replacement character is what the text says."""


class Detokenizer:
    """Turns the tokens of one request into text, and ends it at the first stop string.

    The first stop string is the one that is complete first; of several complete at the same
    character, the longest. The text then ends before it, `stopped` is true, and further tokens give
    nothing. Raises `PromptError` for an empty stop string.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, skip_special: bool = True
    ) -> None:
        if not all(stop):
            raise PromptError("a stop string must not be empty")
        self._stop = tuple(stop)
        self._skipped = tokenizer.special_ids if skip_special else frozenset[int]()
        table = tokenizer.token_bytes
        self._decoder: _Decoder = _Window(tokenizer) if table is None else _Utf8(table)
        self._held = ""
        self._delivered = 0
        # Characters decoded after each token: tells which token a cut falls into.
        self._ends: list[int] = []
        self.stopped = False

    @property
    def kept(self) -> int:
        """How many of the pushed tokens the delivered text needs: all of them, or, once stopped,
        those up to the one that holds the text's last character."""
        if not self.stopped:
            return len(self._ends)
        return bisect_left(self._ends, self._delivered) + 1 if self._delivered else 0

    def push(self, ids: Sequence[int]) -> str:
        """The text that became final with these tokens."""
        if self.stopped:
            return ""
        decoded = self._delivered + len(self._held)
        pieces = []
        for id in ids:
            piece = "" if id in self._skipped else self._decoder.push(id)
            decoded += len(piece)
            pieces.append(piece)
            self._ends.append(decoded)
        return self._deliver("".join(pieces), last=False)

    def finish(self) -> str:
        """What was held back, when no more tokens come."""
        if self.stopped:
            return ""
        rest = self._decoder.finish()
        if rest and self._ends:
            self._ends[-1] += len(rest)
        return self._deliver(rest, last=True)

    def _deliver(self, new: str, *, last: bool) -> str:
        text = self._held + new
        cut = self._first_stop(text)
        if cut is not None:
            self.stopped = True
        elif last:
            cut = len(text)
        else:
            cut = len(text) - self._possible_stop(text)
        self._held = "" if self.stopped else text[cut:]
        self._delivered += cut
        return text[:cut]

    def _first_stop(self, text: str) -> int | None:
        """Where the first stop string begins, None where there is none."""
        found = [(at + len(s), at) for s in self._stop if (at := text.find(s)) >= 0]
        return min(found)[1] if found else None

    def _possible_stop(self, text: str) -> int:
        """Length of the longest tail that begins a stop string."""
        longest = min(len(text), max(map(len, self._stop), default=1) - 1)
        for n in range(longest, 0, -1):
            tail = text[-n:]
            if any(s.startswith(tail) for s in self._stop):
                return n
        return 0


class _Decoder(Protocol):
    def push(self, id: int) -> str: ...

    def finish(self) -> str: ...


class _Utf8:
    """Byte-level vocabularies: an incremental UTF-8 decoder over every token's bytes."""

    def __init__(self, table: list[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        return self._decoder.decode(self._table[id] if id < len(self._table) else b"")

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class _Window:
    """Any other vocabulary, where a token's text depends on its neighbours: decode a short window
    with and without the new tokens, and take the difference once it ends in a whole character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        self._held: list[int] = []

    def push(self, id: int) -> str:
        self._held.append(id)
        before, text = self._texts()
        whole = len(text) > len(before) and not text.endswith(REPLACEMENT)
        if not whole and len(self._held) < HELD_LIMIT:
            return ""
        self._before, self._held = self._held, []
        return text[len(before) :]

    def finish(self) -> str:
        before, text = self._texts()
        self._before, self._held = self._held, []
        return text[len(before) :]

    def _texts(self) -> tuple[str, str]:
        decode = self._tokenizer.decode
        before = decode(self._before, skip_special=False) if self._before else ""
        return before, decode([*self._before, *self._held], skip_special=False)
