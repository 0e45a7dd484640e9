"""Conversations in files: JSON with the messages as everybody writes them.

`{"messages": [{"role": "system" | "user" | "assistant", "content": TEXT}, ...]}`, or the list alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from mtpx import digests
from mtpx.errors import PromptError
from mtpx.session import Turn

LIMIT = 64 << 20
"""Bytes. A conversation is text somebody read; what is larger is something else."""


class Message(msgspec.Struct, frozen=True):
    """One message; other keys are ignored."""

    role: str
    content: str


class Transcript(msgspec.Struct, frozen=True):
    """What a file holds."""

    messages: list[Message]
    pack: str = ""


def save(path: str | os.PathLike[str], system: str, turns: list[Turn], *, pack: str = "") -> Path:
    """Write the conversation; returns the file's path. A file that is there is replaced only if it
    holds a conversation. Raises `PromptError` when it cannot be written."""
    to = _expanded(path)
    if os.path.exists(to):  # noqa: PTH110 - Path's raises for names no file can have
        try:
            load(to)
        except PromptError:
            raise PromptError(
                f"{to} exists and is not a conversation; it was left as it is: name another file"
            ) from None
    messages = [Message("system", system)] if system else []
    for turn in turns:
        messages += [Message("user", turn.question), Message("assistant", turn.answer)]
    data = msgspec.json.format(msgspec.json.encode(Transcript(messages, pack)), indent=1)
    try:
        digests.write_atomically(to, data + b"\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise PromptError(f"the conversation cannot be written to {to}: {why}") from None
    return to


def load(path: str | os.PathLike[str]) -> tuple[str, list[Turn]]:
    """(system prompt, turns) of a file. Raises `PromptError` when there is no conversation in it."""
    return turns(path, read(path))


def read(path: str | os.PathLike[str]) -> Transcript:
    """What a file holds. Raises `PromptError` when there are no messages in it."""
    at = _expanded(path)
    try:
        with at.open("rb") as file:
            data = file.read(LIMIT + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise PromptError(f"cannot read {at}: {why}") from None
    if len(data) > LIMIT:
        raise PromptError(f"{at} is larger than a conversation can be ({LIMIT >> 20} MiB)")
    try:
        found = msgspec.json.decode(data, type=Transcript | list[Message])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PromptError(f"{at} is not a conversation: {error}") from None
    return Transcript(found) if isinstance(found, list) else found


def turns(path: str | os.PathLike[str], found: Transcript) -> tuple[str, list[Turn]]:
    """(system prompt, turns) of what `path` holds. Raises `PromptError` where nobody takes turns."""
    messages, system = found.messages, ""
    if messages and messages[0].role == "system":
        system, messages = messages[0].content, messages[1:]
    taken = []
    for i in range(0, len(messages), 2):
        roles = [message.role for message in messages[i : i + 2]]
        if roles != ["user", "assistant"]:
            raise PromptError(
                f"{_expanded(path)} is not a conversation this chat can go on with: user and assistant must take "
                f"turns, found {' and '.join(roles)} at turn {i // 2 + 1}"
            )
        taken.append(Turn(messages[i].content, messages[i + 1].content))
    return system, taken


def _expanded(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 - Path's raises without a home
