"""`mtpx trace calibrate`: from recorded rounds to the calibration the planner reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command
from simulated_traces import simulated_trace
from test_trace_time import REGIME
from trace_makers import a_round, request, run_record, slot, written

from mtpx.policy import FixedDepth
from mtpx.policy.calibration import read_calibration
from mtpx.policy.planner_files import planner_dir


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return written(tmp_path / "t.jsonl", simulated_trace(REGIME, FixedDepth(3), tokens=1500))


def test_the_calibration_goes_where_the_planner_looks(mtpx: Command, recorded: Path) -> None:
    done = mtpx("trace", "calibrate", str(recorded))
    (path,) = planner_dir().glob("*.calibration.toml")
    assert done.status == 0
    assert done.out.splitlines()[-1] == f"Written: {path}"
    fitted = read_calibration(path)
    assert fitted.priors == pytest.approx(REGIME.acceptance[: len(fitted.priors)], abs=0.06)
    assert len(fitted.priors) == 3


def test_the_reliability_table_holds_every_bucket(mtpx: Command, recorded: Path) -> None:
    out = mtpx("trace", "calibrate", str(recorded)).out
    (path,) = planner_dir().glob("*.calibration.toml")
    for bucket in read_calibration(path).reliability():
        assert f"to {bucket.upper:g} " in out
        assert str(bucket.reached) in out


def test_the_json_is_the_calibration_its_reliability_and_its_file(
    mtpx: Command, recorded: Path, tmp_path: Path
) -> None:
    output = tmp_path / "new" / "head.toml"
    done = mtpx("trace", "calibrate", str(recorded), "--output", str(output), "--json")
    found = json.loads(done.out)
    fitted = read_calibration(output)
    assert found["file"] == str(output)
    assert found["calibration"]["priors"] == list(fitted.priors)
    assert [row["reached"] for row in found["reliability"]] == list(fitted.reached)
    assert not planner_dir().exists()


def test_several_traces_of_one_head_are_counted_together(
    mtpx: Command, recorded: Path, tmp_path: Path
) -> None:
    output = tmp_path / "head.toml"
    mtpx("trace", "calibrate", str(recorded), "--output", str(output))
    once = sum(read_calibration(output).reached)
    mtpx("trace", "calibrate", str(recorded), str(recorded), "--output", str(output))
    assert sum(read_calibration(output).reached) == 2 * once


def test_traces_of_two_heads_are_refused(mtpx: Command, recorded: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "o.jsonl", [run_record(head_depth_limit=1, head_digest="other")])
    assert "another head" in mtpx("trace", "calibrate", str(recorded), str(other)).complaint


def test_a_trace_without_a_head_is_refused(mtpx: Command, tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", [run_record(), request(0)])
    assert "no MTP head" in mtpx("trace", "calibrate", str(path)).complaint


def test_too_few_drafts_are_refused_with_their_count(mtpx: Command, tmp_path: Path) -> None:
    rounds = [a_round(i, slot(1, 1, confidences=[-0.1])) for i in range(7)]
    path = written(
        tmp_path / "t.jsonl", [run_record(head_depth_limit=1, head_digest="h"), request(0), *rounds]
    )
    complaint = mtpx("trace", "calibrate", str(path)).complaint
    assert complaint.startswith("7 drafts with a known confidence were judged")


def test_a_calibration_that_cannot_be_written_is_a_sentence(
    mtpx: Command, recorded: Path, tmp_path: Path
) -> None:
    complaint = mtpx("trace", "calibrate", str(recorded), "--output", str(tmp_path)).complaint
    assert complaint.startswith(f"cannot write {tmp_path}: ")
