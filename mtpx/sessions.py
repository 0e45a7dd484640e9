"""Conversations that are kept under a name: what was said, and what was computed for it.

A folder a name. `conversation.json` is the transcript, written after every turn; `state.safetensors`
what the model had computed (`mtpx.frozen`), written less often: it can be computed again. All states
together stay within a budget of bytes, the oldest go first; transcripts are never deleted unasked.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mtpx import frozen, transcript
from mtpx.errors import MtpxError, SessionError
from mtpx.frozen import Freezes, Newer, StateKey

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from mtpx.session import Session, Turn

BUDGET_MB = 4096
"""MB of states kept, unless the setting `session-budget` says otherwise."""

SAVE_EVERY = 512
"""Tokens a conversation grows by before its state is written again, beside the end of a chat: what a
killed process loses is a prefill of that many."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CONVERSATION, STATE, LOCK = "conversation.json", "state.safetensors", "lock"

Warn = Callable[[str], None]


class SessionInfo(msgspec.Struct, frozen=True):
    """A kept conversation. `state_bytes` are 0 where nothing computed is kept; `used` is when it was
    written last, in seconds since 1970; `error` is the sentence where it cannot be read."""

    name: str
    pack: str
    turns: int
    state_bytes: int
    used: float
    error: str = ""


def checked(name: str) -> str:
    """`name`, if it can be a folder's everywhere. Raises `SessionError`."""
    if not NAME.fullmatch(name):
        raise SessionError(
            f"{name!r} cannot be a session's name: letters, digits, '.', '_' and '-', at most 64, and a "
            "letter or digit first"
        )
    return name


def sessions(folder: Path) -> list[SessionInfo]:
    """All kept conversations, the one used last first."""
    try:
        names = [p.name for p in folder.iterdir() if p.is_dir() and NAME.fullmatch(p.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SessionError(f"cannot look into {folder}: {error.strerror or error}") from None
    found = (_info(folder / name) for name in names)
    return sorted((i for i in found if i is not None), key=lambda i: (-i.used, i.name))


def info(folder: Path, name: str) -> SessionInfo:
    """One of them. Raises `SessionError` where there is none."""
    found = _info(folder / checked(name))
    if found is None:
        raise SessionError(f"there is no session {name!r}; `mtpx session list` shows what there is")
    return found


def _info(at: Path) -> SessionInfo | None:
    conversation, state = at / CONVERSATION, at / STATE
    written = [stat for path in (conversation, state) if (stat := _stat(path)) is not None]
    if not written:
        return None
    pack, turns, why = "", 0, ""
    try:
        found = transcript.read(conversation)
        pack, turns = found.pack, len(transcript.turns(conversation, found)[1])
    except MtpxError as error:
        why = str(error)
    kept = _stat(state)
    return SessionInfo(
        at.name, pack, turns, kept[0] if kept else 0, max(when for _, when in written), why
    )


def drop(folder: Path, name: str) -> None:
    """Delete a conversation and its state. Raises `SessionError`: none there, open elsewhere."""
    info(folder, name)
    at = folder / name
    lock = _locked(at)
    try:
        shutil.rmtree(at)
    except OSError as error:
        raise SessionError(f"{at} cannot be deleted: {error.strerror or error}") from None
    finally:
        lock.release()


class Kept:
    """One conversation, opened: nobody else may write it until `close`.

    `pack`, `system` and `turns` are what its file holds; who goes on with another pack sets `pack`.
    `warn` is told, in a sentence, what could not be kept or gone on with; nothing of that stops a chat.
    """

    def __init__(self, folder: Path, name: str, *, budget: int, warn: Warn) -> None:
        """Raises `SessionError` where it is open elsewhere or its transcript cannot be read: it is then
        left as it is."""
        self.name, self.folder, self.at = name, folder, folder / checked(name)
        self._budget, self._warn = budget, warn
        self._lock: BaseFileLock | None = None
        self._said: tuple[str, list[Turn]] | None = None
        self._troubled = False
        self._keeps_state = self._changed = False
        self._used = 0
        try:
            self.at.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.at)
            frozen.discard_parts(self.at / STATE)
            frozen.discard_parts(self.at / CONVERSATION)
            self._keeps_state = True
        except OSError as error:
            self._trouble(f"it cannot be kept in {self.at}: {error.strerror or error}")
        try:
            self.pack, self.system, self.turns = self._transcript()
        except MtpxError as error:
            self.close()
            raise SessionError(
                f"session {name} cannot be gone on with: {error}; it was left as it is"
            ) from None

    def _transcript(self) -> tuple[str, str, list[Turn]]:
        path = self.at / CONVERSATION
        if not path.exists():
            return "", "", []
        found = transcript.read(path)
        return found.pack, *transcript.turns(path, found)

    def restore(self, session: Session) -> None:
        """Go on from what is kept. Warns where what was computed cannot be used."""
        session.restart(session.system or self.system, self.turns)
        self._said = (self.system, self.turns)
        engine = session.model.engine
        try:
            held = frozen.read(self.at / STATE, StateKey.of(session.model))
            if held is None:
                return
            if not isinstance(engine, Freezes):
                raise SessionError(f"the {engine.info.backend} backend keeps no state in files")
            session.adopt(held.session, engine.thaw(held))
            self._used = len(held.tokens)
        except MtpxError as error:
            # What a newer version made is not ours to replace.
            self._keeps_state &= not isinstance(error, Newer)
            self._warn(
                f"session {self.name}: what was computed cannot be used: {error}; it starts cold"
            )

    def after_turn(self, session: Session) -> None:
        """Keep what was said, and what was computed if much has come since the last time."""
        self._save_transcript(session)
        self._changed = True
        if abs(session.used - self._used) >= SAVE_EVERY:
            self._save_state(session)

    def finish(self, session: Session) -> None:
        """Keep everything, at the end of a chat."""
        self._troubled = False  # say once more what is lost for good now
        self._save_transcript(session)
        self._save_state(session)

    def close(self) -> None:
        """Let others have it. Closing twice is harmless."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _save_transcript(self, session: Session) -> None:
        now = (session.system, list(session.turns))
        if now == self._said or (self._said is None and not session.turns):
            return
        try:
            transcript.save(self.at / CONVERSATION, *now, pack=self.pack)
        except MtpxError as error:
            self._trouble(str(error))
            return
        self._said, self._troubled = now, False

    def _save_state(self, session: Session) -> None:
        engine, snapshot = session.model.engine, session.state
        if not (self._keeps_state and self._changed and isinstance(engine, Freezes)):
            return
        if snapshot is None:
            return
        self._used, self._changed = session.used, False
        try:
            held = engine.freeze(snapshot)
        except MtpxError as error:
            self._keeps_state = False
            self._warn(f"session {self.name}: {error}; it starts cold next time")
            return
        if held.nbytes > self._budget:
            self._warn(
                f"session {self.name}: what was computed takes {held.nbytes / 1e6:,.0f} MB, more than "
                f"the budget of {self._budget / 1e6:,.0f} MB (session-budget): it starts cold next time"
            )
            return
        try:
            make_room(self.folder, self._budget - held.nbytes, spare=self.name)
            frozen.write(self.at / STATE, held, StateKey.of(session.model))
        except OSError as error:
            self._warn(
                f"session {self.name}: what was computed cannot be kept: {error.strerror or error}; "
                "what was kept before is intact"
            )

    def _trouble(self, what: str) -> None:
        if not self._troubled:
            self._warn(f"session {self.name}: {what}; what is said now is not saved")
        self._troubled = True


def make_room(folder: Path, budget: int, *, spare: str) -> None:
    """Delete the oldest states, not `spare`'s, until the others take at most `budget` bytes."""
    others = []
    for path in folder.glob(f"*/{STATE}"):
        if path.parent.name != spare and (found := _stat(path)) is not None:
            others.append((found[1], found[0], path))
    total = sum(size for _, size, _ in others)
    for _, size, path in sorted(others):
        if total <= budget:
            return
        with suppress(OSError):
            path.unlink()
            total -= size


def _locked(at: Path) -> BaseFileLock:
    from filelock import FileLock, Timeout

    lock = FileLock(at / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SessionError(
            f"session {at.name} is open in another chat; close that one, or take another name"
        ) from None
    return lock


def _stat(path: Path) -> tuple[int, float] | None:
    """(bytes, when it was written), `None` where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime
