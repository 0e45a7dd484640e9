"""`mtpx bench --precision` from the outside: what MTP has to beat, said and shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from simulated_bench import COSTS, PAYS, Model, model_in

import mtpx_cli.bench_run
from mtpx.bench import models
from mtpx.errors import BackendError
from mtpx.memory import HostMemory
from mtpx.simulate import Regime, VirtualClock
from mtpx_cli.main import cli

SLOW = Regime(acceptance=(0.8, 0.6, 0.5), cost_ms={1: (20.0, 22.0, 24.0, 26.0)}, noise=0.01)
"""int8's: twice as slow as int4's `PAYS`, which its head does not make up for."""

NEAR = Regime(acceptance=(0.8, 0.6, 0.5), cost_ms={1: (12.0, 13.0, 14.0, 15.0)}, noise=0.01)
"""An int8 whose head beats int4's plain decode."""

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `mtpx bench ARGS`; int4 costs `PAYS` and is what "auto" takes, int8 costs `own`. `fails`: a
    plain step of either at which this is raised; `refused`: what loading "auto" says; `eager`: what could
    be compiled and is not."""
    monkeypatch.setenv("MTPX_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(models, "host_memory", lambda: HostMemory(None, None))

    def invoke(
        *args: str,
        own: Regime = SLOW,
        good: tuple[str, ...] = ("int8", "int4"),
        refused: str = "",
        fails: tuple[int, BaseException] | None = None,
        eager: str = "",
    ) -> Result:
        clock = VirtualClock()
        steps = iter(range(10**9))

        @contextmanager
        def load(pack: str | None, engine: Any, **options: Any) -> Iterator[Model]:
            if engine.precision == "auto" and refused:
                raise BackendError(refused)
            name = "int4" if engine.precision == "auto" else engine.precision
            model = model_in(name, PAYS if name == "int4" else own, clock)
            if name == eager:
                model.engine.details = {"compile": "not made"}
            real = model.engine.plain

            def plain(slots: Any) -> Any:
                if fails is not None and next(steps) == fails[0]:
                    raise fails[1]
                return real(slots)

            model.engine.plain = plain  # type: ignore[method-assign]
            yield model

        with monkeypatch.context() as patched:
            patched.setattr(mtpx_cli.bench_run, "load_model", load)
            patched.setattr(mtpx_cli.bench_run, "_declared", lambda pack: list(good))
            patched.setattr(time, "perf_counter_ns", clock)
            return CliRunner().invoke(cli, ["bench", *args])

    return invoke


INT8 = ("--plain-baseline", "--precision", "int8")


def report(*args: str) -> str:
    found = CliRunner().invoke(cli, ["trace", "report", *args])
    assert found.exit_code == 0
    return " ".join(found.stdout.split())


def test_the_headline_is_the_verdict_against_the_fastest_where_only_the_other_pays(
    run: Run,
) -> None:
    out = " ".join(run(*INT8).stdout.split())
    assert out.startswith("MTP does not pay (auto): 0.")
    assert "× the rate of plain decode in int4, the fastest precision here (95 % interval" in out
    assert "Against plain decode in its own precision: 1." in out
    assert "12 prompts): pays." in out


def test_the_headline_is_the_verdict_in_its_own_precision_where_both_agree(run: Run) -> None:
    out = " ".join(run(*INT8, own=NEAR).stdout.split())
    assert out.startswith("MTP pays (auto): 1.")
    assert "Against plain decode in int4, the fastest precision here: 1." in out
    assert out.index("× the plain rate") < out.index("Against plain decode in int4")


def test_a_head_that_does_not_pay_at_all_is_said_not_to_pay_once(run: Run) -> None:
    out = " ".join(run(*INT8, own=COSTS).stdout.split())
    assert out.startswith("MTP does not pay (auto): ")
    assert out.count("MTP does not pay") == 1


def test_suites_are_told_against_either(run: Run) -> None:
    lines = [line.split() for line in run(*INT8, "--prompts", "24").stdout.splitlines()]
    for suite in ("chat", "code"):
        assert [suite, "pays"] in [line[:2] for line in lines]
        assert [suite, "/", "int4", "does", "not", "pay"] in [line[:6] for line in lines]


def test_the_table_to_paste_has_a_row_for_each(run: Run) -> None:
    lines = run(*INT8).stdout.splitlines()
    table = [line for line in lines if line.startswith("|")]
    cells = {row.split("|")[1].strip(): row.split("|")[7].strip() for row in table[2:]}
    assert cells == {
        "plain": "–",
        "plain in int4": "–",
        "auto": "pays",
        "auto vs int4": "does not pay",
    }
    assert len({len(line) for line in table}) == 1
    assert any("temperature 0, int8, standard tier" in line for line in lines)
    assert "beside plain decode in int4, the fastest precision here" in lines


def test_json_has_both_verdicts_and_what_was_compared_with(run: Run) -> None:
    found = json.loads(run(*INT8, "--json").stdout)
    assert [v["verdict"] for v in found["verdicts"]] == ["pays"]
    (other,) = found["against_fastest"]
    assert (other["verdict"], other["against"]) == ("does not pay", "plain in int4")
    assert other["low"] < other["ratio"] < other["high"]
    assert found["design"]["fastest"]["precision"] == "int4"


def test_the_report_of_the_trace_says_the_same(run: Run) -> None:
    made = json.loads(run(*INT8, "--json").stdout)
    (read,) = json.loads(
        CliRunner().invoke(cli, ["trace", "report", made["trace"], "--json"]).stdout
    )["files"][0]["runs"]
    assert read["against_fastest"] == made["against_fastest"]
    out = report(made["trace"])
    assert out.startswith("MTP does not pay (auto): 0.")
    assert "Against plain decode in its own precision: 1." in out


def test_the_page_of_the_trace_says_the_same(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "b.html"
    run(*INT8, "--html", str(page))
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert "<h1>MTP does not pay <small>auto</small></h1>" in text
    assert "× the rate of plain decode in int4, the fastest precision here</p>" in text
    assert "<b>Against plain decode in its own precision: pays.</b>" in text
    assert "chat / fastest" in text


def test_the_page_leads_with_its_own_precision_where_both_pay(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "b.html"
    run(*INT8, "--html", str(page), own=NEAR)
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert "<h1>MTP pays <small>auto</small></h1>" in text
    assert "<b>Against plain decode in int4, the fastest precision here: pays.</b>" in text


@pytest.mark.parametrize(
    ("check", "own", "against", "status"),
    [
        ("pays", SLOW, "fastest", 1),
        ("does not pay", SLOW, "fastest", 0),
        ("pays", SLOW, "same", 0),
        ("pays", NEAR, "fastest", 0),
        ("does not pay", COSTS, "fastest", 0),
    ],
)
def test_check_asks_for_all_that_mtp_is_held_against(
    run: Run, check: str, own: Regime, against: str, status: int
) -> None:
    result = run(*INT8, "--check", check, "--against", against, own=own)
    assert result.exit_code == status


def test_against_same_times_nothing_more_and_says_so(run: Run) -> None:
    result = run(*INT8, "--against", "same")
    assert "of 48 runs" in result.stderr
    assert "Plain decode in other precisions was not timed (--against same)." in result.stdout


def test_what_the_fastest_costs_is_said_before_it_is_timed(run: Run) -> None:
    result = run(*INT8)
    said = "half as long again, with two copies of the model in memory"
    assert said in " ".join(result.stderr.split())
    assert "of 72 runs" in result.stderr
    assert run(*INT8, "--quiet").stderr == ""


def test_whichever_of_the_two_is_slower_than_it_need_be_is_named(run: Run) -> None:
    result = run(*INT8, eager="int4")
    assert result.stderr.count("compiles the step once") == 1
    assert "mtpx warm --precision int4 --tier standard" in " ".join(result.stderr.split())
    assert "mtpx warm" not in run(*INT8, "--quiet", eager="int4").stderr


@pytest.mark.parametrize("precision", ["auto", "int4"])
def test_the_fastest_precision_itself_is_said_to_be_it(run: Run, precision: str) -> None:
    result = run("--plain-baseline", "--precision", precision)
    assert "Plain decode is in int4, the fastest precision here" in result.stdout
    assert "of 48 runs" in result.stderr
    read = json.loads(run("--plain-baseline", "--precision", precision, "--json").stdout)
    assert "Plain decode is in int4, the fastest precision here" in report(read["trace"])
    assert "against_fastest" not in read


def test_a_pack_that_declares_no_precision_good_is_said_to(run: Run) -> None:
    result = run(*INT8, good=())
    assert "does not say which precisions it is good in" in " ".join(result.stdout.split())


def test_a_fastest_that_cannot_be_loaded_is_complained_of_before_and_told_after(run: Run) -> None:
    result = run(*INT8, refused="it does not fit into the memory")
    for out in (result.stderr, result.stdout):
        said = " ".join(out.split()).lower()
        assert "fastest precision was not timed beside it: it does not fit into the memory" in said
    assert result.stdout.startswith("MTP pays (auto): 1.")


def test_ctrl_c_among_three_reports_what_there_is(run: Run) -> None:
    result = run(*INT8, fails=(2500, KeyboardInterrupt()))
    out = " ".join(result.stdout.split())
    assert "No verdict on auto: the bench was interrupted" in out
    assert "Its own: measured so far: 1." in out
    assert "Against plain decode in int4, the fastest precision here: 0." in out
    assert run(*INT8, "--check", "pays", fails=(2500, KeyboardInterrupt())).exit_code == 3


def test_repeats_repeat_the_blocks_of_three(run: Run) -> None:
    found = json.loads(run(*INT8, "--repeats", "2", "--prompts", "6", "--json").stdout)
    assert found["against_fastest"][0]["blocks"] == 12
    assert {len(block["order"]) for block in found["design"]["blocks"]} == {6}


def test_a_null_control_beside_a_depth_holds_the_depth_against_the_fastest(run: Run) -> None:
    found = json.loads(
        run("--null-control", "--depths", "1", "--precision", "int8", "--json").stdout
    )
    assert [v["arm"] for v in found["against_fastest"]] == ["depth 1"]


def test_a_null_control_alone_is_of_its_own_precision(run: Run) -> None:
    found = json.loads(run("--null-control", "--precision", "int8", "--json").stdout)
    assert "against_fastest" not in found
    assert found["design"]["no_fastest"] == ""


@pytest.mark.parametrize(
    "args", [["--against", "same"], ["--null-control", "--against", "fastest"]]
)
def test_against_is_refused_where_nothing_is_held_against_anything(
    run: Run, args: list[str]
) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert "--against says what MTP has to beat" in result.stderr


@pytest.mark.parametrize("other", [["--turns", "2"], ["--rows", "1..2"]])
def test_the_other_benches_know_no_against(run: Run, other: list[str]) -> None:
    result = run(*other, "--against", "same")
    assert result.exit_code == 2
    assert "without --against" in result.stderr
