"""The pairing a verdict rests on: matched blocks out of a trace's records."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from mtpx.bench.blocks import MATCHED, NOT_RUN, blocks
from mtpx.errors import BenchError
from mtpx.sampling import Sampling
from mtpx.trace.schema import SCHEMA, EndRecord, Record, RequestRecord, RunRecord


def a_run(**changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "started": "2026-01-01T00:00:00+00:00",
        "versions": {},
        "pack": "p",
        "weights_digest": "w",
        "head_digest": "h",
        "backend": "b",
        "device": "d",
        "dtype": "float32",
        "quantisation": "none",
        "tier": "standard",
        "policy": "fixed",
        "policy_parameters": {},
    }
    return RunRecord(**{**fields, **changes})


def a_request(place: int, /, **changes: Any) -> RequestRecord:
    plain = place in (0, 3)
    fields: dict[str, Any] = {
        "id": place,
        "mode": "plain" if plain else "mtp",
        "prompt_tokens": 5,
        "prompt_sha256": "hash",
        "max_tokens": 64,
        "sampling": Sampling(),
        "seed": 0,
        "arm": "plain" if plain else "depth 1",
        "pair": 0,
        "suite": "chat",
        "prompt": "p0",
        "place": place,
    }
    return RequestRecord(**{**fields, **changes})


def an_end(request: int, /, **changes: Any) -> EndRecord:
    fields: dict[str, Any] = {"tokens": 65, "stop": "length", "decode_s": 2.0, "first_tokens": 1}
    return EndRecord(request=request, **{**fields, **changes})


def a_trace(**changes: Any) -> list[Record]:
    """One ABBA block; `changes` are made to the request at place 2."""
    records: list[Record] = [a_run()]
    for place in range(4):
        records.append(a_request(place, **(changes if place == 2 else {})))
        records.append(an_end(place, decode_s=2.0 if place in (0, 3) else 1.6))
    return records


def test_four_matched_runs_make_a_block() -> None:
    (made,) = blocks(a_trace())
    assert (made.arm, made.key, made.void) == ("depth 1", ("chat", "p0"), "")
    assert [r.place for r in made.plain] == [0, 3]
    assert [r.place for r in made.mtp] == [1, 2]
    assert made.log_ratio == pytest.approx(math.log(1.25))


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("prompt_sha256", "other", "prompt hash"),
        ("prompt_tokens", 6, "prompt tokens"),
        ("sampling", Sampling(temperature=0.5), "sampling"),
        ("seed", 1, "seed"),
        ("max_tokens", 65, "token budget"),
        ("suite", "code", "suite"),
        ("prompt", "p1", "prompt"),
        ("ignore_eos", True, "ignore-eos"),
        ("reused_tokens", 3, "reused tokens"),
    ],
)
def test_runs_that_are_not_the_same_request_are_refused_by_field(
    field: str, value: object, name: str
) -> None:
    with pytest.raises(BenchError, match=f"pair 0 cannot be compared: their {name} differs"):
        blocks(a_trace(**{field: value}))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("pack", "pack"),
        ("weights_digest", "weights digest"),
        ("head_digest", "head digest"),
        ("backend", "backend"),
        ("device", "device"),
        ("dtype", "dtype"),
        ("quantisation", "quantisation"),
    ],
)
def test_runs_of_different_weights_or_machines_are_refused_by_field(field: str, name: str) -> None:
    records = a_trace()
    records.insert(5, a_run(**{field: "other"}))
    with pytest.raises(BenchError, match=f"their {name} differs"):
        blocks(records)


def test_runs_of_two_processes_are_no_pair() -> None:
    records = a_trace()
    records.insert(5, a_run())
    with pytest.raises(BenchError, match="their process differs"):
        blocks(records)


def test_every_field_that_must_match_has_its_test() -> None:
    tested = {
        mark.args[1][i][-1]
        for test in (
            test_runs_that_are_not_the_same_request_are_refused_by_field,
            test_runs_of_different_weights_or_machines_are_refused_by_field,
        )
        for mark in test.pytestmark  # type: ignore[attr-defined]
        for i in range(len(mark.args[1]))
    }
    assert tested | {"process"} == set(MATCHED)


def test_a_doubled_place_is_refused() -> None:
    with pytest.raises(BenchError, match=r"at places \[0, 1, 1, 3\]"):
        blocks(a_trace(place=1))


def test_two_arms_in_one_pair_are_refused() -> None:
    with pytest.raises(BenchError, match="mixes the arms depth 1, depth 3"):
        blocks(a_trace(arm="depth 3"))


def test_warm_up_runs_are_in_no_block() -> None:
    records = [*a_trace(), a_request(0, id=9, warmup=True), an_end(9)]
    assert len(blocks(records)) == 1


@pytest.mark.parametrize(
    ("stop", "reason"),
    [("guard", "cut by the guard"), ("error", "ended in an error"), ("interrupt", "interrupted")],
)
def test_a_run_cut_short_voids_its_block(stop: str, reason: str) -> None:
    records = a_trace()
    records[-1] = an_end(3, stop=stop)
    assert reason in blocks(records)[0].void


def test_a_run_without_an_end_record_voids_its_block() -> None:
    assert "no end record" in blocks(a_trace()[:-1])[0].void


def test_a_block_of_three_runs_is_void() -> None:
    assert blocks(a_trace()[:-2])[0].void == NOT_RUN


def test_a_planned_block_that_was_never_run_is_there_and_void() -> None:
    records = a_trace()
    plan = [
        {"pair": i, "arm": "depth 1", "suite": "chat", "prompt": f"p{i}", "order": "ABBA"}
        for i in range(2)
    ]
    records[0] = a_run(design={"blocks": plan})
    assert [b.void for b in blocks(records)] == ["", NOT_RUN]


def test_a_damaged_design_is_refused_in_a_sentence() -> None:
    with pytest.raises(BenchError, match="design in the trace's run record cannot be read"):
        blocks([a_run(design={"blocks": [1]})])


def test_a_trace_without_pairs_has_no_blocks() -> None:
    assert blocks([a_run(), a_request(1, pair=None), an_end(1)]) == []


def test_a_plain_arm_under_another_name_is_a_null_control() -> None:
    records = a_trace()
    for i in (3, 5):
        records[i] = msgspec.structs.replace(records[i], mode="plain", arm="null")
    assert blocks(records)[0].null
