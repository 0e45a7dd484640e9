"""The bundle a Mac owner sends: complete whatever fails, and nothing personal in it."""

from __future__ import annotations

import getpass
import sys
import zipfile
from pathlib import Path

import check_mac
import pytest
from check_mac import Step, check, impersonal, steps


def test_a_step_that_fails_is_in_the_bundle_and_the_others_still_run(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "page.html").write_text("<p>hello</p>")
    chosen = [
        Step("this one breaks", "a.txt", [sys.executable, "-c", "print('ouch'); exit(2)"]),
        Step("a verdict", "b.txt", [sys.executable, "-c", "print('no'); exit(3)"], (0, 1, 3)),
        Step("endless", "c.txt", [sys.executable, "-c", "import time; time.sleep(60)"]),
    ]
    failed = check(tmp_path / "out.zip", chosen, traces, timeout=5)
    assert failed == ["this one breaks", "endless"]
    with zipfile.ZipFile(tmp_path / "out.zip") as bundle:
        assert sorted(bundle.namelist()) == ["a.txt", "b.txt", "c.txt", "page.html", "summary.txt"]
        assert "ouch" in bundle.read("a.txt").decode()
        told = bundle.read("summary.txt").decode()
    assert "a.txt: this one breaks: FAILED with status 2" in told
    assert "b.txt: a verdict: done" in told


def test_nothing_personal_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(check_mac.platform, "node", lambda: "lovelace.local")
    monkeypatch.setattr(check_mac.Path, "home", lambda: Path("/Users/ada"))
    said = impersonal("/Users/ada/x by ada on lovelace.local (lovelace), adaptive Canada")
    assert said == "~/x by user on machine (machine), adaptive Canada"


@pytest.mark.parametrize("quick", [True, False])
def test_every_step_runs_something_that_is_there(tmp_path: Path, quick: bool) -> None:
    chosen = steps(tmp_path, quick=quick)
    assert len({step.file for step in chosen}) == len(chosen)
    for step in chosen:
        for word in step.command:
            if word.startswith("/") and word.endswith(".py"):
                assert Path(word).is_file(), word


def test_the_bench_that_is_sent_holds_no_text(tmp_path: Path) -> None:
    for step in steps(tmp_path, quick=False):
        assert "--trace-text" not in step.command
