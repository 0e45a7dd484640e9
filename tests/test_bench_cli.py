"""`mtpx bench` from the outside, on the simulated machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from simulated_bench import COSTS, NOISY, PAYS, Model, model_of

import mtpx_cli.bench_run
from mtpx.bench.intervals import Effect
from mtpx.bench.verdict import Verdict
from mtpx.errors import (
    BenchError,
    MtpxError,
    NonFiniteLogits,
    PolicyError,
    SamplingError,
    TraceError,
)
from mtpx.simulate import Regime, SimulatedEngine
from mtpx_cli.bench_view import time_left
from mtpx_cli.main import cli
from mtpx_cli.verdicts import draw_verdict

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `mtpx bench ARGS` on a regime, its clock in place of the machine's."""
    monkeypatch.setenv("MTPX_STATE_DIR", str(tmp_path / "state"))

    def invoke(
        *args: str, regime: Regime = PAYS, prepare: Callable[[Model], None] | None = None
    ) -> Result:
        model = model_of(regime)
        if prepare:
            prepare(model)

        @contextmanager
        def loaded(pack: str | None, engine: Any, **options: Any) -> Iterator[Model]:
            with monkeypatch.context() as patched:
                patched.setattr(time, "perf_counter_ns", model.engine.clock)
                yield model

        monkeypatch.setattr(mtpx_cli.bench_run, "load_model", loaded)
        return CliRunner().invoke(cli, ["bench", *args])

    return invoke


def failing_at(step: int, error: BaseException) -> Callable[[Model], None]:
    """Makes the plain step with this number fail."""

    def prepare(model: Model) -> None:
        real, steps = model.engine.plain, iter(range(10**9))

        def plain(slots: Any) -> Any:
            if next(steps) == step:
                raise error
            return real(slots)

        model.engine.plain = plain  # type: ignore[method-assign]

    return prepare


def traces(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state" / "traces").glob("*.jsonl"))


def test_bare_with_a_baseline_it_says_first_that_mtp_pays(run: Run) -> None:
    result = run("--plain-baseline")
    assert result.exit_code == 0
    assert result.stdout.startswith("MTP pays (auto): 1.")


def test_bare_without_a_baseline_it_says_that_there_is_no_verdict_and_why(run: Run) -> None:
    result = run()
    assert result.exit_code == 0
    assert result.stdout.startswith("No verdict on whether MTP pays: matched plain runs required")
    assert "| auto" in result.stdout


def test_suites_are_judged_each_by_itself(run: Run) -> None:
    lines = run("--plain-baseline").stdout.splitlines()
    for name in ("chat", "code"):
        assert any(line.split()[:2] == [name, "pays"] for line in lines)


def test_the_result_ends_with_where_the_trace_is(run: Run, tmp_path: Path) -> None:
    result = run("--plain-baseline", "--prompts", "6")
    (trace,) = traces(tmp_path)
    assert f"Trace: {trace}\n" in result.stdout


def test_a_named_trace_goes_where_it_was_named(run: Run, tmp_path: Path) -> None:
    run("--plain-baseline", "--prompts", "6", "--trace", str(tmp_path / "mine.jsonl"))
    assert (tmp_path / "mine.jsonl").stat().st_size > 0
    assert traces(tmp_path) == []


def test_the_trace_report_gives_the_same_verdict(run: Run, tmp_path: Path) -> None:
    made = json.loads(run("--plain-baseline", "--json").stdout)
    read = CliRunner().invoke(cli, ["trace", "report", made["trace"], "--json"])
    assert json.loads(read.stdout)["files"][0]["runs"][0]["verdicts"] == made["verdicts"]


def test_json_holds_verdict_ratio_interval_and_suites(run: Run) -> None:
    found = json.loads(run("--plain-baseline", "--json").stdout)
    verdict = found["verdicts"][0]
    assert verdict["verdict"] == "pays"
    assert verdict["low"] < verdict["ratio"] < verdict["high"]
    assert {part["name"] for part in verdict["per_suite"]} == {"chat", "code"}
    assert (verdict["prompts"], verdict["blocks"]) == (12, 12)


@pytest.mark.parametrize(
    ("check", "regime", "status"),
    [
        ("pays", PAYS, 0),
        ("pays", COSTS, 1),
        ("does not pay", COSTS, 0),
        ("does not pay", PAYS, 1),
    ],
)
def test_check_makes_the_exit_status_follow_the_verdict(
    run: Run, check: str, regime: Regime, status: int
) -> None:
    assert run("--plain-baseline", "--check", check, regime=regime).exit_code == status


def test_check_exits_with_three_where_there_is_no_verdict(run: Run) -> None:
    assert run("--plain-baseline", "--prompts", "5", "--check", "pays").exit_code == 3


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--check", "pays"], "add --plain-baseline"),
        (["--check", "pays", "--plain-baseline", "--depths", "1,3"], "exactly one depth"),
        (["--check", "pays", "--null-control"], "exactly one depth"),
        (["--depths", "1,,2"], "'1,,2' is not a depth"),
        (["--check", "maybe"], "'maybe' is not one of"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(
    run: Run, args: list[str], sentence: str
) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("args", "error", "sentence"),
    [
        (["--depth", "0"], BenchError, "depth 0 is plain decode"),
        (["--depth", "9"], BenchError, "asked for depth 9"),
        (["--depths", "one"], PolicyError, "there is no policy 'one'"),
        (["--looks", "6"], BenchError, "--looks must be 1 to 5"),
        (["--looks", "2", "--depths", "1,2"], BenchError, "--looks is for one comparison"),
        (["--html", "/none/x.html"], TraceError, "the page cannot be written"),
        (["--depths", "1,1"], BenchError, "'depth 1' is given twice"),
        (["--suite", "poems"], BenchError, "there is no suite 'poems'"),
        (["--prompt-file", "/none.txt"], BenchError, "/none.txt cannot be read"),
        (["--prompts", "0"], BenchError, "--prompts must be 1 to 32"),
        (["--repeats", "0"], BenchError, "--repeats must be 1 or more"),
        (["--seed", "-1"], BenchError, "--seed must be from 0 to"),
        (["--seed", str(2**60)], BenchError, "--seed must be from 0 to"),
        (
            ["--depths", "measured"],
            PolicyError,
            "`mtpx measure simulated:simulated --calibrate` makes one",
        ),
        (["--objective", "energy"], PolicyError, "an option of the policy 'measured'"),
        (["--no-cost-feedback"], PolicyError, "no configured costs"),
        (["--max-tokens", "1"], BenchError, "--max-tokens must be 16 or more"),
        (["--margin", "nan"], BenchError, "the margin must be a number"),
        (["--temperature", "-1"], SamplingError, "temperature must be"),
    ],
)
def test_what_cannot_be_benched_is_refused_in_a_sentence_and_leaves_no_trace(
    run: Run, tmp_path: Path, args: list[str], error: type[MtpxError], sentence: str
) -> None:
    result = run("--plain-baseline", *args)
    assert isinstance(result.exception, error)
    assert sentence in str(result.exception)
    assert traces(tmp_path) == []


def test_two_depths_get_a_verdict_each(run: Run) -> None:
    found = json.loads(run("--plain-baseline", "--depths", "1,3", "--json").stdout)
    assert {v["arm"] for v in found["verdicts"]} == {"depth 1", "depth 3"}


def test_a_choice_among_depths_is_not_taken_for_a_verdict(run: Run) -> None:
    assert "partly luck" in run("--plain-baseline", "--depths", "1,3").stdout
    assert "partly luck" not in run("--plain-baseline").stdout


def test_the_null_control_alone_times_plain_against_plain(run: Run) -> None:
    result = run("--null-control")
    assert result.stdout.startswith("Null control: ")
    assert "quiet enough" in result.stdout


@pytest.mark.parametrize(
    ("options", "blocks"),
    [((), 36), (("--repeats", "2"), 24), (("--depths", "1"), 24), (("--prompts", "6"), 18)],
)
def test_the_null_control_alone_runs_three_blocks_a_prompt(
    run: Run, options: tuple[str, ...], blocks: int
) -> None:
    found = json.loads(run("--null-control", "--json", *options).stdout)
    assert len(found["design"]["blocks"]) == blocks


def test_the_null_control_of_a_noisy_machine_says_so(run: Run) -> None:
    found = json.loads(run("--null-control", "--json", regime=NOISY).stdout)
    assert not found["verdicts"][0]["null_control"]["quiet"]


def test_ones_own_prompts_are_a_suite_by_the_files_name(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "letters.txt"
    path.write_text("\n".join(f"Write letter number {i}." for i in range(7)))
    found = json.loads(run("--plain-baseline", "--prompt-file", str(path), "--json").stdout)
    assert [(p["name"], p["prompts"]) for p in found["verdicts"][0]["per_suite"]] == [
        ("letters", 7)
    ]


def test_ctrl_c_reports_what_there_is_and_exits_as_the_shell_expects(run: Run) -> None:
    result = run("--plain-baseline", prepare=failing_at(1500, KeyboardInterrupt()))
    assert "No verdict on auto: the bench was interrupted" in result.stdout
    assert "Measured so far: 1." in result.stdout
    assert result.exit_code != 0


def test_ctrl_c_never_satisfies_a_check(run: Run) -> None:
    result = run(
        "--plain-baseline", "--check", "pays", prepare=failing_at(1500, KeyboardInterrupt())
    )
    assert result.exit_code == 3


def test_an_error_of_the_engine_is_the_sentence_it_exits_with(run: Run) -> None:
    result = run("--plain-baseline", prepare=failing_at(1500, NonFiniteLogits("logits are NaN")))
    assert isinstance(result.exception, BenchError)
    assert str(result.exception) == "the bench was stopped by an error: logits are NaN"


def test_progress_goes_to_standard_error_with_the_time_left(run: Run) -> None:
    result = run("--plain-baseline")
    assert "of 48 runs, about " in result.stderr
    assert "runs, about" not in result.stdout


def test_quiet_says_nothing_on_standard_error(run: Run) -> None:
    assert run("--plain-baseline", "--quiet").stderr == ""


def test_sampling_options_reach_the_runs(run: Run) -> None:
    found = json.loads(run("--plain-baseline", "--temperature", "0.8", "--json").stdout)
    with Path(found["trace"]).open() as file:
        requests = [json.loads(line) for line in file if '"type":"request"' in line]
    assert {r["sampling"]["temperature"] for r in requests} == {0.8}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "about 1 s left"), (89, "about 89 s left"), (150, "about 2 min left")],
)
def test_the_time_left_is_no_finer_than_the_guess(seconds: float, words: str) -> None:
    assert time_left(seconds) == words


def test_depths_and_auto_make_one_table_to_paste(run: Run) -> None:
    lines = run("--depths", "0,1,2,auto", "--prompts", "6").stdout.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in table[:1] + table[2:]] == [
        "arm",
        "plain",
        "auto",
        "depth 1",
        "depth 2",
    ]
    assert len({len(line) for line in table}) == 1
    assert max(len(line) for line in lines if not line.startswith("Trace")) <= 80
    for line in table[3:]:
        assert line.split("|")[7].strip() == "pays"


def test_depth_0_among_others_is_the_plain_baseline(run: Run) -> None:
    found = json.loads(run("--depths", "0,1", "--prompts", "6", "--json").stdout)
    assert [v["arm"] for v in found["verdicts"]] == ["depth 1"]
    assert found["verdicts"][0]["verdict"] == "pays"


def test_the_adaptive_policy_can_be_checked(run: Run) -> None:
    args = ("--plain-baseline", "--depths", "auto", "--check", "pays")
    assert run(*args).exit_code == 0
    assert run(*args, regime=COSTS).exit_code == 1


def test_the_pasteable_table_says_what_ran(run: Run) -> None:
    out = run("--plain-baseline", "--prompts", "6").stdout
    assert "simulated (float64), virtual (simulated), mtpx" in out
    assert "6 prompts × 64 tokens, temperature 0, float64, standard tier" in out


def test_a_bench_that_is_sure_early_stops_early(run: Run) -> None:
    found = json.loads(run("--plain-baseline", "--looks", "2", "--prompts", "24", "--json").stdout)
    verdict = found["verdicts"][0]
    assert verdict["verdict"] == "pays"
    assert verdict["reason"].endswith("at look 1 of 2")
    assert verdict["prompts"] == 12
    read = CliRunner().invoke(cli, ["trace", "report", found["trace"], "--json"])
    assert json.loads(read.stdout)["files"][0]["runs"][0]["verdicts"] == found["verdicts"]


def test_the_page_of_a_bench_is_that_of_its_trace(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "b.html"
    result = run("--plain-baseline", "--prompts", "6", "--html", str(page))
    assert f"Page: {page}" in result.stdout
    assert "<h1>MTP pays <small>auto</small></h1>" in page.read_text(encoding="utf-8")


def test_plain_speed_is_told_in_weights_read_a_second(run: Run) -> None:
    def weigh(model: Model) -> None:
        info = replace(model.engine.info, plain_step_bytes=10**9)
        type(model.engine).info = property(lambda self: info)  # type: ignore[assignment,misc]

    original = SimulatedEngine.info
    try:
        result = run("--plain-baseline", "--prompts", "6", prepare=weigh)
    finally:
        SimulatedEngine.info = original  # type: ignore[method-assign]
    # 10 ms a plain step of 1 GB.
    assert "Plain decode reads 100 GB/s of weights" in result.stdout


def test_what_can_be_refused_is_refused_before_a_model_is_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*args: Any, **options: Any) -> Any:
        raise AssertionError("a model was loaded")

    run()
    monkeypatch.setattr(mtpx_cli.bench_run, "load_model", loaded)
    for args in (["--max-tokens", "8"], ["--seed", "-1"], ["--depths", "nonsense"]):
        found = CliRunner().invoke(cli, ["bench", "--plain-baseline", *args])
        assert isinstance(found.exception, MtpxError)


def test_too_few_prompts_for_a_verdict_are_said_before_they_are_timed(run: Run) -> None:
    assert run("--plain-baseline", "--prompts", "3").stderr.startswith("3 prompts: 6 are the least")
    assert "the least" not in run("--plain-baseline", "--prompts", "6").stderr
    assert run("--plain-baseline", "--prompts", "3", "--quiet").stderr == ""


@pytest.mark.parametrize(("regime", "status"), [(PAYS, 0), (NOISY, 3)])
def test_the_null_control_alone_answers_with_its_exit_status(
    run: Run, regime: Regime, status: int
) -> None:
    assert run("--null-control", regime=regime).exit_code == status


def test_a_policy_is_compared_with_the_best_fixed_depth_of_every_suite_and_of_all(run: Run) -> None:
    result = run("--depths", "0,1,2,auto", "--json")
    found = [c for c in json.loads(result.stdout)["comparisons"] if c.get("best")]
    assert [(c["arm"], c["suite"]) for c in found] == [
        ("auto", "chat"),
        ("auto", "code"),
        ("auto", ""),
    ]
    assert all(c["other"] == "depth 2" and c["low"] < c["ratio"] < c["high"] for c in found)


def test_a_policys_cuts_are_compared_with_the_same_policy_without(run: Run) -> None:
    result = run("--depths", "0,auto,auto-nocuts", "--prompts", "6")
    line = next(
        line for line in result.stdout.splitlines() if line.strip().startswith("auto  auto-nocuts")
    )
    assert line.split()[2] == "chat"
    assert line.split()[-1] == "3"


def test_policy_names_what_auto_is(run: Run) -> None:
    found = json.loads(run("--plain-baseline", "--policy", "ollama", "--json").stdout)
    assert [v["arm"] for v in found["verdicts"]] == ["ollama"]
    found = json.loads(run("--policy", "ollama", "--depths", "0,1,auto", "--json").stdout)
    assert {v["arm"] for v in found["verdicts"]} == {"depth 1", "ollama"}


def test_a_machine_that_became_slower_meanwhile_is_told_before_the_verdict() -> None:
    verdict = Verdict(
        "auto", "pays", "the whole interval is above 1.02", 0.02, ratio=1.2, low=1.1, high=1.3,
        prompts=12, blocks=12, drift=Effect(-0.14, 0.001, True),
    )  # fmt: skip
    first, second, *_ = [str(part) for part in draw_verdict(verdict)]
    assert first.startswith("Caution: plain decode became 14% slower while this was measured.")
    assert second.startswith("MTP pays (auto)")
    steady = msgspec.structs.replace(verdict, drift=Effect(-0.04, 0.001, True))
    assert str(next(iter(draw_verdict(steady)))).startswith("MTP pays (auto)")


def test_an_inconclusive_verdict_is_called_so_everywhere() -> None:
    verdict = Verdict(
        "auto", "inconclusive", "the interval holds 1.02", 0.02, ratio=1.0, prompts=12
    )
    assert "is inconclusive (auto)" in str(next(iter(draw_verdict(verdict))))
