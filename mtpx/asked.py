"""What a program asks for, looked at before anything is computed: a wrong type is told in a sentence."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from mtpx.errors import MtpxError, PromptError, SamplingError

Kind = Literal["text", "messages", "tokens"]

PROMPT = "a prompt is text, a list of messages or a list of token ids"


def whole(value: Any, name: str, error: type[MtpxError] = PromptError) -> int:
    """A whole number, numpy's included; a flag is none. Raises `error`."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise error(f"{name} must be a whole number, got {_shown(value)}")


def texts(value: Any, name: str) -> tuple[str, ...]:
    """One text or several. Raises `PromptError`."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise PromptError(f"{name} must be text or a list of texts, got {_shown(value)}")


def kind_of_prompt(value: Any) -> Kind:
    """Whether a prompt is text, messages or token ids (an empty list counts as messages). Raises
    `PromptError` for anything else."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        hint = "; decode it first" if isinstance(value, bytes | bytearray) else ""
        raise PromptError(f"{PROMPT}, got {_shown(value)}{hint}")
    messages = [isinstance(one, Mapping) for one in value]
    if all(messages):
        return "messages"
    for one, message in zip(value, messages, strict=True):
        if not message and not _is_token(one):
            raise PromptError(f"{PROMPT}, got a list with {_shown(one)} in it")
    if any(messages):
        raise PromptError(f"{PROMPT}, got a list with both messages and numbers in it")
    return "tokens"


def _is_token(value: Any) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__")


def _shown(value: Any) -> str:
    """A value as a sentence names it."""
    said = repr(value)
    named = type(value).__name__
    return named if len(said) > 40 else f"{said} ({named})"


def refuse_unknown(
    names: Collection[str], options: Collection[str], sampling: Collection[str]
) -> None:
    """Raises `SamplingError` for a name that is neither an option nor a parameter of the sampling, with
    what may have been meant."""
    known = [*options, *sampling]
    for name in sorted(names):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]!r}? There" if near else "there"
            raise SamplingError(
                f"there is no option {name!r}; {meant} are {', '.join(sorted(options))}, and of the "
                f"sampling {', '.join(sorted(sampling))}"
            )
