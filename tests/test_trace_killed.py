"""A run killed in its middle: what it wrote is read, and nothing is concluded from what it did not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from command import process
from test_trace_summary import anomaly_counts
from trace_makers import bench_trace

from mtpx.trace.reader import ReadReport, read
from mtpx.trace.schema import EndRecord, RequestRecord, Round
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


BENCHES = """
import os, sys
from simulated_bench import PAYS, model_of
from mtpx.bench.design import design, gather, mtp_arm
from mtpx.bench.records import BenchOptions
from mtpx.bench.run import run_bench
from mtpx.trace.writer import TraceWriter

prompts = gather(("chat",), (), 8, 0)
for path in map(str.strip, sys.stdin):
    child = os.fork()
    if not child:
        model = model_of(PAYS)
        with TraceWriter(path) as writer:
            run_bench(
                model,
                design(prompts, [mtp_arm(2)], repeats=1, seed=0, baseline=True),
                prompts,
                BenchOptions(max_tokens=48),
                write=writer.write,
                clock=model.engine.clock,
            )
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("over", flush=True)
"""
"""Runs a bench into each trace it is told of, in a process of its own that can be killed."""


@pytest.fixture(scope="module")
def benches() -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", BENCHES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as running:
        yield running
        assert running.stdin is not None
        running.stdin.close()


def bench(benches: subprocess.Popen[str], trace: Path, kill_at: int | None = None) -> None:
    """A bench into `trace`, killed (SIGKILL) once that holds `kill_at` bytes."""
    assert benches.stdin is not None
    assert benches.stdout is not None
    print(trace, file=benches.stdin, flush=True)
    child = int(benches.stdout.readline())
    while kill_at is not None and not (trace.exists() and trace.stat().st_size >= kill_at):
        time.sleep(0.0002)
    if kill_at is not None:
        os.kill(child, signal.SIGKILL)
    assert benches.stdout.readline() == "over\n"


@pytest.fixture(scope="module")
def whole(benches: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a bench that nobody killed."""
    trace = tmp_path_factory.mktemp("whole") / "t.jsonl"
    bench(benches, trace)
    return trace


@pytest.mark.skipif(not hasattr(os, "fork"), reason="benches are forked")
def test_a_bench_that_is_let_run_has_its_verdict(whole: Path) -> None:
    (run,) = summarise(read(whole))
    assert [v.verdict for v in run.verdicts] == ["pays"]
    assert anomaly_counts(run).get("cut request") is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="benches are forked")
@pytest.mark.parametrize("moment", range(20))
def test_a_bench_killed_at_any_moment_leaves_what_it_had_written_and_no_verdict(
    benches: subprocess.Popen[str], whole: Path, tmp_path: Path, moment: int
) -> None:
    size = whole.stat().st_size
    trace = tmp_path / "t.jsonl"
    bench(benches, trace, kill_at=int(size * random.Random(moment).uniform(0.02, 0.9)))
    data = trace.read_bytes()
    if len(data) >= size:
        pytest.skip("it was over before it was killed")
    report = ReadReport()
    found = list(read(trace, report))
    assert report.garbage.lines == report.damaged.lines == 0
    assert data.count(b"\n") <= len(found) <= data.count(b"\n") + 1
    (run,) = summarise(found)
    assert [v.verdict for v in run.verdicts] == ["none"]
    assert "no verdict" in run.verdicts[0].reason
    begun = sum(isinstance(r, RequestRecord) for r in found)
    ended = sum(isinstance(r, EndRecord) for r in found)
    assert anomaly_counts(run).get("cut request", 0) == begun - ended


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("rounds", [1, 40])
def test_a_run_killed_while_it_decodes_is_reported_as_cut(
    tiny_pack: Path, own_folders: Path, rounds: int
) -> None:
    trace = own_folders / "t.jsonl"
    options = ("--max-tokens", "220", "--ignore-eos", "--depth", "2", "--trace", str(trace))
    running = process("run", "Hello", "--pack", str(tiny_pack), *options)
    while not (trace.exists() and trace.read_bytes().count(b'"round"') >= rounds):
        assert running.poll() is None, "it was over before it was killed"
    running.kill()
    running.communicate()
    (run,) = summarise_files([str(trace)]).files[0].runs
    if [r.stop for r in run.requests] != [""]:
        pytest.skip("it was over before it was killed")
    assert run.requests[0].rounds >= rounds
    assert anomaly_counts(run)["cut request"] == 1
    done = subprocess.run(
        [sys.executable, "-m", "mtpx_cli", "trace", "report", str(trace)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("No verdict")
    assert "1 request has no end record: its process was killed or still runs" in " ".join(
        done.stdout.split()
    )
