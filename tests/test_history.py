"""What was typed: kept across runs, bounded, and never a reason to fail."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mtpx_cli import history
from mtpx_cli.history import TypedHistory


def kept(path: Path) -> list[str]:
    """Newest first, as a new run sees it."""
    return list(TypedHistory(path, pytest.fail).load_history_strings())


def test_entries_of_any_text_come_back_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "state" / "h.jsonl"
    entries = ["one", "two\nlines", "שלום \u2028 🙂"]
    for entry in entries:
        TypedHistory(path, pytest.fail).store_string(entry)
    assert kept(path) == entries[::-1]


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    TypedHistory(path, pytest.fail).store_string("mine")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(b'"good"\n{"not": "ours"}\n\xff\xfe\n"torn')
    assert kept(path) == ["good"]


def test_it_is_trimmed_to_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("".join(f'"{i}"\n' for i in range(2 * history.KEPT + 1)))
    assert len(kept(path)) == history.KEPT
    assert len(path.read_text().splitlines()) == history.KEPT
    assert kept(path)[0] == str(2 * history.KEPT)


def test_what_stands_for_a_paste_is_kept_whole_unless_it_is_huge(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    whole = {"[paste]": "the text", "[huge]": "x" * (history.LONGEST + 1)}
    typed = TypedHistory(path, pytest.fail, whole.__getitem__)
    typed.append_string("[paste]")
    typed.append_string("[huge]")
    assert kept(path) == ["the text"]


def test_a_place_that_cannot_be_used_is_said_once_and_harms_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    typed = TypedHistory(tmp_path, said.append)  # a folder
    assert list(typed.load_history_strings()) == []
    typed.store_string("one")
    typed.store_string("two")
    assert len(said) == 1
    assert "this chat goes on without" in said[0]
