"""`mtpx chat --session` and `mtpx session`, as typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Command

from mtpx.paths import sessions_dir
from mtpx.sessions import Kept
from mtpx.trace.reader import read
from mtpx.trace.schema import RequestRecord

SHORT = ("--temperature", "0", "--max-tokens", "8", "--depth", "2")


@pytest.fixture
def chat(mtpx: Command, tiny_pack: Path) -> Any:
    def chat(*lines: str, options: tuple[str, ...] = (), pack: Path | None = tiny_pack) -> Any:
        stdin = "".join(f"{line}\n" for line in lines).encode()
        named = () if pack is None else (str(pack),)
        return mtpx("chat", *named, *SHORT, "--session", "trip", *options, stdin=stdin)

    return chat


def test_a_named_chat_goes_on_as_if_it_had_never_stopped(chat: Any, mtpx: Command) -> None:
    first = chat("one", "two")
    assert "session trip: new" in first.err
    second = chat("three", pack=None)
    assert "session trip: 2 turns so far" in second.err
    assert mtpx("session", "drop", "trip").status == 0
    assert first.out + second.out == chat("one", "two", "three").out


def test_the_summary_line_says_what_was_reused(chat: Any) -> None:
    chat("one")
    said = chat("two").err
    (line,) = [line for line in said.splitlines() if line.startswith("8 tokens; ")]
    assert "; reused " in line
    reused, _, of = line.split("; reused ")[1].split(";")[0].split()[:3]
    assert 0 < int(reused) < int(of)


def test_a_question_asked_again_reuses_all_of_the_prompt_but_its_last_token(
    chat: Any, own_folders: Path
) -> None:
    chat("one", "/regen")
    (trace,) = (own_folders / "state" / "traces").iterdir()
    first, again = [r for r in read(trace) if isinstance(r, RequestRecord)]
    assert first.reused_tokens == 0
    assert again.reused_tokens == again.prompt_tokens - 1


def test_carry_debug_says_a_line_for_every_store_and_adopt(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTPX_CARRY_DEBUG", "1")
    said = [line for line in chat("one", "two").err.splitlines() if line.startswith("carry: ")]
    assert [line.split()[3] for line in said] == ["adopts", "stores", "adopts", "stores"]
    assert "head: nothing adopted: there was no turn before" in said[0]
    assert "rows adopted" in said[2]


def test_a_session_that_is_open_elsewhere_is_said(mtpx: Command, own_folders: Path) -> None:
    held = Kept(sessions_dir(), "trip", budget=10**9, warn=print)
    done = mtpx("chat", "--session", "trip", stdin=b"x\n")
    assert "session trip is open in another chat" in done.complaint
    held.close()


def test_a_name_that_cannot_be_one_is_a_sentence(mtpx: Command) -> None:
    assert "cannot be a session's name" in mtpx("chat", "--session", "a/b").complaint


def test_a_budget_of_nothing_keeps_the_transcript_alone(chat: Any, mtpx: Command) -> None:
    done = chat("one", options=("--session-budget", "0"))
    assert "more than the budget of 0 MB" in done.err
    (kept,) = json.loads(mtpx("session", "list", "--json").out)
    assert (kept["name"], kept["turns"], kept["state_bytes"]) == ("trip", 1, 0)


def test_list_and_show_tell_what_is_kept(chat: Any, mtpx: Command, tiny_pack: Path) -> None:
    assert "no conversation is kept yet" in mtpx("session", "list").err
    answer = chat("one").out.strip()
    listed = mtpx("session", "list").out
    assert "trip" in listed
    assert "MB" in listed
    shown = mtpx("session", "show", "trip")
    assert shown.out.startswith(">>> one\n")
    data = json.loads(mtpx("session", "show", "trip", "--json").out)
    assert data["pack"] == str(tiny_pack)
    assert [m["role"] for m in data["messages"]] == ["user", "assistant"]
    assert "".join(data["messages"][1]["content"].split()) == "".join(answer.split())


@pytest.mark.parametrize("command", ["show", "drop"])
def test_a_session_that_is_not_there_is_a_sentence(mtpx: Command, command: str) -> None:
    assert "there is no session 'gone'" in mtpx("session", command, "gone").complaint


def test_dropping_several_drops_none_if_one_is_not_there(chat: Any, mtpx: Command) -> None:
    chat("one")
    assert mtpx("session", "drop", "trip", "gone").status == 2
    assert "trip" in mtpx("session", "list").out
