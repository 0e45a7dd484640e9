"""The bundle a Mac owner sends: complete whatever fails, and nothing personal in it."""

from __future__ import annotations

import _thread
import sys
import threading
import zipfile
from pathlib import Path

import impersonal
import mac_work
import pytest
import run_step
from check_mac import DRAFTED, PLAIN, Report, Step, check, environment, steps
from hypothesis import given
from hypothesis import strategies as st
from mac_work import Pace, Work, choose, pace_of

PYTHON = [sys.executable, "-c"]
ENDLESS = [*PYTHON, "import time; print('so far', flush=True); time.sleep(600)"]

MAC = Pace(prompt=0.002, plain=0.005, drafted=0.005, start=4.0)
CPU_BUILD = Pace(prompt=0.09, plain=0.126, drafted=0.2, start=8.0)
WORKS = [mac_work.NULL_CONTROLS, mac_work.BENCHES, mac_work.SPEEDS]


def read(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as bundle:
        return {name: bundle.read(name).decode() for name in bundle.namelist()}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "page.html").write_text("<p>hello</p>")
    return folder


def test_a_step_that_fails_is_in_the_bundle_and_the_others_still_run(
    tmp_path: Path, traces: Path
) -> None:
    chosen = [
        Step("this one breaks", "a.txt", [*PYTHON, "print('ouch'); exit(2)"]),
        Step("a verdict", "b.txt", [*PYTHON, "print('no'); exit(3)"], (0, 1, 3)),
    ]
    report = check(tmp_path / "out.zip", chosen, traces, 60)
    found = read(tmp_path / "out.zip")
    assert report.failed == ["this one breaks"]
    assert sorted(found) == ["a.txt", "b.txt", "page.html", "summary.txt"]
    assert "ouch" in found["a.txt"]
    assert "a.txt: this one breaks: FAILED with status 2" in found["summary.txt"]
    assert "b.txt: a verdict: done" in found["summary.txt"]


def test_a_step_that_overruns_is_broken_off_and_the_bundle_holds_what_it_wrote(
    tmp_path: Path, traces: Path
) -> None:
    chosen = [
        Step("endless", "a.txt", ENDLESS),
        Step("the next", "b.txt", [*PYTHON, "print('here')"]),
    ]
    report = check(tmp_path / "out.zip", chosen, traces, 60, limit_s=8)
    found = read(tmp_path / "out.zip")
    assert report.failed == ["endless"]
    assert "so far" in found["a.txt"]
    assert "KeyboardInterrupt" in found["a.txt"]  # it was asked, not killed
    assert found["b.txt"] == "here\n"


def test_a_command_that_does_not_stop_when_asked_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_step, "GRACE_S", 1.0)
    deaf = "import signal, time; signal.signal(2, lambda *a: None); print(1, flush=True)\n"
    status, text = run_step.run_step([*PYTHON, deaf + "while True: time.sleep(60)"], 8)
    assert (status, text) == (run_step.TIMED_OUT, "1\n")


def test_ctrl_c_leaves_a_bundle_of_what_there_is(tmp_path: Path, traces: Path) -> None:
    begun = tmp_path / "begun"
    code = (
        f"import pathlib, time; pathlib.Path({str(begun)!r}).touch()\nprint('so far', flush=True)\n"
    )
    chosen = [
        Step("done before", "a.txt", [*PYTHON, "print('here')"]),
        Step("under way", "b.txt", [*PYTHON, code + "while True: time.sleep(0.01)"]),
        Step("never begun", "c.txt", ENDLESS),
    ]

    def press() -> None:
        while not begun.exists():
            threading.Event().wait(0.05)
        threading.Event().wait(0.5)
        _thread.interrupt_main()

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_step, "GRACE_S", 4.0)
        report = check(tmp_path / "out.zip", chosen, traces, 60)
    presser.join()
    found = read(tmp_path / "out.zip")
    assert report.interrupted
    assert sorted(found) == ["a.txt", "b.txt", "page.html", "summary.txt"]
    assert "so far" in found["b.txt"]
    assert "b.txt: under way: interrupted" in found["summary.txt"]
    assert "c.txt: never begun: not run" in found["summary.txt"]


def test_nothing_personal_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impersonal.getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(impersonal.platform, "node", lambda: "lovelace.local")
    monkeypatch.setattr(impersonal.Path, "home", lambda: Path("/Users/ada"))
    monkeypatch.setattr(impersonal.tempfile, "gettempdir", lambda: "/var/folders/h2/1815/T")
    monkeypatch.setenv("MTPX_CACHE_DIR", "/Volumes/Byron/mtpx")
    said = impersonal.impersonal(
        "/Users/ada/x by ada on lovelace.local (lovelace), adaptive Canada, "
        "/var/folders/h2/1815/T/tmp1, /Volumes/Byron/mtpx/weights"
    )
    assert said == "~/x by user on machine (machine), adaptive Canada, tmp/tmp1, cache/weights"


def test_the_steps_run_under_nobodys_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MTPX_DEPTH", "3")
    monkeypatch.setenv("MTPX_STATE_DIR", "/home/ada/state")
    monkeypatch.setenv("MTPX_CACHE_DIR", "/home/ada/cache")
    found = {k: v for k, v in environment(tmp_path).items() if k.startswith("MTPX_")}
    assert found == {
        "MTPX_CACHE_DIR": "/home/ada/cache",
        "MTPX_STATE_DIR": str(tmp_path / "state"),
        "MTPX_CONFIG_DIR": str(tmp_path / "config"),
    }


def test_a_folder_is_replaced_where_its_whole_name_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impersonal.tempfile, "gettempdir", lambda: "/scratch")
    said = impersonal.impersonal("/scratch/scratch1/a, /scratchpad, in /scratch.")
    assert said == "tmp/scratch1/a, /scratchpad, in tmp."


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


# -- how much is done ---------------------------------------------------------------------------------


def test_a_mac_does_all_of_every_step(tmp_path: Path) -> None:
    """In the time that is left of 25 minutes when the kit took ten of them."""
    sized = [step for step in steps(tmp_path, quick=False) if step.works]
    assert len(sized) == len(WORKS)
    for step in sized:
        assert choose(step.works, MAC, 900 * step.share) is step.works[0]


def test_mlxs_cpu_build_still_compares_drafting_with_plain_decode() -> None:
    work = choose(mac_work.BENCHES, CPU_BUILD, 700)
    assert work is not mac_work.BENCHES[0]
    assert work.seconds(CPU_BUILD) <= 700


@pytest.mark.parametrize("works", WORKS)
@given(
    prompt=st.floats(1e-4, 1.0),
    plain=st.floats(1e-4, 1.0),
    drafted=st.floats(1e-4, 1.0),
    room=st.floats(-100.0, 1e5),
)
def test_what_is_chosen_fits_unless_nothing_does(
    works: list[Work], prompt: float, plain: float, drafted: float, room: float
) -> None:
    pace = Pace(prompt, plain, drafted, 1.0)
    work = choose(works, pace, room)
    assert work.seconds(pace) <= room or work is works[-1]
    estimates = [each.seconds(pace) for each in works]
    assert estimates == sorted(estimates, reverse=True)
    before = works[: works.index(work)]
    assert all(each.seconds(pace) > room for each in before)


@pytest.mark.parametrize("works", WORKS)
def test_without_a_pace_the_least_is_done(works: list[Work]) -> None:
    assert choose(works, None, 1e9) is works[-1]


def test_the_pace_is_that_of_the_two_answers() -> None:
    plain = {"tok_s": 10.0, "prefill_ms": 4000.0, "prompt_tokens": 40, "tokens": 30}
    drafted = {"tok_s": 5.0, "prefill_ms": 2000.0, "prompt_tokens": 40, "tokens": 30}
    assert pace_of(plain, 12.0, drafted, 13.0) == Pace(0.05, 0.1, 0.2, 5.0)
    assert pace_of(plain | {"tok_s": None}, 12.0, drafted, 13.0) is None


def test_a_sized_step_is_given_the_work_that_fits_and_the_summary_says_so(
    tmp_path: Path, traces: Path
) -> None:
    said = '{"tok_s": 10.0, "prefill_ms": 1.0, "prompt_tokens": 1, "tokens": 1}'
    works = [
        Work("all of it", ["all"], lambda pace: 1e6),
        Work("a part", ["part"], lambda pace: 10 * pace.plain),
        Work("a crumb", ["crumb"], lambda pace: 0.0),
    ]
    echo = [*PYTHON, "import sys; print(sys.argv[1:])"]
    chosen = [
        Step("a plain answer", PLAIN, [*PYTHON, f"print({said!r})"]),
        Step("a drafted answer", DRAFTED, [*PYTHON, f"print({said!r})"]),
        Step("sized", "sized.txt", echo, works=works, share=1.0),
    ]
    check(tmp_path / "out.zip", chosen, traces, 60)
    found = read(tmp_path / "out.zip")
    assert found["sized.txt"] == "['part']\n"
    assert "sized.txt: sized (a part; all of it is all of it): done" in found["summary.txt"]
    assert "100.0 ms a token decoded plain" in found["summary.txt"]


def test_an_answer_that_failed_leaves_no_pace() -> None:
    assert Report(said={PLAIN: ("Error: no such pack", 1.0)}).pace() is None


def test_quick_and_whole_differ_in_amount_only(tmp_path: Path) -> None:
    quick, whole = (steps(tmp_path, quick=quick) for quick in (True, False))
    assert [step.file for step in quick] == [step.file for step in whole]
