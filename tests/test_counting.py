"""How long counted work still takes."""

from __future__ import annotations

import pytest

from mtpx_cli.counting import TimeLeft, counting


def test_what_is_left_takes_as_long_a_piece_as_what_is_done() -> None:
    now = iter([0.0, 1.0, 6.0, 9.0])
    left = TimeLeft(lambda: next(now))
    assert [left(done, 10) for done in range(4)] == [None, None, 24.0, 21.0]


def test_another_piece_of_work_is_judged_by_itself() -> None:
    now = iter([0.0, 10.0, 20.0, 30.0, 31.0, 32.0])
    left = TimeLeft(lambda: next(now))
    assert [left(done, 4) for done in range(3)][-1] == 20.0
    assert [left(done, 5) for done in range(3)] == [None, None, 3.0]


def test_off_a_terminal_a_line_comes_every_tenth_of_the_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with counting(quiet=False) as bar:
        for done in range(41):
            bar(done, 40, "working")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[0] == "working: 0 of 40"
    assert lines[5].startswith("working: 20 of 40, about ")


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with counting(quiet=True) as bar:
        bar(0, 1, "working")
    assert capsys.readouterr().err == ""
