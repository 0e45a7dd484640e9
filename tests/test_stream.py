"""Incremental detokenising: whatever the tokens, the pushes and the stop strings, the pieces are the
whole."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizer_makers import TOKENS, gguf_tokenizer, sentencepiece_like

from mtpx.errors import PromptError
from mtpx.text import Detokenizer, Tokenizer
from mtpx.text.stream import HELD_LIMIT

SENTENCEPIECE = sentencepiece_like()
PLAIN = [i for i, t in enumerate(TOKENS) if i > 2]
# Few letters, so that stop strings match, overlap and nearly match.
LETTERS = "ab\né😀"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return gguf_tokenizer(tmp_path_factory.mktemp("stream"))


def cut_by_definition(text: str, stops: Sequence[str]) -> str:
    """Read one character at a time; at the first one that completes a stop string, end before the
    longest stop string it completes."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stops if text[:end].endswith(s)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def pushes(ids: Sequence[int], cuts: Iterable[int]) -> list[list[int]]:
    places = sorted({min(c, len(ids)) for c in cuts} | {0, len(ids)})
    return [list(ids[a:b]) for a, b in pairwise(places)]


def streamed(detokenizer: Detokenizer, parts: Iterable[Sequence[int]]) -> str:
    return "".join([detokenizer.push(part) for part in parts]) + detokenizer.finish()


CUTS = st.lists(st.integers(0, 24), max_size=8)
STOPS = st.lists(st.text(alphabet=LETTERS, min_size=1, max_size=4), max_size=3)


@given(ids=st.lists(st.sampled_from(PLAIN), max_size=24), cuts=CUTS)
def test_any_tokens_in_any_pushes_give_their_text(
    small: Tokenizer, ids: list[int], cuts: list[int]
) -> None:
    assert streamed(Detokenizer(small), pushes(ids, cuts)) == small.decode(ids)


@given(text=st.text(alphabet=LETTERS, max_size=24), cuts=CUTS, stops=STOPS)
@example(text="abab", cuts=[1, 2, 3], stops=["abb", "bab"])
@example(text="aab", cuts=[1, 2], stops=["ab"])
@example(text="abé", cuts=[1, 2], stops=["bé", "abéa"])
def test_the_text_ends_before_the_stop_string_that_is_complete_first(
    small: Tokenizer, text: str, cuts: list[int], stops: list[str]
) -> None:
    ids = small.encode(text, special=False)
    detokenizer = Detokenizer(small, stops)
    expected = cut_by_definition(text, stops)
    assert streamed(detokenizer, pushes(ids, cuts)) == expected
    assert detokenizer.stopped is (expected != text)


@given(text=st.text(alphabet=LETTERS, max_size=24), cuts=CUTS, stops=STOPS)
def test_what_was_delivered_is_never_taken_back(
    small: Tokenizer, text: str, cuts: list[int], stops: list[str]
) -> None:
    detokenizer = Detokenizer(small, stops)
    expected = cut_by_definition(text, stops)
    delivered = ""
    for part in pushes(small.encode(text, special=False), cuts):
        delivered += detokenizer.push(part)
        assert expected.startswith(delivered)


def complete(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of these tokens' whole characters."""
    table = tokenizer.token_bytes
    assert table is not None
    return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(table[i] for i in ids))


@given(text=st.text(alphabet=LETTERS, max_size=24), cuts=CUTS, stops=STOPS)
def test_the_tokens_kept_are_the_fewest_that_hold_the_text(
    small: Tokenizer, text: str, cuts: list[int], stops: list[str]
) -> None:
    ids = small.encode(text, special=False)
    detokenizer = Detokenizer(small, stops)
    delivered = streamed(detokenizer, pushes(ids, cuts))
    kept = detokenizer.kept
    assert complete(small, ids[:kept]).startswith(delivered)
    if detokenizer.stopped and kept:
        assert not complete(small, ids[: kept - 1]).startswith(delivered)
    if not detokenizer.stopped:
        assert kept == len(ids)


def one_by_one(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    return [detokenizer.push([i]) for i in ids]


def test_a_character_split_over_tokens_comes_whole(small: Tokenizer) -> None:
    table = small.token_bytes
    assert table is not None
    ids = [table.index(bytes([b])) for b in "é😀".encode()]
    assert one_by_one(Detokenizer(small), ids) == ["", "é", "", "", "", "😀"]


def test_an_incomplete_character_shows_at_the_end(small: Tokenizer) -> None:
    table = small.token_bytes
    assert table is not None
    detokenizer = Detokenizer(small)
    assert detokenizer.push([table.index(b"a"), table.index(b"\xf0")]) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_only_a_tail_that_could_become_a_stop_string_is_held(small: Tokenizer) -> None:
    a, b, c = (TOKENS.index(t) for t in "abc")
    detokenizer = Detokenizer(small, ["abb"])
    assert one_by_one(detokenizer, [c, a, b, a, b, b, c]) == ["c", "", "", "ab", "", "", ""]
    assert detokenizer.stopped
    assert detokenizer.kept == 3


def test_a_stop_string_inside_a_token_keeps_that_token(small: Tokenizer) -> None:
    the = TOKENS.index("the")
    detokenizer = Detokenizer(small, ["h"])
    assert detokenizer.push([the]) == "t"
    assert detokenizer.kept == 1


def test_a_stop_string_at_the_start_keeps_nothing(small: Tokenizer) -> None:
    detokenizer = Detokenizer(small, ["t"])
    assert detokenizer.push([TOKENS.index("the")]) == ""
    assert detokenizer.kept == 0


def test_nothing_follows_a_stop(small: Tokenizer) -> None:
    detokenizer = Detokenizer(small, ["b"])
    assert detokenizer.push([TOKENS.index("a"), TOKENS.index("b")]) == "a"
    assert detokenizer.push([TOKENS.index("c")]) == ""
    assert detokenizer.finish() == ""
    assert detokenizer.kept == 1


def test_special_tokens_are_left_out_unless_asked_for(small: Tokenizer) -> None:
    ids = [TOKENS.index("a"), TOKENS.index("<|im_end|>"), TOKENS.index("b")]
    assert streamed(Detokenizer(small), [ids]) == "ab"
    assert streamed(Detokenizer(small, skip_special=False), [ids]) == "a<|im_end|>b"


def test_an_empty_stop_string_is_refused(small: Tokenizer) -> None:
    with pytest.raises(PromptError, match="must not be empty"):
        Detokenizer(small, ["a", ""])


SPOKEN = st.text(alphabet="the alo!é😀日", max_size=20)


@given(text=SPOKEN, cuts=CUTS)
def test_a_neighbourly_vocabulary_streams_its_text_too(text: str, cuts: list[int]) -> None:
    ids = SENTENCEPIECE.encode(text)
    assert streamed(Detokenizer(SENTENCEPIECE), pushes(ids, cuts)) == SENTENCEPIECE.decode(ids)


@given(
    text=SPOKEN, cuts=CUTS, stops=st.lists(st.sampled_from(["e a", "😀", "l", " h"]), max_size=2)
)
def test_a_neighbourly_vocabulary_stops_too(text: str, cuts: list[int], stops: list[str]) -> None:
    ids = SENTENCEPIECE.encode(text)
    detokenizer = Detokenizer(SENTENCEPIECE, stops)
    expected = cut_by_definition(SENTENCEPIECE.decode(ids), stops)
    assert streamed(detokenizer, pushes(ids, cuts)) == expected


def test_a_window_stays_short_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = SENTENCEPIECE.decode

    def counting(ids: Iterable[int], **kwargs: Any) -> str:
        ids = list(ids)
        decoded.append(len(ids))
        return decode(ids, **kwargs)

    monkeypatch.setattr(SENTENCEPIECE, "decode", counting)
    byte = SENTENCEPIECE.encode("\x00", bos=False)[-1]
    unknown = 10_000
    detokenizer = Detokenizer(SENTENCEPIECE)
    for id in [byte + 0xFF, unknown, *SENTENCEPIECE.encode("hello the")] * 50:
        detokenizer.push([id])
    assert max(decoded) <= 2 * HELD_LIMIT


def test_invalid_bytes_are_not_held_for_ever() -> None:
    byte = SENTENCEPIECE.encode("\x00", bos=False)[-1] + 0xFF
    detokenizer = Detokenizer(SENTENCEPIECE)
    said = [detokenizer.push([byte]) for _ in range(3 * HELD_LIMIT)]
    assert "".join(said) == "\ufffd" * (3 * HELD_LIMIT)


@pytest.mark.model
def test_the_embedded_vocabulary_streams_emoji_and_scripts(embedded_weights: Path) -> None:
    from mtpx.checkpoint import open_checkpoint
    from mtpx.text import load_tokenizer

    tokenizer = load_tokenizer(embedded_weights, open_checkpoint(embedded_weights))
    text = "Grüße 日本語 👩‍👩‍👧 عربية\n\n```py\nx = 1\n```"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text) / 2
    assert streamed(Detokenizer(tokenizer), [[i] for i in ids]) == text
