"""Writing, reading, naming and keeping traces; looping output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trace_makers import a_round, request, run_record, slot, small_trace, written

from mtpx.errors import TraceError
from mtpx.trace.files import new_trace_path, newest_trace, prune
from mtpx.trace.looping import looping
from mtpx.trace.reader import ReadReport, is_trace, read
from mtpx.trace.schema import BeliefRecord, EndRecord
from mtpx.trace.writer import TraceWriter

SMALL = b"".join(msgspec.json.encode(record) + b"\n" for record in small_trace())


def read_bytes(path: Path, data: bytes) -> tuple[list[object], ReadReport]:
    path.write_bytes(data)
    report = ReadReport()
    return list(read(path, report)), report


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    records = [*small_trace(), BeliefRecord(64, "fixed", {"costs": [1.5, None]})]
    assert list(read(written(tmp_path / "a" / "b" / "t.jsonl", records))) == records


def test_a_writer_continues_a_trace(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", small_trace())
    written(path, small_trace())
    assert list(read(path)) == small_trace() * 2


def test_a_writer_starts_a_new_line_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(SMALL[:-9])
    written(path, [run_record()])
    report = ReadReport()
    assert list(read(path, report)) == [*small_trace()[:-1], run_record()]
    assert report.garbage.lines == 1


def test_a_writer_leaves_a_file_that_is_no_trace_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(TraceError, match="is not a trace; it was left as it is"):
        TraceWriter(path)
    assert path.read_text() == "my notes\n"


def test_a_writer_refuses_a_directory(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="it is a directory; name a file"):
        TraceWriter(tmp_path)


def test_a_writer_refuses_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceError, match="cannot be written"):
        TraceWriter(tmp_path / "file" / "t.jsonl")


def test_a_writer_refuses_a_path_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be written"):
        TraceWriter(tmp_path / ("x" * 5000))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_writer_refuses_a_folder_it_may_not_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TraceError, match="Permission denied"):
        TraceWriter(tmp_path / "t.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_warns_once_and_does_not_raise() -> None:
    warnings: list[str] = []
    with TraceWriter("/dev/full", warn=warnings.append) as writer:
        for record in small_trace():
            writer.write(record)
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
    assert writer.dropped == len(small_trace())


def test_a_slow_disk_is_asked_less_often_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, writes, write = [0.0], [0], os.write

    def slow(fd: int, data: bytes) -> int:
        now[0] += 0.004
        writes[0] += 1
        return write(fd, data)

    monkeypatch.setattr("mtpx.trace.writer.time.monotonic", lambda: now[0])
    monkeypatch.setattr("mtpx.trace.writer.os.write", slow)
    rounds = [a_round(i, slot(1, 1)) for i in range(100)]
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        for record in rounds:
            writer.write(record)
            now[0] += 0.01
    monkeypatch.undo()
    assert list(read(tmp_path / "t.jsonl")) == rounds
    assert 2 <= writes[0] <= 5  # one every 0.4 s in 1 s, and the last at the close


def test_an_end_record_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtpx.trace.writer.time.monotonic", lambda: -1.0)  # no flush is ever due
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.write(a_round(0, slot(1, 1)))
    assert (tmp_path / "t.jsonl").read_bytes() == b""
    writer.write(EndRecord(0, tokens=2, stop="end"))
    assert len(list(read(tmp_path / "t.jsonl"))) == 2
    writer.close()
    writer.close()


def test_a_partial_write_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr("mtpx.trace.writer.os.write", lambda fd, data: write(fd, bytes(data)[:7]))
    path = written(tmp_path / "t.jsonl", small_trace())
    assert list(read(path)) == small_trace()


def test_a_killed_process_leaves_a_readable_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    script = (
        "import itertools, sys\n"
        "from trace_makers import a_round, request, run_record, slot\n"
        "from mtpx.trace.writer import TraceWriter\n"
        "w = TraceWriter(sys.argv[1])\n"
        "w.write(run_record()); w.write(request(0))\n"
        "print('on', flush=True)\n"
        "for i in itertools.count(): w.write(a_round(i, slot(1, 1)))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"on\n"
        while path.stat().st_size < 50_000:
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
    report = ReadReport()
    records = list(read(path, report))
    assert records[:2] == [run_record(), request(0)]
    assert [r.index for r in records[2:]] == list(range(len(records) - 2))  # type: ignore[union-attr]
    assert not report.garbage.lines
    assert not report.damaged.lines
    assert report.torn.lines <= 1


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_dropped_and_said(tmp_path: Path, cut: int) -> None:
    records, report = read_bytes(tmp_path / "t", SMALL[: -1 - cut])
    assert records == small_trace()[:-1]
    assert (report.torn.lines, report.torn.first) == (1, len(small_trace()))
    assert "torn" in report.warnings()[0]


def test_a_last_line_that_only_lacks_its_newline_is_kept(tmp_path: Path) -> None:
    records, report = read_bytes(tmp_path / "t", SMALL[:-1])
    assert records == small_trace()
    assert report.warnings() == []


def test_garbage_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    lines = SMALL.splitlines(keepends=True)
    data = b"".join([lines[0], b"\x00\xff\x80\n", b"[1, 2]\n", *lines[1:]])
    records, report = read_bytes(tmp_path / "t", data)
    assert records == small_trace()
    assert (report.garbage.lines, report.garbage.first) == (2, 2)


def test_unknown_record_types_are_ignored_and_counted(tmp_path: Path) -> None:
    records, report = read_bytes(tmp_path / "t", SMALL + b'{"type":"weather","rain":1}\n')
    assert records == small_trace()
    assert report.unknown.lines == 1


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    data = SMALL.replace(b'"round_ms"', b'"humidity":[0.5],"round_ms"')
    records, report = read_bytes(tmp_path / "t", data)
    assert data != SMALL
    assert records == small_trace()
    assert report.warnings() == []


def test_a_record_without_what_it_must_hold_is_damaged(tmp_path: Path) -> None:
    records, report = read_bytes(tmp_path / "t", SMALL + b'{"type":"end","request":1}\n')
    assert records == small_trace()
    assert (report.damaged.lines, report.damaged.first) == (1, len(small_trace()) + 1)


def test_a_sampling_value_out_of_range_is_damage_not_a_crash(tmp_path: Path) -> None:
    data = SMALL.replace(b'"sampling":{}', b'"sampling":{"top_p":7.0}')
    records, report = read_bytes(tmp_path / "t", data)
    assert report.damaged.lines == 2
    assert len(records) == len(small_trace()) - 2


@pytest.mark.parametrize("body", [b'"pack":"x"', b'"device":{"new":"shape"}'])
def test_a_newer_major_schema_is_refused_whatever_else_it_holds(
    tmp_path: Path, body: bytes
) -> None:
    with pytest.raises(TraceError, match=r"schema 2\.0, this mtpx reads 1\.x"):
        read_bytes(tmp_path / "t", b'{"type":"run","schema":[2,0],' + body + b"}\n")


def test_a_newer_minor_schema_is_read(tmp_path: Path) -> None:
    records, _ = read_bytes(tmp_path / "t", SMALL.replace(b'"schema":[1,0]', b'"schema":[1,9]'))
    assert len(records) == len(small_trace())


LINES = [line + b"\n" for line in SMALL.splitlines()]
BAD = [
    b"\n",
    b"  \n",
    b"not json\n",
    b"[1]\n",
    b'{"type":"round"}\n',
    b'{"type":"x"}\n',
    b"\xff\r\n",
]


@given(
    lines=st.lists(st.sampled_from(LINES + BAD), max_size=30),
    cut=st.integers(0, 60),
    block=st.integers(1, 700),
)
def test_what_is_read_does_not_depend_on_the_size_of_a_block(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cut: int, block: int
) -> None:
    data = b"".join([LINES[0], *lines])
    data = data[: max(len(LINES[0]), len(data) - cut)]
    path = tmp_path_factory.mktemp("read") / "t.jsonl"
    whole = read_bytes(path, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtpx.trace.reader.BLOCK", block)
        assert read_bytes(path, data) == whole


def test_the_line_after_an_overlong_one_keeps_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtpx.trace.reader.LONGEST_LINE", 1000)
    monkeypatch.setattr("mtpx.trace.reader.BLOCK", 500)
    data = LINES[0] + b"x" * 5000 + b"\n" + LINES[1] + b"{}\n"
    _, report = read_bytes(tmp_path / "t.jsonl", data)
    assert (report.records, report.garbage.lines, report.garbage.first) == (2, 2, 2)
    _, report = read_bytes(tmp_path / "t.jsonl", data + b"{]\n" + LINES[2][:40])
    assert (report.garbage.lines, report.torn.first) == (3, 6)


def test_reading_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = tmp_path / "t.jsonl"
    path.write_bytes(SMALL)
    list(read(path, progress=lambda done, total: told.append((done, total))))
    assert told[-1] == (len(SMALL), len(SMALL))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is empty"):
        read_bytes(tmp_path / "t", b"")


@pytest.mark.parametrize("data", [b"hello\n", b"\x00" * 999, b'{"a": 1}\n', b"[" * 5000, b"\n\n"])
def test_what_is_not_a_trace_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TraceError, match="not a trace"):
        read_bytes(tmp_path / "t", data)


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        list(read(tmp_path / "none"))
    assert not is_trace(tmp_path / "none")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(edits=[(1, b"\n", 0)])
@given(
    st.lists(
        st.tuples(st.integers(0, len(SMALL) - 1), st.binary(max_size=3), st.integers(0, 40)),
        min_size=1,
        max_size=8,
    )
)
def test_no_mutation_of_a_trace_breaks_the_reader(
    tmp_path: Path, edits: list[tuple[int, bytes, int]]
) -> None:
    data = bytearray(SMALL)
    for at, insert, remove in edits:
        data[at : at + remove] = insert
    report = ReadReport()
    (tmp_path / "t").write_bytes(data)
    try:
        records = list(read(tmp_path / "t", report))
    except TraceError:
        return
    lines = sum(bool(line.strip()) for line in bytes(data).split(b"\n"))
    skipped = (report.torn, report.garbage, report.damaged, report.unknown)
    assert len(records) + sum(s.lines for s in skipped) == lines


def test_trace_names_sort_by_time_in_one_zone(tmp_path: Path) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    path = new_trace_path(tmp_path, "bench", now=noon)
    assert path == tmp_path / f"20260101-120000-bench-{os.getpid()}.jsonl"
    elsewhere = noon.astimezone(timezone(timedelta(hours=9)))
    assert new_trace_path(tmp_path, "bench", now=elsewhere) == path


def test_a_second_trace_in_the_same_second_gets_its_own_name(tmp_path: Path) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    paths = []
    for _ in range(3):
        paths.append(new_trace_path(tmp_path, "run", now=noon))
        paths[-1].write_bytes(SMALL)
    assert len(set(paths)) == 3
    assert not prune(tmp_path)


def test_a_kind_that_could_leave_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="small letters"):
        new_trace_path(tmp_path, "../run")


def traces(folder: Path, count: int) -> list[Path]:
    paths = [
        new_trace_path(folder, "run", now=datetime(2026, 1, 1 + i, tzinfo=UTC))
        for i in range(count)
    ]
    for path in paths:
        path.write_bytes(b"x" * 100)
    return paths


def test_the_newest_trace_is_found_by_its_name(tmp_path: Path) -> None:
    paths = traces(tmp_path, 3)
    paths[0].touch()
    (tmp_path / "zzz.jsonl").write_text("not ours")
    assert newest_trace(tmp_path) == paths[2]


def test_no_trace_yet_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no trace in"):
        newest_trace(tmp_path / "absent")


def test_pruning_removes_the_oldest_beyond_the_count(tmp_path: Path) -> None:
    paths = traces(tmp_path, 5)
    assert prune(tmp_path, max_files=2) == paths[:3]
    assert sorted(tmp_path.iterdir()) == paths[3:]


def test_pruning_keeps_within_the_bytes(tmp_path: Path) -> None:
    paths = traces(tmp_path, 5)
    assert prune(tmp_path, max_bytes=250) == paths[:3]


def test_pruning_never_removes_the_newest_or_what_is_not_ours(tmp_path: Path) -> None:
    paths = traces(tmp_path, 2)
    foreign = tmp_path / "20200101-000000-mine.jsonl"
    foreign.write_text("keep")
    link = tmp_path / "20200101-000000-run-1.jsonl"
    link.symlink_to(foreign)
    prune(tmp_path, max_files=0, max_bytes=0)
    assert set(tmp_path.iterdir()) == {paths[1], foreign, link}


@given(
    cycle=st.lists(st.integers(0, 9), min_size=1, max_size=64),
    repeats=st.integers(4, 8),
    head=st.lists(st.integers(10, 19), max_size=100),
    rest=st.integers(0, 63),
)
def test_a_cycle_that_fills_half_of_the_text_is_a_loop(
    cycle: list[int], repeats: int, head: list[int], rest: int
) -> None:
    tail = cycle * repeats + cycle[: rest % len(cycle)]
    head = head[: len(tail)]
    assert looping(head + tail) == (len(tail) >= 16)


@given(st.permutations(range(80)))
def test_a_text_without_repetition_is_no_loop(tokens: list[int]) -> None:
    assert not looping(tokens)


def test_a_loop_that_covers_less_than_half_is_no_loop() -> None:
    assert not looping([*range(100, 117), *([7] * 16)])


def test_three_repeats_are_no_loop() -> None:
    assert not looping(list(range(20)) * 3)


def test_a_loop_the_text_came_out_of_is_no_loop() -> None:
    assert not looping([7] * 40 + [1, 2, 3])


def test_a_period_over_64_is_no_loop() -> None:
    assert not looping(list(range(65)) * 6)


def test_a_second_writer_of_the_same_file_is_refused_until_the_first_is_done(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.jsonl"
    with TraceWriter(path), pytest.raises(TraceError, match="another process is writing"):
        TraceWriter(path)
    TraceWriter(path).close()
