"""Remarks on a terminal: broken between words, never inside one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mtpx_cli.terminal import between_words

TEXTS = st.text("ab/ -\n", max_size=80)
WIDTHS = st.integers(1, 30)


@given(TEXTS, WIDTHS)
def test_no_word_is_lost_or_cut(text: str, width: int) -> None:
    assert between_words(text, width).split() == text.split()


@given(TEXTS, WIDTHS)
def test_a_line_is_too_long_only_where_it_is_one_word(text: str, width: int) -> None:
    for line in between_words(text, width).split("\n"):
        assert len(line) <= width or len(line.split()) == 1


@given(TEXTS)
def test_lines_that_fit_stay_as_they_are(text: str) -> None:
    assert between_words(text, 80) == text


def test_a_sentence_is_broken_at_a_space() -> None:
    assert between_words("drafts do not pay here", 10) == "drafts do\nnot pay\nhere"
