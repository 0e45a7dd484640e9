"""Text of an answer as a terminal shows it: nothing lost, no word broken, nothing obeyed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from mtpx_cli.flow import Flow, safe

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def flowed(*pieces: str, width: int = 20, styled: bool = False) -> str:
    flow = Flow(lambda: width, styled=styled)
    return "".join(map(flow.push, pieces)) + flow.finish()


PROSE = st.lists(
    st.sampled_from(
        ["a", "word", "longer-word", "**b**", "`c`", "日本語", "e\u0301", "👨‍👩‍👧", "שלום"]
    ),
    max_size=30,
).map(" ".join)


@given(PROSE, st.integers(20, 60), st.booleans())
def test_wrapping_changes_nothing_but_white_space(text: str, width: int, styled: bool) -> None:
    out = ESCAPES.sub("", flowed(text, width=width, styled=styled))
    assert "".join(out.split()) == "".join(text.split())


@given(PROSE, st.integers(20, 60))
def test_no_line_reaches_the_last_column(text: str, width: int) -> None:
    for line in flowed(text, width=width).split("\n"):
        assert wcswidth(line) < width


@given(PROSE, st.data())
def test_it_does_not_matter_how_the_text_is_cut_into_pieces(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert flowed(*pieces, styled=True) == flowed(text, styled=True)


@given(st.text())
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    out = flowed(text, width=30)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", out)


def test_words_are_shown_once_they_are_whole() -> None:
    flow = Flow(lambda: 20, styled=False)
    assert [flow.push(p) for p in ("Hel", "lo wor", "ld.")] == ["", "Hello ", ""]
    assert flow.finish() == "world."


@pytest.mark.parametrize(
    "character", ["\u00a0", "\u202f", "\u200d", "\u3000", "\u00ad", "é", "\ue000"]
)
def test_characters_that_only_look_unusual_stay(character: str) -> None:
    assert safe(f"a{character}b") == f"a{character}b"


def test_lines_of_code_are_not_wrapped_and_keep_their_spaces() -> None:
    code = "```python\nif x:\n    return 'a rather long line of code'  # wide\n```\n"
    assert flowed(code) == code
    assert "\n" in flowed("after a fence the text is wrapped").strip()


def test_markers_stay_and_styles_end_where_they_should() -> None:
    out = flowed("a **b c** `d` e\n# Title here\nplain", width=60, styled=True)
    assert out == (
        "a \x1b[1m**b c**\x1b[22m \x1b[36m`d`\x1b[39m e\n\x1b[1m# Title here\x1b[22m\x1b[39m\nplain"
    )


def test_without_styles_there_is_no_escape_sequence() -> None:
    assert "\x1b" not in flowed("# a **b** `c`\n```\nd\n```\n", styled=False)


def test_a_style_left_open_ends_with_the_answer() -> None:
    assert flowed("**never closed", styled=True).endswith("\x1b[22m\x1b[39m")


def test_at_the_edge_of_the_terminal_the_flow_says_so() -> None:
    flow = Flow(lambda: 10, styled=False)
    flow.push("```\n")
    flow.push("0123456789 ")
    assert not flow.at_edge
    flow.push("abcdefghi")
    flow.finish()
    assert flow.at_edge
