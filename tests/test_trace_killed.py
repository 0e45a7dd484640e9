"""A run killed in its middle: what it wrote is read, and nothing is concluded from what it did not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from test_trace_summary import anomaly_counts
from trace_makers import bench_trace

from mtpx.trace.reader import ReadReport, read
from mtpx.trace.schema import EndRecord, Round
from mtpx.trace.summary import summarise, summarise_files

WRITER = """
import sys
import msgspec
from mtpx.trace.schema import Record
from mtpx.trace.writer import TraceWriter

decoder = msgspec.json.Decoder(Record)
records = [decoder.decode(line) for line in open(sys.argv[1], "rb")]
with TraceWriter(sys.argv[2]) as writer:
    for count, record in enumerate(records, 1):
        writer.write(record)
        writer.flush()
        print(count, flush=True)
    sys.stdin.read()
"""
"""Writes a trace record by record and says after each how many are with the system."""


def killed_after(count: int, source: Path, trace: Path) -> int:
    """Let the writer say `count` or more, kill it (SIGKILL), and return the last count it said."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(source), str(trace)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = 0
    for line in process.stdout:
        said = int(line)
        if said >= count:
            break
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    return max([said, *map(int, rest.split()[:-1])])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("killed") / "source.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in bench_trace()))
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("moment", range(20))
def test_a_killed_run_leaves_every_record_it_had_handed_over(
    source: Path, tmp_path: Path, moment: int
) -> None:
    records = bench_trace()
    count = random.Random(moment).randrange(1, len(records))
    trace = tmp_path / "t.jsonl"
    said = killed_after(count, source, trace)
    found = list(read(trace))
    assert len(found) >= said
    assert found == records[: len(found)]


@pytest.mark.parametrize("moment", range(20))
def test_a_trace_cut_at_any_byte_is_read_up_to_there_and_gives_no_verdict(
    source: Path, tmp_path: Path, moment: int
) -> None:
    data = source.read_bytes()
    cut = random.Random(moment).randrange(len(data.splitlines(keepends=True)[0]) + 1, len(data) - 1)
    path = tmp_path / "t.jsonl"
    path.write_bytes(data[:cut])
    report = ReadReport()
    found = list(read(path, report))
    whole = data[:cut].count(b"\n")
    assert whole <= len(found) <= whole + 1
    assert report.garbage.lines == report.damaged.lines == 0
    (run,) = summarise(found)
    open_requests = sum(1 for r in found if not isinstance(r, (Round, EndRecord))) - 1
    ended = sum(isinstance(r, EndRecord) for r in found)
    assert anomaly_counts(run).get("cut request", 0) == open_requests - ended
    if open_requests > ended or ended % 4:
        assert all(v.verdict == "none" for v in run.verdicts)


def test_the_report_of_a_killed_run_says_that_it_was_cut(source: Path, tmp_path: Path) -> None:
    lines = source.read_bytes().splitlines(keepends=True)
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(lines[:300]) + lines[300][:40])
    summary = summarise_files([str(path)])
    assert "torn" in summary.files[0].skipped[0]
    (run,) = summary.files[0].runs
    assert [a.kind for a in run.anomalies] == ["cut request"]
    assert json.loads(msgspec.json.encode(run))["verdicts"][0]["verdict"] == "none"
