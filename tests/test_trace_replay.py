"""Replays, two traces side by side, a growing trace, a table of rounds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from simulated_traces import simulated_trace, tokens_per_ms
from test_trace_summary import only
from test_trace_time import REGIME, Cycle
from trace_makers import a_round, bench_trace, request, run_record, slot, small_trace, written

from mtpx.bench.policies import policy_named
from mtpx.errors import PolicyError, TraceError
from mtpx.policy import FixedDepth
from mtpx.policy.ollama import OllamaDepth
from mtpx.simulate import Change, Regime
from mtpx.trace.diff import compare
from mtpx.trace.export import COLUMNS, write_csv
from mtpx.trace.follow import follow
from mtpx.trace.recording import recording
from mtpx.trace.replay import replay
from mtpx.trace.schema import Record
from mtpx_cli.trace import trace


@pytest.fixture(scope="module")
def explored() -> list[Record]:
    return simulated_trace(REGIME, Cycle(3), tokens=4000, requests=2)


@pytest.fixture(scope="module")
def adaptive() -> list[Record]:
    return simulated_trace(REGIME, OllamaDepth(), tokens=4000, requests=2)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(trace, list(map(str, arguments)), env={"COLUMNS": "80"})


# -- replay --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("source", ["explored", "adaptive"])
def test_a_fixed_depth_is_predicted_within_five_per_cent_of_its_real_run(
    source: str, depth: int, request: pytest.FixtureRequest
) -> None:
    recorded = recording(request.getfixturevalue(source))
    real = simulated_trace(REGIME, FixedDepth(depth), tokens=4000, requests=2, seed=7)
    estimate = replay(recorded, lambda: FixedDepth(depth))
    assert estimate.tokens_per_s / 1e3 == pytest.approx(tokens_per_ms(real), rel=0.05)


def test_an_adaptive_policy_is_predicted_within_five_per_cent_of_its_real_run(
    explored: list[Record],
) -> None:
    real = simulated_trace(REGIME, OllamaDepth(), tokens=4000, requests=2, seed=7)
    estimate = replay(recording(explored), OllamaDepth)
    assert estimate.tokens_per_s / 1e3 == pytest.approx(tokens_per_ms(real), rel=0.05)


def test_a_replay_of_a_text_that_changes_keeps_its_parts_apart() -> None:
    moving = Regime(
        acceptance=(0.95, 0.9, 0.9),
        cost_ms={1: (10.0, 13.0, 16.0, 19.0)},
        changes=[Change(at=1200, acceptance=(0.15, 0.1, 0.1))],
    )
    recorded = recording(simulated_trace(moving, Cycle(3), tokens=4000, requests=1))
    early, late = recorded.rates[100], recorded.rates[-100]
    assert early[0] > 0.8
    assert late[0] < 0.4


def test_a_machine_that_slows_down_is_slow_in_the_replay_where_it_was() -> None:
    slowing = Regime(
        acceptance=(0.8,),
        cost_ms={1: (10.0, 12.0)},
        changes=[Change(at=1200, cost_factor=1.6)],
    )
    recorded = recording(simulated_trace(slowing, Cycle(1), tokens=3000, requests=1))
    assert recorded.pace[-100] / recorded.pace[100] == pytest.approx(1.6, rel=0.05)


def test_two_policies_that_decide_alike_see_the_same_luck(explored: list[Record]) -> None:
    recorded = recording(explored)
    one, other = (replay(recorded, lambda: FixedDepth(2), draws=2) for _ in range(2))
    assert one == other


def test_a_replay_delivers_the_text_it_was_given(explored: list[Record]) -> None:
    estimate = replay(recording(explored), lambda: FixedDepth(3), draws=1)
    assert estimate.tokens == 8000
    assert sum(estimate.depths.values()) == pytest.approx(1.0)


def test_a_depth_the_trace_never_ran_is_said_to_be_assumed() -> None:
    recorded = recording(simulated_trace(REGIME, Cycle(1), tokens=500, requests=1))
    assumed = " ".join(replay(recorded, lambda: FixedDepth(2), draws=1).assumed)
    assert "what depth 2 costs was not measured" in assumed
    assert "position 2 or deeper" in assumed


def test_a_trace_of_one_depth_cannot_price_another() -> None:
    with pytest.raises(TraceError, match="ran at depth 1 only"):
        recording([run_record(), request(0), *(a_round(i, slot(1, 1)) for i in range(9))])


def test_a_trace_without_mtp_rounds_has_nothing_to_replay() -> None:
    with pytest.raises(TraceError, match="nothing to replay"):
        recording([run_record(), request(0, "plain"), a_round(0, slot(0, 0))])


class Confident(FixedDepth):
    """Verifies drafts while the head is at least half sure."""

    name = "confident"
    wants_confidence = True

    def verify(self, confidence: Any) -> list[int]:
        return [int(np.cumprod(row > np.log(0.5)).sum()) for row in confidence]


def test_a_policy_of_confidences_gets_those_of_the_trace(explored: list[Record]) -> None:
    spread = msgspec.structs.replace(REGIME, spread=0.9)
    recorded = recording(simulated_trace(spread, Cycle(3), tokens=3000, requests=1))
    estimate = replay(recorded, lambda: Confident(3), draws=1)
    real = tokens_per_ms(simulated_trace(spread, Confident(3), tokens=3000, requests=1, seed=5))
    assert estimate.tokens_per_s / 1e3 == pytest.approx(real, rel=0.08)


class Careful(FixedDepth):
    """Drafts on while the head is at least half sure."""

    name = "careful"
    wants_steps = True

    def go_on(self, confidence: Any) -> list[bool]:
        return [bool(row[-1] > np.log(0.5)) for row in confidence]


def test_a_policy_that_stops_early_is_asked_after_every_draft() -> None:
    spread = msgspec.structs.replace(REGIME, spread=0.9)
    recorded = recording(simulated_trace(spread, Cycle(3), tokens=3000, requests=1))
    estimate = replay(recorded, lambda: Careful(3), draws=1)
    real = tokens_per_ms(simulated_trace(spread, Careful(3), tokens=3000, requests=1, seed=5))
    assert estimate.tokens_per_s / 1e3 == pytest.approx(real, rel=0.08)
    assert set(estimate.depths) >= {1, 2, 3}


def test_a_policy_of_confidences_is_refused_where_the_trace_has_none() -> None:
    rounds = [a_round(i, slot(i % 2, 0)) for i in range(9)]
    recorded = recording([run_record(), request(0), *rounds])
    with pytest.raises(TraceError, match="decides by the head's confidences"):
        replay(recorded, lambda: Confident(1))


class Broken(FixedDepth):
    name = "broken"

    def propose(self, batch: Any) -> int:
        raise KeyError("oh")


def test_a_policy_that_raises_is_named(explored: list[Record]) -> None:
    with pytest.raises(PolicyError, match="'broken' raised KeyError"):
        replay(recording(explored), lambda: Broken(1))


@pytest.mark.parametrize("name", ["2", "fixed:2"])
def test_a_depth_is_a_policys_name(name: str) -> None:
    assert policy_named(name).parameters() == {"depth": 2}


def test_a_name_nobody_has_is_refused() -> None:
    with pytest.raises(PolicyError, match="nonsense"):
        policy_named("nonsense")


def test_the_command_says_that_it_is_an_estimate(tmp_path: Path, explored: list[Record]) -> None:
    path = written(tmp_path / "t.jsonl", explored[:800])
    result = invoke("replay", path, "--policy", "2", "--policy", "0")
    assert result.exception is None
    assert result.output.startswith("Estimate from the trace's own costs and acceptances")
    assert "fixed (depth 2)" in result.output


def test_the_commands_json_holds_an_estimate_a_policy(
    tmp_path: Path, explored: list[Record]
) -> None:
    path = written(tmp_path / "t.jsonl", explored[:800])
    found = json.loads(invoke("replay", path, "--policy", "2", "--policy", "1", "--json").output)
    assert [one["parameters"]["depth"] for one in found] == [2, 1]
    assert all(one["low"] <= one["tokens_per_s"] <= one["high"] for one in found)


# -- diff ----------------------------------------------------------------------------------------------


def test_a_diff_names_what_differed_in_what_ran() -> None:
    a, b = only(small_trace()), only([run_record(dtype="bfloat16"), *small_trace()[1:]])
    assert [(c.field, c.a, c.b) for c in compare(a, b).changed] == [
        ("dtype", "float32", "bfloat16")
    ]


def test_a_diff_sets_numbers_side_by_side() -> None:
    b = small_trace()
    b[-1] = msgspec.structs.replace(b[-1], decode_s=0.08)
    (one,) = [
        n
        for n in compare(only(small_trace()), only(b)).numbers
        if (n.group, n.name) == ("delivered", "plain")
    ]
    assert (one.a, one.b, one.change) == pytest.approx((100.0, 50.0, -0.5))


def test_what_only_one_run_has_is_absent_in_the_other() -> None:
    numbers = compare(only(small_trace()), only(bench_trace())).numbers
    (arm,) = [n for n in numbers if n.name == "depth-1" and n.group == "delivered"]
    assert (arm.a, arm.change) == (None, None)
    assert arm.b == pytest.approx(200.0, rel=0.01)


def test_the_diff_command_says_that_it_is_no_verdict(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", small_trace())
    b = written(tmp_path / "b.jsonl", bench_trace())
    result = invoke("diff", a, b)
    assert result.exception is None
    assert "Not a verdict" in result.output
    assert json.loads(invoke("diff", a, b, "--json").output)["numbers"]


# -- tail ----------------------------------------------------------------------------------------------


def growing(path: Path, *pieces: bytes) -> Callable[[], bool]:
    """Adds a piece to the file each time there is nothing new; then says it is over."""
    left = list(pieces)

    def wait() -> bool:
        if not left:
            return False
        with path.open("ab") as file:
            file.write(left.pop(0))
        return True

    return wait


LINES = [msgspec.json.encode(record) + b"\n" for record in small_trace()]


def test_a_growing_trace_is_followed_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(LINES[:3]))
    data = b"".join(LINES[3:])
    # Cut in the middle of lines.
    pieces = [data[i : i + 37] for i in range(0, len(data), 37)]
    found = [r for batch in follow(path, growing(path, *pieces)) for r in batch]
    assert found == small_trace()


def test_lines_that_are_no_record_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(LINES[0] + b"what?\n\xff\xfe\n" + LINES[1])
    assert len([r for batch in follow(path, lambda: False) for r in batch]) == 2


def test_a_trace_that_was_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(LINES))
    steps = iter([lambda: path.write_bytes(LINES[0]), None, None])

    def wait() -> bool:
        step = next(steps)
        if step:
            step()
        return step is not None

    assert len([r for batch in follow(path, wait) for r in batch]) == len(LINES) + 1


def test_a_newer_schema_is_refused_while_following(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(msgspec.json.encode(run_record(schema=(9, 0))) + b"\n")
    with pytest.raises(TraceError, match=r"schema 9\.0"):
        list(follow(path, lambda: False))


def test_a_trace_that_is_not_there_cannot_be_followed(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        list(follow(tmp_path / "none", lambda: False))


def test_tail_shows_what_begins_and_ends(tmp_path: Path) -> None:
    result = invoke("tail", written(tmp_path / "t.jsonl", small_trace()), "--idle", "0")
    assert result.output.splitlines() == [
        "run: tiny on virtual, policy fixed",
        "request 0: mtp, 5 prompt tokens",
        "request 0 ended (length): 7 tokens, 111 tok/s",
        "request 1: plain, 5 prompt tokens",
        "request 1 ended (length): 5 tokens, 100 tok/s",
    ]


def test_the_live_line_tells_depth_speed_and_acceptance() -> None:
    from mtpx_cli.tail import View

    view = View(live=False)
    view.take([a_round(0, slot(2, 1), ms=20.0), a_round(1, slot(2, 2), ms=20.0)])
    assert view.now() == "round 2, depth 2, 125 tok/s, accepted 75 %"


# -- export --------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_round_and_empty_cells_for_what_is_absent() -> None:
    file = io.StringIO(newline="")
    assert write_csv(small_trace(), file) == 9
    rows = list(csv.DictReader(io.StringIO(file.getvalue(), newline="")))
    assert tuple(rows[0]) == COLUMNS
    assert (rows[0]["mode"], rows[0]["accepted"], rows[0]["round_ms"]) == ("mtp", "1", "15.0")
    assert rows[0]["draft_ms"] == ""
    assert rows[-1]["mode"] == "plain"


def test_export_writes_where_it_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", small_trace())
    result = invoke("export", path, "--csv", "--out", tmp_path / "t.csv")
    assert result.exception is None
    assert (tmp_path / "t.csv").read_text().count("\n") == 10
    assert invoke("export", path, "--csv").output.splitlines()[0] == ",".join(COLUMNS)


def test_export_to_where_nothing_can_be_written_is_a_sentence(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", small_trace())
    result = invoke("export", path, "--csv", "--out", tmp_path / "none" / "t.csv")
    assert isinstance(result.exception, TraceError)
    assert "cannot be written" in str(result.exception)


def test_nothing_is_exported_of_what_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "no").write_text("none\n")
    result = invoke("export", tmp_path / "no", "--csv")
    assert result.exception is not None
    assert result.stdout == ""
