"""`mtpx chat` in a terminal, typed into as a person would: a real process on a pseudo-terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typed_chat import PROMPT, Start, chats, leave

pexpect = pytest.importorskip("pexpect")

PATIENCE_S = 60


@pytest.fixture
def start(tiny_pack: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a chat with the tiny pack, in folders of its own."""
    options = ["--temperature", "0"]
    with chats(tiny_pack, tmp_path, options, patience_s=PATIENCE_S, columns=80) as start:
        yield start


def ask(child: Any, text: str) -> str:
    """What is on the screen between Enter and the line under the answer."""
    child.send(text + "\r")
    child.expect(r"\d+ tokens?; ")
    shown: str = child.before
    child.expect_exact(PROMPT)
    return shown


def saved(child: Any, file: Path) -> list[str]:
    """The questions of the conversation so far."""
    child.send(f"/save {file}\r")
    child.expect_exact("saved ")
    child.expect_exact(PROMPT)
    messages = json.loads(file.read_text())["messages"]
    return [m["content"] for m in messages if m["role"] == "user"]


def test_a_person_asks_twice_and_leaves_with_ctrl_d(start: Start) -> None:
    child = start("--max-tokens", "6")
    ask(child, "Hello")
    ask(child, "And again?")
    assert leave(child) == 0


def test_a_live_line_shows_speed_depth_and_context_and_is_erased(start: Start) -> None:
    child = start("--max-tokens", "60", "--depth", "1")
    shown = ask(child, "Hello")
    assert re.search(r"tok/s, depth 1, \d\.\d\d tokens a round, context \d+ of 256", shown)
    assert shown.count("\x1b7") == shown.count("\x1b8")
    assert shown.rindex("\x1b8") < shown.rindex("\x1b[J")


def test_ctrl_c_stops_the_answer_and_not_the_program(start: Start) -> None:
    child = start("--max-tokens", "230", "--depth", "off")
    child.send("Hello\r")
    child.expect_exact("tok/s, depth")
    child.send("\x03")
    child.expect_exact("stopped")
    child.expect_exact(PROMPT)
    ask(child, "/set max_tokens 4\rAgain")
    assert leave(child) == 0


def test_what_is_typed_during_an_answer_waits_for_the_next_prompt(
    start: Start, tmp_path: Path
) -> None:
    child = start("--max-tokens", "100")
    child.send("Hello\r")
    child.expect_exact("tok/s, depth")
    child.send("typed ahead")
    child.expect(r"\d+ tokens?; ")
    assert "typed ahead" not in child.before
    child.expect_exact("typed ahead")
    child.send("\r")
    child.expect(r"\d+ tokens?; ")
    child.expect_exact(PROMPT)
    assert saved(child, tmp_path / "c.json") == ["Hello", "typed ahead"]


def test_a_paste_of_200_lines_is_one_question_with_nothing_lost(
    start: Start, tmp_path: Path
) -> None:
    child = start("--max-tokens", "4")
    text = "\n".join(str(i % 10) for i in range(100))
    child.send(f"\x1b[200~{text}\x1b[201~")
    child.expect_exact("[paste 1: 100 lines]")
    ask(child, " end")
    assert saved(child, tmp_path / "c.json") == [text + " end"]


def test_several_lines_are_typed_with_alt_enter(start: Start, tmp_path: Path) -> None:
    child = start("--max-tokens", "4")
    ask(child, "one\x1b\rtwo")
    assert saved(child, tmp_path / "c.json") == ["one\ntwo"]


def test_a_megabyte_pasted_is_refused_in_a_sentence_and_the_chat_goes_on(start: Start) -> None:
    child = start("--max-tokens", "4")
    child.send("\x1b[200~")
    for _ in range(256):
        child.send("0123 " * 800 + "\n")
    child.send("\x1b[201~\r")
    child.expect_exact("more than fit in the context")
    child.expect_exact(PROMPT)
    ask(child, "Hello")
    assert leave(child) == 0


def test_undo_regen_and_edit_from_the_keyboard(start: Start, tmp_path: Path) -> None:
    child = start("--max-tokens", "4")
    ask(child, "one")
    ask(child, "two")
    child.send("/undo\r")
    child.expect_exact("taken back: two")
    child.expect_exact(PROMPT)
    ask(child, "/regen")
    child.send("/edit\r")
    child.expect_exact(PROMPT)
    child.expect_exact("one")
    ask(child, "!")
    assert saved(child, tmp_path / "c.json") == ["one!"]


def test_history_is_there_in_the_next_run(start: Start) -> None:
    child = start("--max-tokens", "4")
    ask(child, "remember me")
    assert leave(child) == 0
    child = start("--max-tokens", "4")
    child.send("\x1b[A")
    child.expect_exact("remember me")
    assert leave_with_text(child) == 0


def leave_with_text(child: Any) -> int:
    child.send("\x03")
    return leave(child)


def test_a_history_that_cannot_be_written_is_said_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "chat-history.jsonl").mkdir()
    child = start("--max-tokens", "4")
    before = child.before
    said = before + ask(child, "one") + ask(child, "two")
    assert said.count("this chat goes on without") == 1
    assert leave(child) == 0


def test_without_colours_and_quiet_there_is_no_escape_but_the_prompts_own(start: Start) -> None:
    child = start("--max-tokens", "20", "--quiet", NO_COLOR="1")
    child.send("Hello\r")
    child.expect_exact("\x1b[?2004l")
    child.expect_exact("\x1b[?2004h")
    child.expect_exact("\x1b[?2004l")
    assert "\x1b" not in child.before
    child.expect_exact(PROMPT)
    assert leave(child) == 0


def test_a_dumb_terminal_gets_plain_lines(start: Start) -> None:
    child = start("--max-tokens", "20", TERM="dumb")
    child.send("Hello\n")
    child.expect(r"\d+ tokens?; ")
    assert "\x1b7" not in child.before
    child.expect_exact(PROMPT)
    assert leave(child) == 0


def test_a_narrow_window_has_no_live_line_and_wraps_the_answer(start: Start) -> None:
    child = start("--max-tokens", "40")
    child.setwinsize(24, 18)
    shown = ask(child, "Hi")
    assert "tok/s, depth" not in shown
    assert leave(child) == 0


def test_leaving_while_the_model_is_loading_is_quiet(start: Start) -> None:
    child = start()
    assert leave(child) == 0
    assert "Traceback" not in child.before


def test_a_model_that_cannot_be_loaded_ends_the_chat_with_the_sentence(start: Start) -> None:
    child = start("--device", "nonsense")
    child.expect_exact("mtpx: ")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 2
    assert "Traceback" not in child.before
