"""What was typed, kept across runs: JSON Lines in the state directory, one entry a line.

A place that cannot be written or read costs the history of this run, no more; it is said once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History

KEPT = 1000
"""Entries kept when the file is trimmed; it may hold twice as many before it is."""

LONGEST = 64 << 10
"""Characters; a longer entry is a pasted file, which nobody looks for in a history."""

MOST_BYTES = 64 << 20
"""A larger file is not our history."""


class TypedHistory(History):
    """History in the file `path`; `warn` is told once if it cannot be kept. `whole(entry)` is what an
    entry stands for."""

    def __init__(
        self, path: Path, warn: Callable[[str], None], whole: Callable[[str], str] = str
    ) -> None:
        super().__init__()
        self._path, self._warn, self._works = path, warn, True
        self._whole = whole

    def append_string(self, string: str) -> None:
        entry = self._whole(string)
        if len(entry) <= LONGEST:
            super().append_string(entry)

    def load_history_strings(self) -> Iterable[str]:
        """Newest first."""
        entries = self._read()
        if len(entries) > 2 * KEPT:
            entries = entries[-KEPT:]
            self._rewrite(entries)
        return reversed(entries)

    def store_string(self, string: str) -> None:
        if not self._works:
            return
        line = json.dumps(string) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        except OSError as error:
            self._give_up(error)

    def _read(self) -> list[str]:
        try:
            if self._path.stat().st_size > MOST_BYTES:
                return []
            text = self._path.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            self._give_up(error)
            return []
        found = []
        for line in text.splitlines():
            with suppress(ValueError, RecursionError):  # torn by a killed process, or not ours
                entry = json.loads(line)
                if isinstance(entry, str):
                    found.append(entry)
        return found

    def _rewrite(self, entries: list[str]) -> None:
        from mtpx.digests import write_atomically

        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        with suppress(OSError):
            write_atomically(self._path, lines.encode())

    def _give_up(self, error: OSError) -> None:
        if self._works:
            self._works = False
            why = error.strerror or error
            self._warn(
                f"the history {self._path} cannot be used ({why}); this chat goes on without"
            )
