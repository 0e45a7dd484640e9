"""Chat templates: a conversation to the text the model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtpx.errors import PackError, PromptError


class ChatTemplate:
    """A jinja template as Hugging Face tokenizers carry them, rendered in a sandbox.

    `texts`: names every rendering sees, such as `bos_token` (`Tokenizer.special_texts`). The dialect
    is transformers': blocks trimmed, `break` and `continue`, `raise_exception`, `strftime_now`,
    `tojson` that leaves characters as they are, `generation` blocks.

    Raises `PackError` when the source is no template.
    """

    def __init__(self, source: str, texts: Mapping[str, str] | None = None) -> None:
        from mtpx.text.sandbox import Sandbox

        self.source = source
        self._texts = dict(texts or {})
        try:
            self._template = Sandbox().load(source)
        except Exception as error:  # jinja's own, and Python's on generated code
            raise PackError(f"the chat template cannot be used: {_said(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **names: Any,
    ) -> str:
        """The text of `messages` (each a mapping with `role` and usually `content`), ready for the
        model's answer if `add_generation_prompt`. `names` reach the template (`tools`, ...).

        Raises `PromptError` when the template does not take these messages, `PackError` when it
        tries what a template may not, or does not come to an end.
        """
        from jinja2.exceptions import SecurityError

        from mtpx.text.sandbox import Refusal, limits

        _check(messages)
        told = {"tools": None, "documents": None, **self._texts, **names}
        told |= {
            "messages": [dict(m) for m in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with limits():
                return self._template.render(told)
        except SecurityError as error:
            raise PackError(
                f"the chat template was stopped: {_said(error)}; do not trust this pack"
            ) from error
        except Refusal as error:
            raise PromptError(f"the chat template refuses the messages: {_said(error)}") from error
        except Exception as error:  # whatever its expressions raise on these messages
            raise PromptError(
                f"the chat template fails on these messages: {_said(error)}"
            ) from error


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise PromptError("a conversation needs at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(f"message {i + 1} is not a mapping with a role: {message!r}")


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
