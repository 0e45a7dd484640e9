"""Conversations under a name: what is there the next time, and what bad files come to."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors import safe_open
from tiny_pack import make_tiny_pack

import mtpx
from mtpx import frozen, transcript
from mtpx.carry import Adopted
from mtpx.errors import MtpxError, SessionError
from mtpx.session import Session, Turn
from mtpx.sessions import CONVERSATION, STATE, Kept, drop, info, make_room, sessions

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "depth": 2}
GIGABYTE = 10**9

Open = Callable[..., Kept]


@pytest.fixture(scope="module")
def model(tiny_pack: Path) -> Iterator[mtpx.Model]:
    with mtpx.load(tiny_pack, threads=1) as loaded:
        yield loaded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def reopened(folder: Path, warnings: list[str]) -> Iterator[Open]:
    """Opens a session, closing the one that was opened before, as another process would find it."""
    opened: list[Kept] = []

    def reopened(name: str = "one", budget: int = GIGABYTE) -> Kept:
        for before in opened:
            before.close()
        opened.append(Kept(folder, name, budget=budget, warn=warnings.append))
        return opened[-1]

    yield reopened
    for kept in opened:
        kept.close()


def ask(session: Session, question: str, **options: Any) -> Any:
    reply = session.ask(question, **{**GREEDY, **options})
    for _ in reply:
        pass
    return reply.result


def talked(kept: Kept, model: mtpx.Model, *questions: str, **options: Any) -> Session:
    """A chat from start to end."""
    session = Session(model)
    kept.restore(session)
    for question in questions:
        ask(session, question, **options)
        kept.after_turn(session)
    kept.finish(session)
    return session


def test_a_conversation_goes_on_warm_where_it_was(
    reopened: Open, model: mtpx.Model, warnings: list[str]
) -> None:
    before = talked(reopened(), model, "Hello, who are you?", "And then?")
    session = Session(model)
    reopened().restore(session)
    assert session.turns == before.turns
    result = ask(session, "More")
    assert result.reused.tokens > result.prompt_tokens / 2
    assert isinstance(result.reused.carry, Adopted)
    told = session.messages(session.turns[:-1], "More")
    assert result.token_ids == model.generate(told, **GREEDY).token_ids
    assert warnings == []


def test_the_head_drafts_after_a_restart_as_it_would_have_before(
    reopened: Open, model: mtpx.Model
) -> None:
    live = talked(reopened(), model, "Hello, who are you?", "And then?")
    restarted = Session(model)
    reopened().restore(restarted)
    a, b = ask(live, "More", max_tokens=24), ask(restarted, "More", max_tokens=24)
    assert a.accepted_per_position == b.accepted_per_position
    assert a.token_ids == b.token_ids


def test_a_state_is_a_safetensors_file_that_the_library_reads(
    reopened: Open, model: mtpx.Model, folder: Path
) -> None:
    session = talked(reopened(), model, "Hello")
    with safe_open(folder / "one" / STATE, framework="np") as file:
        tokens = file.get_tensor(frozen.TOKENS)
        header = msgspec.json.decode(file.metadata()[frozen.HEADER], type=frozen.Header)
    assert len(tokens) == session.used
    assert header.key == frozen.StateKey.of(model)


def test_a_taken_back_turn_is_gone_the_next_time(reopened: Open, model: mtpx.Model) -> None:
    kept = reopened()
    session = talked(kept, model, "Hello", "And?")
    session.undo()
    kept.after_turn(session)
    assert [turn.question for turn in reopened().turns] == ["Hello"]


def test_nothing_said_leaves_no_file(reopened: Open, model: mtpx.Model, folder: Path) -> None:
    talked(reopened(), model)
    assert sessions(folder) == []


# The second one is told


def test_a_second_chat_on_one_session_is_told(folder: Path, reopened: Open) -> None:
    reopened()
    with pytest.raises(SessionError, match="session one is open in another chat; close that one"):
        Kept(folder, "one", budget=GIGABYTE, warn=print)
    (folder / "one" / CONVERSATION).write_text('{"messages": []}')
    with pytest.raises(SessionError, match="open in another chat"):
        drop(folder, "one")


def test_a_closed_session_is_free_again(folder: Path, reopened: Open) -> None:
    reopened().close()
    Kept(folder, "one", budget=GIGABYTE, warn=print).close()


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "x" * 65, "a b", "é"])
def test_a_name_that_is_no_folders_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(SessionError, match="cannot be a session's name"):
        Kept(folder, name, budget=GIGABYTE, warn=print)


# Bad files


def cold(reopened: Open, model: mtpx.Model, warnings: list[str]) -> str:
    """The one sentence with which the session starts cold; its transcript is there, and it answers."""
    kept = reopened()
    session = Session(model)
    kept.restore(session)
    assert [turn.question for turn in session.turns] == ["Hello"]
    (said,) = warnings
    assert said.startswith("session one: what was computed cannot be used: ")
    assert said.endswith("; it starts cold")
    assert ask(session, "And?").reused.tokens == 0
    kept.finish(session)
    return said


def test_a_state_of_another_pack_starts_cold(
    reopened: Open, model: mtpx.Model, warnings: list[str], tmp_path: Path
) -> None:
    other = make_tiny_pack(tmp_path / "other", head=False)
    with mtpx.load(other, threads=1) as loaded:
        talked(reopened(), loaded, "Hello", depth="off")
    assert "it was made with another head" in cold(reopened, model, warnings)


def test_a_state_under_another_template_starts_cold(
    reopened: Open, model: mtpx.Model, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talked(reopened(), model, "Hello")
    assert model.template is not None
    monkeypatch.setattr(model.template, "source", "other")
    assert "it was made with another chat template" in cold(reopened, model, warnings)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_state_starts_cold(
    reopened: Open, model: mtpx.Model, warnings: list[str], folder: Path, share: float
) -> None:
    talked(reopened(), model, "Hello")
    path = folder / "one" / STATE
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert "it is damaged" in cold(reopened, model, warnings)


def test_a_state_from_the_future_starts_cold_and_is_left_alone(
    reopened: Open, model: mtpx.Model, warnings: list[str], folder: Path
) -> None:
    talked(reopened(), model, "Hello")
    path = folder / "one" / STATE
    data = path.read_bytes().replace(rb"{\"version\":1,", rb"{\"version\":9,", 1)
    path.write_bytes(data)
    assert "a newer mtpx made it (version 9" in cold(reopened, model, warnings)
    assert path.read_bytes() == data


def test_numbers_that_do_not_fit_start_cold(
    reopened: Open, model: mtpx.Model, warnings: list[str], folder: Path
) -> None:
    talked(reopened(), model, "Hello")
    path = folder / "one" / STATE
    data = path.read_bytes()
    at = data.index(rb"\"head_rows\":") + len(rb"\"head_rows\":")
    path.write_bytes(data[:at] + b"9" + data[at + 1 :])
    assert "does not fit this model" in cold(reopened, model, warnings)


def test_a_transcript_that_is_none_is_left_as_it_is(folder: Path) -> None:
    path = folder / "one" / CONVERSATION
    path.parent.mkdir(parents=True)
    path.write_text("hello")
    with pytest.raises(SessionError, match=r"cannot be gone on with: .* is not a conversation"):
        Kept(folder, "one", budget=GIGABYTE, warn=print)
    assert path.read_text() == "hello"
    assert "is not a conversation" in info(folder, "one").error


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_and_what_was_kept_is_intact(
    reopened: Open,
    model: mtpx.Model,
    warnings: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talked(reopened(), model, "Hello")
    before = (folder / "one" / STATE).read_bytes()
    monkeypatch.setattr(frozen, "write_safetensors", full_disk)
    talked(reopened(), model, "And?")
    assert warnings == [
        "session one: what was computed cannot be kept: No space left on device; what was kept before "
        "is intact"
    ]
    assert (folder / "one" / STATE).read_bytes() == before
    assert {p.name for p in (folder / "one").iterdir()} == {CONVERSATION, STATE, "lock"}


def test_a_transcript_that_cannot_be_written_is_said_at_once_and_at_the_end(
    reopened: Open, model: mtpx.Model, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript.digests, "write_atomically", full_disk)
    talked(reopened(), model, "Hello", "And?", "More")
    assert len(warnings) == 2
    assert all("what is said now is not saved" in said for said in warnings)


def test_a_folder_that_cannot_be_written_lets_the_chat_go_on(
    reopened: Open, model: mtpx.Model, warnings: list[str], folder: Path
) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder belongs")
    session = talked(reopened(), model, "Hello")
    assert len(session.turns) == 1
    assert "it cannot be kept in" in warnings[0]


# The budget


def test_a_state_larger_than_the_budget_is_not_kept(
    reopened: Open, model: mtpx.Model, warnings: list[str], folder: Path
) -> None:
    talked(reopened(budget=1000), model, "Hello")
    assert "more than the budget of 0 MB (session-budget)" in warnings[0]
    assert (info(folder, "one").turns, info(folder, "one").state_bytes) == (1, 0)


def test_the_oldest_states_make_room_and_every_transcript_stays(folder: Path) -> None:
    for age, name in enumerate(["new", "older", "oldest"]):
        path = folder / name / STATE
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(100))
        (folder / name / CONVERSATION).write_text('{"messages": []}')
        os.utime(path, (1e9 - age, 1e9 - age))
    make_room(folder, 200, spare="nobody")
    assert sorted(p.parent.name for p in folder.glob(f"*/{STATE}")) == ["new", "older"]
    make_room(folder, 50, spare="older")
    assert sorted(p.parent.name for p in folder.glob(f"*/{STATE}")) == ["older"]
    assert len(sessions(folder)) == 3


# Killed


STOPS_HALFWAY = """
import sys, time
from pathlib import Path
import numpy as np
import mtpx.frozen as frozen
from mtpx.checkpoint import Tensor

class Halfway(dict):
    def values(self):
        for value in super().values():
            yield value
            print("half", flush=True)
            time.sleep(600)

write = frozen.write_safetensors
frozen.write_safetensors = lambda file, tensors, told: write(file, Halfway(tensors), told)
big = Tensor("a", (250_000,), "F32", np.zeros(1_000_000, dtype=np.uint8))
key = frozen.StateKey("", "", "", "", "", "", "")
frozen.write(Path(sys.argv[1]), frozen.Frozen([1], 1, {"a": big}), key)
"""


def test_a_process_killed_while_it_saves_leaves_the_save_before_intact(
    reopened: Open, model: mtpx.Model, folder: Path, warnings: list[str]
) -> None:
    """The writer is stopped in the middle of the file and then killed, as `kill -9` would."""
    talked(reopened(), model, "Hello")
    before = (folder / "one" / STATE).read_bytes()
    writer = subprocess.Popen(
        [sys.executable, "-c", STOPS_HALFWAY, str(folder / "one" / STATE)], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"half\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert (folder / "one" / STATE).read_bytes() == before
    assert len(list((folder / "one").glob(f".{STATE}.*"))) == 1
    session = Session(model)
    reopened().restore(session)
    assert list((folder / "one").glob(f".{STATE}.*")) == []
    assert ask(session, "And?").reused.tokens > 0
    assert warnings == []


# Listing and dropping


def test_the_list_begins_with_the_one_used_last(
    reopened: Open, model: mtpx.Model, folder: Path
) -> None:
    talked(reopened("first"), model, "Hello")
    talked(reopened("second"), model, "Hello", "And?")
    past = time.time() - 100
    for path in (folder / "first").iterdir():
        os.utime(path, (past, past))
    assert [(i.name, i.turns) for i in sessions(folder)] == [("second", 2), ("first", 1)]


def test_dropping_deletes_the_conversation(reopened: Open, model: mtpx.Model, folder: Path) -> None:
    kept = reopened()
    talked(kept, model, "Hello")
    kept.close()
    drop(folder, "one")
    assert sessions(folder) == []
    with pytest.raises(MtpxError, match="there is no session 'one'"):
        drop(folder, "one")


def test_what_is_kept_is_what_was_said(reopened: Open, model: mtpx.Model, folder: Path) -> None:
    session = talked(reopened(), model, "Hello")
    assert transcript.load(folder / "one" / CONVERSATION) == ("", session.turns)
    assert session.turns == [Turn("Hello", session.turns[0].answer)]
