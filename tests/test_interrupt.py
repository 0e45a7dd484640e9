"""Ctrl-C, wherever it comes: what was made is kept, the trace ends with a record, the status is 130."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from command import Command, process

from mtpx.trace.reader import read
from mtpx.trace.schema import EndRecord, RequestRecord
from mtpx_torch.engine import TorchEngine

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as a POSIX shell sends them")


@pytest.fixture
def pack(tiny_pack: Path) -> tuple[str, ...]:
    return ("--pack", str(tiny_pack), "--temperature", "0", "--max-tokens", "8")


def interrupt(monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> None:
    """Sends this process SIGINT when the engine's `method` is called for the `call`-th time."""
    real, calls = getattr(TorchEngine, method), iter(range(1, 1000))

    def wrapped(self: Any, *args: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return real(self, *args)

    monkeypatch.setattr(TorchEngine, method, wrapped)


@pytest.mark.parametrize(("method", "depth"), [("plain", "off"), ("verify", "2"), ("propose", "2")])
def test_in_decode_the_text_so_far_stays_and_is_a_whole_line(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch, method: str, depth: str
) -> None:
    whole = mtpx("run", "Hello", *pack).out
    interrupt(monkeypatch, method, 3)
    done = mtpx("run", "Hello", *pack, "--depth", depth)
    assert done.status == 130
    assert done.out.endswith("\n")
    assert 0 < len(done.out) < len(whole)
    assert whole.startswith(done.out.removesuffix("\n").removesuffix("\ufffd"))
    assert done.err.endswith("; interrupted\n")


def test_in_decode_json_holds_what_was_made(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, "plain", 4)
    done = mtpx("run", "Hello", *pack, "--depth", "off", "--json", "--quiet")
    found = json.loads(done.out)
    assert (done.status, done.err) == (130, "")
    assert (found["stop"], found["tokens"], found["rounds"]) == ("interrupt", 3, 3)


def test_in_decode_the_trace_ends_with_a_record(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt(monkeypatch, "plain", 4)
    path = tmp_path / "t.jsonl"
    mtpx("run", "Hello", *pack, "--depth", "off", "--trace", str(path))
    *_, end = read(path)
    assert isinstance(end, EndRecord)
    assert (end.stop, end.tokens) == ("interrupt", 3)


def test_in_prefill_nothing_is_printed_and_the_trace_ends_with_a_record(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt(monkeypatch, "prefill", 1)
    path = tmp_path / "t.jsonl"
    done = mtpx("run", "Hello", *pack, "--trace", str(path))
    assert (done.status, done.out) == (130, "")
    assert done.err.startswith("0 tokens; ")
    _, request, end = read(path)
    assert isinstance(request, RequestRecord)
    assert isinstance(end, EndRecord)
    assert (request.prefill_ms, end.stop) == (None, "interrupt")


def test_in_prefill_the_progress_line_is_taken_away(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtpx.generation.PREFILL_CHUNK", 10)
    monkeypatch.setattr("mtpx_cli.run.is_terminal", lambda stream: stream is sys.stderr)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *args: False)
    interrupt(monkeypatch, "prefill", 2)
    done = mtpx("run", "--raw", "<|im_end|>" * 25, *pack)
    assert "reading the prompt: 10 of 25 tokens\r\x1b[K0 tokens; " in done.err


def test_a_second_one_while_the_first_is_dealt_with_leaves_quietly(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtpx.generation import Stream

    def again(self: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    interrupt(monkeypatch, "plain", 2)
    monkeypatch.setattr(Stream, "_leave", again)
    done = mtpx("run", "Hello", *pack, "--depth", "off")
    assert done.status == 130


def test_in_loading_it_leaves_quietly(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtpx_torch import TorchBackend

    def load(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TorchBackend, "load", load)
    done = mtpx("run", "Hello", *pack)
    assert (done.status, done.out, done.err) == (130, "", "")


def test_in_a_fetch_the_process_leaves_quietly(own_folders: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        index = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
        running = process("run", "Hello", "--pack", "smollm2-135m", env={"MTPX_INDEX_URL": index})
        caller, _ = server.accept()  # and never answered
        with caller:
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, b"", b"")
