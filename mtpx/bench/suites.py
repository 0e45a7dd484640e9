"""Prompts a bench runs on: the suites that ship with mtpx, and one's own files.

A suite is a JSON Lines file beside this module, named after itself; whatever files are there are the
suites there are. A line holds an `id` and either `messages` (a chat) or `prompt` (raw text, to which no
chat template is applied).
"""

from __future__ import annotations

import hashlib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec

from mtpx.errors import BenchError


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a chat."""

    role: str
    content: str


class BenchPrompt(msgspec.Struct, frozen=True):
    """A prompt with the names it goes by. Exactly one of `messages` and `prompt` is there."""

    id: str
    suite: str
    messages: list[Message] | None = None
    prompt: str | None = None

    @property
    def content(self) -> list[dict[str, str]] | str:
        """What is encoded: chat messages (with the template), or raw text (without)."""
        if self.messages is not None:
            return [{"role": m.role, "content": m.content} for m in self.messages]
        return self.prompt or ""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    id: str | None = None
    suite: str | None = None
    messages: list[Message] | None = None
    prompt: str | None = None


def suite_names() -> list[str]:
    """The suites that ship, by name."""
    return sorted(path.name.removesuffix(".jsonl") for path in _files())


def suite(name: str) -> list[BenchPrompt]:
    """The prompts of a shipped suite. Raises `BenchError` for a name there is no file for."""
    for path in _files():
        if path.name == f"{name}.jsonl":
            return _parse_lines(path.read_text(encoding="utf-8"), name, f"suite {name}")
    raise BenchError(f"there is no suite {name!r}; there are {', '.join(suite_names())}")


def prompt_file(path: Path) -> list[BenchPrompt]:
    """One's own prompts: JSON Lines (`.jsonl`), or text with one prompt a line.

    The suite is the file's name unless a JSON line names one; a text line is the user's message of a
    chat. Empty lines are skipped. Raises `BenchError` with the number of a line that cannot be used.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BenchError(
            f"the prompt file {path} cannot be read: {error.strerror or error}"
        ) from None
    except UnicodeDecodeError as error:
        raise BenchError(f"the prompt file {path} is not UTF-8 text: {error.reason}") from None
    if path.suffix == ".jsonl":
        prompts = _parse_lines(text, path.stem, str(path))
    else:
        prompts = [
            BenchPrompt(f"line-{number}", path.stem, messages=[Message("user", line.strip())])
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    if not prompts:
        raise BenchError(f"the prompt file {path} holds no prompt")
    return prompts


def distinct(prompts: list[BenchPrompt]) -> list[BenchPrompt]:
    """The same prompts, checked: a prompt is the unit of the statistics, so two alike would count one
    measurement twice. Raises `BenchError` for doubled ids within a suite and doubled content."""
    ids: set[tuple[str, str]] = set()
    contents: dict[str, str] = {}
    for prompt in prompts:
        name = f"{prompt.suite}/{prompt.id}"
        if (prompt.suite, prompt.id) in ids:
            raise BenchError(f"two prompts are called {name}; give each its own id")
        ids.add((prompt.suite, prompt.id))
        digest = hashlib.sha256(msgspec.json.encode(prompt.content)).hexdigest()
        if digest in contents:
            raise BenchError(
                f"the prompts {contents[digest]} and {name} are the same; a verdict needs different ones"
            )
        contents[digest] = name
    return prompts


def _files() -> list[Traversable]:
    folder = resources.files("mtpx.bench") / "suites"
    return [path for path in folder.iterdir() if path.name.endswith(".jsonl")]


def _parse_lines(text: str, suite: str, source: str) -> list[BenchPrompt]:
    prompts = []
    decoder = msgspec.json.Decoder(_Line)
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw.strip():
            continue
        try:
            line = decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise BenchError(f"{source}, line {number}: {error}") from None
        if (line.messages is None) == (line.prompt is None):
            raise BenchError(f'{source}, line {number}: give either "messages" or "prompt"')
        if not (line.messages or (line.prompt or "").strip()):
            raise BenchError(f"{source}, line {number}: the prompt is empty")
        prompts.append(
            BenchPrompt(
                id=line.id if line.id is not None else f"line-{number}",
                suite=line.suite if line.suite is not None else suite,
                messages=line.messages,
                prompt=line.prompt,
            )
        )
    return prompts
