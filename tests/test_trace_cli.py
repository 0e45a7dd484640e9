"""`mtpx trace report` at the terminal and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_makers import a_round, bench_trace, request, run_record, slot, small_trace, written

from mtpx.errors import MtpxError, TraceError
from mtpx.trace.files import new_trace_path
from mtpx.trace.schema import BeliefRecord, EndRecord
from mtpx.trace.summary import summarise_files
from mtpx_cli.draw import Notes, clean, number
from mtpx_cli.trace import trace

SMALL = b"".join(msgspec.json.encode(record) + b"\n" for record in small_trace())


def report(*arguments: object, **environment: str | None) -> Result:
    return CliRunner().invoke(
        trace, ["report", *map(str, arguments)], env={"COLUMNS": "100", **environment}
    )


def said(result: Result) -> str:
    """What was printed, on one line with single spaces."""
    assert result.exception is None, result.exception
    return " ".join(result.output.split())


def test_the_verdict_comes_first(tmp_path: Path) -> None:
    result = report(written(tmp_path / "t.jsonl", bench_trace()))
    assert said(result).startswith("MTP pays (depth-1): 1.998 × the plain rate (95 % interval")


def test_without_plain_runs_the_first_line_says_what_is_missing(tmp_path: Path) -> None:
    result = report(written(tmp_path / "t.jsonl", small_trace()))
    assert said(result).startswith(
        "No verdict on whether MTP pays: matched plain runs required; "
        "`mtpx bench --plain-baseline` makes them."
    )


def test_the_sections_follow_in_order(tmp_path: Path) -> None:
    text = report(written(tmp_path / "t.jsonl", small_trace())).output
    titles = [
        "What ran",
        "Rounds",
        "Acceptance of drafts",
        "Break-even",
        "Depth over time",
        "What another depth would have done",
        "Where the time went",
        "Anomalies",
        "Trace:",
    ]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)


def test_the_tables_hold_the_numbers_worked_out_by_hand(tmp_path: Path) -> None:
    text = said(report(written(tmp_path / "t.jsonl", small_trace())))
    assert "mtp 1 7 111 20.0 1.75 75 % length 1" in text
    assert "1 eager 4 15.0 15.0–15.0 – [3] 1.75 15.0 1.50" in text
    assert "1 75.0 % 30.1–95.4 4 75.0 % 30.1–95.4 4" in text
    assert "1 1.50 1.75 50 % 75 % +25 pts 1.17" in text


def test_what_is_absent_is_a_dash_with_its_reason(tmp_path: Path) -> None:
    records = [run_record(), request(0), a_round(0, slot(1, 1))]
    text = said(report(written(tmp_path / "t.jsonl", records)))
    assert "– [1]" in text
    for reason in (
        "no request ran long enough for a rate",
        "the parts of a round were not timed apart",
        "no depth-0 round was run at width 1",
    ):
        assert f"] {reason}" in text


def test_what_the_head_said_stands_beside_what_stood(tmp_path: Path) -> None:
    rounds = [a_round(i, slot(1, int(i < 3), confidences=[-0.3])) for i in range(4)]
    text = said(report(written(tmp_path / "t.jsonl", [run_record(), request(0), *rounds])))
    # exp(-0.5) to exp(-0.25), exp(-0.3); three of four.
    assert "60.7–77.9 % 74.1 % 75.0 % 30.1–95.4 4" in text


def test_what_the_policy_believed_last_is_told_by_depth(tmp_path: Path) -> None:
    belief = BeliefRecord(0, "any", {"selected": 1, "tokens_per_s": {"0": 30.0, "1": 45.0}})
    records = [run_record(), request(0), a_round(0, slot(1, 1)), belief]
    text = said(report(written(tmp_path / "t.jsonl", records)))
    assert "depth 1 held best; expected tok/s by depth 0: 30.0, 1: 45.0." in text


@pytest.mark.parametrize("columns", [80, 100])
def test_a_report_fits_its_terminal(tmp_path: Path, columns: int) -> None:
    records = [
        *bench_trace(),
        run_record(
            pack="a-pack-with-a-long-name" * 4,
            device="some long device name " * 5,
            policy_parameters={f"parameter_{i}": 1 / 3 for i in range(9)},
        ),
        request(0, arm="an-arm-with-a-name-somebody-thought-about-for-long"),
        *(
            a_round(i, slot(i % 4, 0), ms=1234.5, draft_ms=1.0, verify_ms=9.0, host_ms=0.1)
            for i in range(8)
        ),
        EndRecord(0, tokens=8, stop="error", error="it broke " * 30),
    ]
    result = report(written(tmp_path / "t.jsonl", records), COLUMNS=str(columns))
    assert result.exception is None
    lines = result.output.splitlines()
    (path,) = (line for line in lines if line.startswith("Trace: "))
    assert path.endswith(f"t.jsonl ({len(records)} records)")
    assert max(len(line) for line in lines if line != path) <= columns
    assert "…" not in result.output


def test_a_narrow_terminal_loses_no_word_of_a_report(tmp_path: Path) -> None:
    slow = [
        run_record(),
        request(0),
        *(a_round(i, slot(1, 1), ms=2345.6 + i, verify_ms=2345.0, host_ms=0.1) for i in range(9)),
    ]
    path = written(tmp_path / "t.jsonl", [*bench_trace(), *small_trace(), *slow])
    wide, narrow = (
        Counter(w for w in report(path, COLUMNS=columns).output.split() if "─" not in w)
        for columns in ("100", "80")
    )
    assert wide - narrow == Counter()


def test_a_wide_terminal_gets_100_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a path is never broken, however long the folder's name
    result = report(written(Path("t.jsonl"), bench_trace() * 2), COLUMNS="250")
    assert max(len(line) for line in result.output.splitlines()) == 100


def test_colours_stay_out_of_a_pipe_and_out_of_no_color(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", bench_trace())
    assert "\x1b[" not in report(path).output
    colour = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[1;32mMTP pays" in report(path, NO_COLOR=None, **colour).output
    assert "32m" not in report(path, NO_COLOR="1", **colour).output


def test_a_trace_cannot_drive_the_terminal(tmp_path: Path) -> None:
    records = [run_record(pack="\x1b[2Jevil[bold]\r\n"), *small_trace()[1:]]
    result = report(written(tmp_path / "t.jsonl", records))
    assert "\x1b" not in result.output
    assert "[2Jevil[bold]" in result.output


def test_several_runs_are_reported_one_by_one_and_it_says_so(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", small_trace() * 2)
    b = written(tmp_path / "b.jsonl", small_trace())
    text = said(report(a, b))
    assert "run 2 of 2" in text
    assert "run 1 of 1" in text
    assert "nothing is pooled across them" in text


def test_runs_of_different_packs_are_said_to_be(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", small_trace())
    b = written(tmp_path / "b.jsonl", [run_record(pack="other"), *small_trace()[1:]])
    assert "of different packs and cannot be compared: other, tiny" in said(report(a, b))
    assert "different packs" not in said(report(a, a))


def test_skipped_lines_are_said(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(SMALL + b"what?\n" + SMALL[:50])
    text = said(report(path))
    assert "1 line not JSON, skipped; the first is line 15" in text
    assert "the last line (16) is torn" in text


def test_json_is_the_summary(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", bench_trace())
    result = report(path, "--json")
    assert result.exception is None
    found: dict[str, Any] = json.loads(result.output)
    assert found == json.loads(msgspec.json.encode(summarise_files([str(path)])))
    (run,) = found["files"][0]["runs"]
    assert run["verdicts"][0]["verdict"] == "pays"
    assert run["acceptance"][0]["conditional"]["trials"] == 240


def test_the_margin_decides(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", bench_trace())
    assert "MTP does not pay (depth-1)" in said(report(path, "--margin", "1.5"))


def test_bare_reads_the_newest_trace_of_the_state_directory(tmp_path: Path) -> None:
    written(tmp_path / "traces" / "20200101-000000-run-1.jsonl", small_trace())
    newest = written(new_trace_path(tmp_path / "traces", "bench"), bench_trace())
    text = said(report(MTPX_STATE_DIR=str(tmp_path), COLUMNS="100"))
    assert text.startswith("MTP pays")
    assert newest.name in text.replace(" ", "")


def test_bare_without_a_trace_says_how_to_make_one(tmp_path: Path) -> None:
    result = report(MTPX_STATE_DIR=str(tmp_path))
    assert isinstance(result.exception, TraceError)
    assert "run `mtpx bench` to make one" in str(result.exception)


@pytest.mark.parametrize("margin", ["nan", "-2"])
def test_a_nonsense_margin_is_refused(tmp_path: Path, margin: str) -> None:
    result = report(written(tmp_path / "t.jsonl", small_trace()), "--margin", margin)
    assert isinstance(result.exception, TraceError)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(SMALL) - 1),
            st.one_of(
                st.binary(max_size=2), st.sampled_from([b"9", b"-", b"e9", b"99999", b"null"])
            ),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=12,
    ),
    as_json=st.booleans(),
)
def test_no_mutation_of_a_trace_gives_a_traceback(
    tmp_path: Path, edits: list[tuple[int, bytes, int]], as_json: bool
) -> None:
    data = bytearray(SMALL)
    for at, insert, remove in edits:
        data[at : at + remove] = insert
    (tmp_path / "t").write_bytes(data)
    result = report(tmp_path / "t", *(["--json"] if as_json else []))
    assert result.exception is None or isinstance(result.exception, MtpxError)
    if as_json and result.exception is None:
        json.loads(result.output)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (1234.5, "1 234"),
        (-0.5, "-0.50"),
        (3e12, "3e+12"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_equal_reasons_share_a_note() -> None:
    notes = Notes()
    assert [notes.dash("a"), notes.dash("b"), notes.dash("a")] == ["– [1]", "– [2]", "– [1]"]
    assert notes.lines() == ["[1] a", "[2] b"]


def test_a_number_that_is_none_is_a_dash() -> None:
    notes = Notes()
    assert notes.show(float("inf"), "unused") == "– [1]"
    assert notes.lines() == ["[1] not a finite number"]


@given(st.text())
def test_clean_text_is_one_printable_line(text: str) -> None:
    assert clean(text).isprintable()
