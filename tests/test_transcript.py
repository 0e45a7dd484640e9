"""Conversations in files: what is saved comes back, what is no conversation is said."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx import transcript
from mtpx.errors import PromptError
from mtpx.session import Turn

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT, st.lists(st.builds(Turn, TEXT, TEXT)))
def test_what_is_saved_comes_back(
    tmp_path_factory: pytest.TempPathFactory, system: str, turns: list[Turn]
) -> None:
    path = transcript.save(tmp_path_factory.mktemp("saved") / "c.json", system, turns)
    assert transcript.load(path) == (system, turns)


@given(st.binary(max_size=80))
def test_any_file_is_a_conversation_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "c.json"
    path.write_bytes(data)
    with suppress(PromptError):
        assert transcript.load(path)


def test_a_list_of_messages_alone_is_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]')
    assert transcript.load(path) == ("", [Turn("a", "b")])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"messages": 3}', "is not a conversation: Expected `array`"),
        ('[{"role": "user", "content": "a"}]', "found user at turn 1"),
        ('[{"role": "tool", "content": "a"}, {"role": "user", "content": "a"}]', "tool and user"),
    ],
)
def test_what_cannot_be_gone_on_with_says_why(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(PromptError, match=said):
        transcript.load(path)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file/c.json", "x" * 300, "nul\0"):
        with pytest.raises(PromptError, match="the conversation cannot be written to"):
            transcript.save(tmp_path / place, "", [])
