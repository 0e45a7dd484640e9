"""`mtpx measure` and `mtpx plan` as a shell sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Command
from simulated_bench import Model, model_of

from mtpx.paths import state_dir
from mtpx.policy.planner_files import shelf
from mtpx.simulate import Regime
from mtpx_cli import main

REGIME = Regime(
    acceptance=(0.8, 0.6, 0.5), cost_ms={1: (10.0, 11.0, 13.0, 12.0)}, draft_ms=0.5, spread=0.5
)

GB10 = "gb10-qwen3.8-27b"


@pytest.fixture(autouse=True)
def _commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("measure", "plan"):
        monkeypatch.setitem(main.COMMANDS, name, (f"mtpx_cli.{name}", name, name))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Model:
    """The simulated model in place of what is loaded, on its own clock."""
    made = model_of(REGIME)

    def load(pack: str | None, *args: Any, **options: Any) -> Model:
        return made

    from functools import partial

    import mtpx.calibrate as calibrating
    import mtpx.measure as measuring

    monkeypatch.setattr("mtpx.api.load", load)
    monkeypatch.setattr("mtpx_cli.loading.load_model", load)
    clock = made.engine.clock
    monkeypatch.setattr(measuring, "measure_table", partial(measuring.measure_table, clock=clock))
    monkeypatch.setattr(calibrating, "check_plan", partial(calibrating.check_plan, clock=clock))
    return made


# -- plan ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "depth"), [(1, 3), (2, 2), (4, 1), (8, 1)])
def test_the_published_table_is_planned_by_name(mtpx: Command, width: int, depth: int) -> None:
    done = mtpx("plan", GB10, "--width", str(width), "--objective", "energy", "--slack", "0")
    assert (done.status, done.err) == (0, "")
    assert f"Depth {depth}: " in done.out
    assert "published measurement, Metrale, 2026-10-04" in done.out


def test_a_table_in_its_publishers_form_is_planned(mtpx: Command, tmp_path: Path) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(
        'model = "M"\ndevice = "D"\n'
        "cells = [[1, 0, 10.0, 4.0, 0.0, 0.0], [1, 1, 11.0, 5.0, 0.1, 0.1]]\n"
        "windows = [[60, 40]]\n"
    )
    done = mtpx("plan", str(path), "--json", "--objective", "energy")
    assert json.loads(done.out)["depth"] == 1


def test_the_two_zeros_read_differently(mtpx: Command, tmp_path: Path) -> None:
    by_cap = mtpx("plan", GB10, "--width", "9", "--max-width", "8")
    assert "Depth 0 by the cap" in by_cap.out
    path = tmp_path / "theirs.toml"
    path.write_text(
        'model = "M"\ndevice = "D"\n'
        "cells = [[1, 0, 10.0, 4.0, 0.0, 0.0], [1, 1, 30.0, 12.0, 0.1, 0.1]]\n"
        "windows = [[60, 40]]\n"
    )
    by_cost = mtpx("plan", str(path))
    assert "Depth 0 by cost: no draft pays." in by_cost.out


def test_confidences_decide_who_verifies_how_many(mtpx: Command) -> None:
    done = mtpx(
        "plan", GB10, "--json", "--objective", "energy", "--slack", "0",
        "--confidences", "-0.01,-0.02,-0.1", "--confidences", "x1", "--confidences", "-3",
    )  # fmt: skip
    found = json.loads(done.out)
    assert found["width"] == 3
    assert [d <= most for d, most in zip(found["rows"]["depths"], [3, 1, 1], strict=True)] == [
        True
    ] * 3
    assert found["rows"]["depths"][0] > 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--slack", "1"], "slack is a fraction from 0 up to but not 1"),
        (["--slack", "nan"], "slack is a fraction"),
        (["--check"], "a published table cannot be checked here"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    mtpx: Command, arguments: list[str], sentence: str
) -> None:
    assert sentence in mtpx("plan", GB10, *arguments).complaint


def test_a_table_that_is_not_there_is_one_sentence(mtpx: Command) -> None:
    assert "cannot read nowhere.toml" in mtpx("plan", "nowhere.toml").complaint


def test_with_nothing_measured_the_command_that_measures_is_named(mtpx: Command) -> None:
    said = mtpx("plan").complaint
    assert "mtpx measure --calibrate" in said
    assert GB10 in said


@pytest.mark.parametrize("given", ["0.1", "-0.1,,", "x", "nan", "-inf", "two"])
def test_what_is_no_confidence_is_refused(mtpx: Command, given: str) -> None:
    done = mtpx("plan", GB10, f"--confidences={given}")
    assert done.status == 2
    assert "neither log-probabilities" in done.err


def test_a_width_that_contradicts_the_confidences_is_refused(mtpx: Command) -> None:
    done = mtpx("plan", GB10, "--width", "3", "--confidences", "-0.1")
    assert done.status == 2
    assert "given 1 times" in done.err


# -- measure ---------------------------------------------------------------------------------------


def test_measuring_leaves_what_planning_finds(mtpx: Command, loaded: Model) -> None:
    done = mtpx("measure", "--calibrate", "--context", "512,4096", "-q")
    assert (done.status, done.err) == (0, "")
    assert "a simulated machine uses no energy" in done.out
    assert "fastest" in done.out
    assert "How often a draft stands" in done.out
    found = shelf()
    assert sorted(table.key.context for _, table in found.tables) == [512, 4096]
    assert len(found.calibrations) == 1
    assert str(state_dir()) in done.out
    planned = json.loads(mtpx("plan", "--json").out)
    assert planned["depth"] == REGIME.best_depth()


def test_without_a_calibration_the_speed_is_a_dash_with_its_reason(
    mtpx: Command, loaded: Model
) -> None:
    done = mtpx("measure", "--context", "512", "-q")
    assert "no calibration of this head yet" in done.out
    assert "fastest" not in done.out


def test_measured_json_holds_every_cell(mtpx: Command, loaded: Model) -> None:
    found = json.loads(mtpx("measure", "--context", "512", "--depths", "0..2", "--json", "-q").out)
    (table,) = found["tables"]
    assert [cell["k"] for cell in table["cells"]] == [0, 1, 2]
    assert table["about"]["joules"] == "absent: a simulated machine uses no energy"
    assert all(Path(path).is_file() for path in found["files"])


def test_a_plan_is_checked_against_what_is_then_measured(mtpx: Command, loaded: Model) -> None:
    mtpx("measure", "--calibrate", "--context", "512", "-q")
    done = mtpx("plan", "--check", "-q")
    assert done.status == 0, done
    assert "the plan holds" in done.out


def test_a_plan_that_misses_leaves_with_status_one(
    mtpx: Command, loaded: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    mtpx("measure", "--calibrate", "--context", "512", "-q")
    path, table = shelf().tables[0]
    path.write_text(table.render().replace("verify_ms = 1", "verify_ms = 2"))
    done = mtpx("plan", "--check", "-q")
    assert done.status == 1
    assert "does not hold: a round takes -" in " ".join(done.out.split())


def test_a_table_of_another_machine_is_not_checked(mtpx: Command, loaded: Model) -> None:
    mtpx("measure", "--calibrate", "--context", "512", "-q")
    path, table = shelf().tables[0]
    path.write_text(table.render().replace('device = "virtual"', 'device = "elsewhere"'))
    assert "device 'elsewhere', not 'virtual'" in mtpx("plan", "--check", "-q").complaint


def test_an_objective_without_joules_is_refused(mtpx: Command, loaded: Model) -> None:
    mtpx("measure", "--calibrate", "--context", "512", "-q")
    said = mtpx("plan", "--objective", "balanced").complaint
    assert "objective balanced needs joules" in said
    assert "use objective speed" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--depths", "0..9"], "asked for depth 9"),
        (["--depths", "0"], "needs depth 1 at least"),
        (["--context", "30"], "leaves no room"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    mtpx: Command, loaded: Model, arguments: list[str], sentence: str
) -> None:
    assert sentence in mtpx("measure", *arguments, "-q").complaint


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--context", "100,200"], "fall into one bucket"),
        (["--depths", "1..3"], "not a range of depths from 0"),
        (["--widths", "0"], "not a number of 1 or more"),
        (["--context", ""], "not a number of 1 or more"),
    ],
)
def test_what_was_asked_wrongly_is_refused(
    mtpx: Command, arguments: list[str], sentence: str
) -> None:
    done = mtpx("measure", *arguments)
    assert done.status == 2
    assert sentence in " ".join(done.err.split())


def test_progress_goes_to_standard_error_in_tenths(mtpx: Command, loaded: Model) -> None:
    done = mtpx("measure", "--context", "512")
    lines = done.err.splitlines()
    assert 2 <= len(lines) <= 12
    assert "of 20, about " in lines[-1]


def test_a_busy_machine_is_told_beside_its_table(mtpx: Command, loaded: Model) -> None:
    noisy = Regime(acceptance=REGIME.acceptance, cost_ms=REGIME.cost_ms, noise=0.4)
    loaded.engine.machine.regime = noisy
    assert "the machine was busy" in mtpx("measure", "--context", "512", "-q").out


def test_a_quiet_machine_is_not_called_busy(mtpx: Command, loaded: Model) -> None:
    assert "busy" not in mtpx("measure", "--context", "512", "-q").out
