"""Joules of answers, rounds and bench arms, from a meter that counts on a clock of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mtpx
from mtpx.energy import Meter, NoMeter, Window
from mtpx.trace.reader import read
from mtpx.trace.schema import EndRecord, Round, RunRecord
from mtpx_cli.main import cli

WATTS = 40.0


class Steady:
    """A sensor that tells the same power for ever."""

    rail = "test rail"
    modulus_j: float | None = None

    def counter_j(self) -> float | None:
        return None

    def watts(self) -> float | None:
        return WATTS


class Counting(Steady):
    """A sensor that only counts: so many joules a second of the clock."""

    def counter_j(self) -> float | None:
        return WATTS * time.monotonic()

    def watts(self) -> float | None:
        return None


class Broken(Steady):
    def watts(self) -> float | None:
        raise OSError("no longer there")


@pytest.fixture
def model(own_folders: Path, tiny_pack: Path) -> Iterator[mtpx.Model]:
    with mtpx.load(tiny_pack, threads=1) as loaded:
        loaded.meter = Meter(Steady())
        yield loaded


def answered(model: mtpx.Model, path: Path) -> tuple[mtpx.Generation, list[Any]]:
    found = model.generate("one two", max_tokens=30, ignore_eos=True, temperature=0.0, trace=path)
    return found, list(read(path))


def test_a_round_took_the_meters_power_for_its_own_time(model: mtpx.Model, tmp_path: Path) -> None:
    _, records = answered(model, tmp_path / "t.jsonl")
    rounds = [r for r in records if isinstance(r, Round)]
    assert rounds
    for round in rounds:
        assert round.energy_j == pytest.approx(WATTS * round.round_ms / 1e3)


def test_an_answers_joules_are_those_of_its_rounds(model: mtpx.Model, tmp_path: Path) -> None:
    found, records = answered(model, tmp_path / "t.jsonl")
    (end,) = [r for r in records if isinstance(r, EndRecord)]
    rounds = sum(r.energy_j or 0.0 for r in records if isinstance(r, Round))
    assert found.energy_j == end.energy_j
    # What lies between two rounds is part of the answer, too.
    assert end.energy_j is not None
    assert end.energy_j >= rounds
    assert found.token_energy_j == pytest.approx(end.energy_j / 30)


def test_a_sensor_that_only_counts_gives_an_answer_its_joules(
    model: mtpx.Model, tmp_path: Path
) -> None:
    model.meter = Meter(Counting())
    found, _ = answered(model, tmp_path / "t.jsonl")
    assert found.energy_j is not None
    assert found.energy_j > 0.0


def test_a_counter_that_is_reset_tells_no_power_across_the_reset() -> None:
    values, seconds = iter([10.0, 20.0, 3.0, 8.0]), count()

    class Scripted(Counting):
        def counter_j(self) -> float | None:
            return next(values)

    window = Window(Scripted(), clock=lambda: float(next(seconds)))
    told = []
    for _ in range(4):
        window._look()
        told.append(window.watts)
    assert told == [None, 10.0, 10.0, 5.0]


def test_a_sensor_that_breaks_costs_the_joules_and_not_the_answer(
    model: mtpx.Model, tmp_path: Path
) -> None:
    model.meter = Meter(Broken())
    found, records = answered(model, tmp_path / "t.jsonl")
    assert found.tokens == 30
    assert found.energy_j is None
    assert all(r.energy_j is None for r in records if isinstance(r, Round))


def test_the_trace_says_what_the_meter_sees_or_why_there_is_none(
    model: mtpx.Model, tmp_path: Path
) -> None:
    _, records = answered(model, tmp_path / "with.jsonl")
    (run,) = [r for r in records if isinstance(r, RunRecord)]
    assert (run.meter, run.no_meter) == ("test rail", "")
    report = CliRunner().invoke(cli, ["trace", "report", str(tmp_path / "with.jsonl")]).stdout
    assert "J a token" in report
    assert "Measured: test rail" in report
    model.meter = NoMeter("nobody sells one")
    found, records = answered(model, tmp_path / "without.jsonl")
    (run,) = [r for r in records if isinstance(r, RunRecord)]
    assert (run.meter, run.no_meter, found.energy_j) == ("", "nobody sells one", None)
    report = CliRunner().invoke(cli, ["trace", "report", str(tmp_path / "without.jsonl")]).stdout
    assert "no energy meter: nobody sells one" in report


def test_the_line_under_an_answer_has_joules_only_where_there_is_a_meter(
    model: mtpx.Model, tmp_path: Path
) -> None:
    from mtpx_cli.conversing import turn_line
    from mtpx_cli.run import summary

    found, _ = answered(model, tmp_path / "a.jsonl")
    assert "J/token" in summary(found, 256)
    assert "J/token" in turn_line(found, 256)
    model.meter = NoMeter("nobody sells one")
    found, _ = answered(model, tmp_path / "b.jsonl")
    assert "J/token" not in summary(found, 256) + turn_line(found, 256)


def test_every_arm_of_a_bench_has_its_joules_a_token(model: mtpx.Model) -> None:
    from mtpx.bench.design import design, gather, mtp_arm
    from mtpx.bench.records import BenchOptions
    from mtpx.bench.run import run_bench

    kept: list[Any] = []
    prompts = gather(["chat"], [], 1)
    plan = design(prompts, [mtp_arm(1)])
    run_bench(model, plan, prompts, BenchOptions(max_tokens=16, ignore_eos=True), write=kept.append)
    ends = [record for record in kept if isinstance(record, EndRecord)]
    assert ends
    assert all(end.energy_j is not None and end.energy_j > 0.0 for end in ends)
