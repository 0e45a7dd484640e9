"""`mtpx chat` without a terminal: questions from a pipe, answers on stdout, the rest on stderr."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command import Command
from tiny_pack import make_tiny_pack, write_manifest

from mtpx.trace.reader import read
from mtpx.trace.schema import EndRecord, RequestRecord

SHORT = ("--temperature", "0", "--max-tokens", "8")


@pytest.fixture
def chat(mtpx: Command, tiny_pack: Path) -> Any:
    def chat(*lines: str | bytes, options: tuple[str, ...] = (), pack: Path = tiny_pack) -> Any:
        stdin = b"".join((x.encode() if isinstance(x, str) else x) + b"\n" for x in lines)
        return mtpx("chat", str(pack), *SHORT, *options, stdin=stdin)

    return chat


def answer(mtpx: Command, pack: Path, *messages: str) -> str:
    return mtpx("run", *messages, "--pack", str(pack), *SHORT, "--quiet").out


def test_every_line_is_a_question_and_every_answer_ends_its_line(
    chat: Any, mtpx: Command, tiny_pack: Path
) -> None:
    done = chat("Hello", "", "And?")
    assert done.status == 0
    assert done.out.startswith(answer(mtpx, tiny_pack, "Hello"))
    assert done.out.endswith("\n")
    assert done.err.count("8 tokens; ") == 2
    assert done.err.startswith("tiny with an MTP head (up to 4 drafts a round)\n")


def test_quiet_leaves_the_answers_alone(chat: Any) -> None:
    done = chat("Hello", options=("--quiet",))
    assert (done.status, done.err) == (0, "")


def test_three_quotes_make_one_question_of_several_lines(chat: Any, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    chat('"""', "one", "two", '"""', '"""three"""', f"/save {file}")
    said = [m["content"] for m in json.loads(file.read_text())["messages"] if m["role"] == "user"]
    assert said == ["one\ntwo", "three"]


def test_a_saved_conversation_holds_the_system_prompt_and_every_turn(
    chat: Any, tmp_path: Path
) -> None:
    file = tmp_path / "c.json"
    chat("Hello", "/system Be kind", "And?", f"/save {file}")
    roles = [m["role"] for m in json.loads(file.read_text())["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]


def test_an_unknown_command_offers_the_nearest(chat: Any) -> None:
    done = chat("/regn")
    assert "there is no command /regn; did you mean /regen?" in done.err
    assert done.status == 2


def test_a_space_first_sends_a_slash_to_the_model(chat: Any) -> None:
    done = chat(" /regn is no command")
    assert done.status == 0
    assert done.out


def test_bytes_that_are_no_text_are_said_and_the_next_line_is_answered(chat: Any) -> None:
    done = chat(b"\xff\xfe", "Hello")
    assert "line 1 of stdin is not valid UTF-8 (byte 0)" in done.err
    assert (done.status, done.out != "") == (2, True)


@pytest.mark.parametrize("text", ["🙂 e\u0301 שלום עולם", "日本語のテキスト"])
def test_any_script_goes_in_and_comes_back_in_a_saved_file(
    chat: Any, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "c.json"
    assert chat(text, f"/save {file}").status == 0
    assert json.loads(file.read_text())["messages"][0]["content"] == text


def test_a_question_of_a_megabyte_is_refused_in_a_sentence(chat: Any) -> None:
    done = chat("x " * 500_000, "Hello")
    assert "more than fit in the context" in done.err
    assert (done.status, done.out != "") == (2, True)


def test_when_the_context_is_full_a_line_says_that_turns_left(chat: Any) -> None:
    done = chat(*["a question of some length, again"] * 12)
    assert done.status == 0
    assert "the context is full: the oldest 1 turn left it" in done.err


def test_depth_off_decodes_plain_and_the_line_says_why(chat: Any) -> None:
    done = chat("/depth off", "Hello", "/depth 2", "Hello", "/depth 9", "/depth x")
    plain, mtp = [line for line in done.err.splitlines() if line.startswith("8 tokens")]
    assert "; plain: switched off" in plain
    assert "; depth 2, accepted " in mtp
    assert "depth 9 is beyond this head's limit of 4" in done.err
    assert "depth is a number of drafts a round, off or auto; got x" in done.err


def test_a_folder_without_a_head_is_decoded_plain_and_says_so(chat: Any, tmp_path: Path) -> None:
    folder = make_tiny_pack(tmp_path / "bare", head=False) / "weights"
    done = chat("Hello", pack=folder)
    assert done.status == 0
    assert done.err.startswith("weights without an MTP head: it decodes plain\n")
    assert "; plain: the pack has no MTP head" in done.err


def test_set_changes_what_the_next_answer_does(chat: Any) -> None:
    done = chat(
        "/set max_tokens 3", "Hello", "/set temperature -1", "/set tempratur 1", "/set top_k"
    )
    assert "\n3 tokens; " in done.err
    assert "/set: temperature must be from 0 to 100, got -1" in done.err
    assert "tempratur cannot be set here; did you mean temperature?" in done.err
    assert "say what top_k is to be: /set top_k VALUE" in done.err


def test_undo_regen_and_edit_act_on_the_last_turn(chat: Any, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    done = chat("one", "two", "/undo", "/edit three", "/regen", f"/save {file}")
    assert done.status == 0
    said = [m["content"] for m in json.loads(file.read_text())["messages"] if m["role"] == "user"]
    assert said == ["three"]
    assert "taken back: two" in done.err
    assert "the temperature is 0: the answer can only be the same" in done.err


@pytest.mark.parametrize("command", ["/undo", "/regen", "/edit x", "/save", "/load", "/load /nope"])
def test_a_command_that_cannot_be_done_says_why_and_the_chat_goes_on(
    chat: Any, command: str
) -> None:
    done = chat(command, "Hello")
    assert done.status == 2
    assert len([line for line in done.err.splitlines() if line.startswith("mtpx: ")]) == 1
    assert done.out


def test_a_saved_conversation_goes_on_where_it_was(chat: Any, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    whole = chat("one", "two").out
    first = chat("one", f"/save {file}").out
    assert whole == first + chat(f"/load {file}", "two").out.removeprefix(first)


def test_one_turn_is_counted_as_one(chat: Any, tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    assert f"saved 1 turn to {file}" in chat("one", f"/save {file}").err
    assert "loaded 1 turn\n" in chat(f"/load {file}").err


def test_saving_replaces_a_conversation_and_nothing_else(chat: Any, tmp_path: Path) -> None:
    other = tmp_path / "notes.json"
    other.write_text('{"mine": 1}')
    done = chat("one", f"/save {other}")
    assert "exists and is not a conversation" in done.err
    assert other.read_text() == '{"mine": 1}'


def test_quit_leaves_at_once(chat: Any) -> None:
    done = chat("/quit", "Hello")
    assert (done.status, done.out) == (0, "")


def test_thinking_without_a_switch_in_the_template_says_so(chat: Any) -> None:
    done = chat("Hello", options=("--thinking", "on"))
    assert "this model's template has no switch for thinking" in done.err
    assert done.status == 0


def test_a_template_that_thinks_is_told_whether_to(chat: Any, tmp_path: Path) -> None:
    pack = make_tiny_pack(tmp_path / "thinks")
    config = pack / "weights" / "tokenizer_config.json"
    config.write_text(
        json.dumps(
            {
                "chat_template": "{{ 'T' if enable_thinking else 'NOT' }}",
                "eos_token": "<|im_end|>",
            }
        )
    )
    write_manifest(pack)
    for thinking, seen in (("on", {"T"}), ("off", {"T", "NOT"})):
        chat("x", pack=pack, options=("--thinking", thinking, "--trace-text"))
        records = [record for trace in traces(tmp_path) for record in read(trace)]
        assert {r.text for r in records if isinstance(r, RequestRecord)} == seen


def test_a_template_that_refuses_is_a_sentence_and_the_chat_goes_on(
    chat: Any, tmp_path: Path
) -> None:
    pack = make_tiny_pack(tmp_path / "refuses")
    config = pack / "weights" / "tokenizer_config.json"
    template = "{{ raise_exception('no') if 'bad' in messages[-1].content else 'ok' }}"
    config.write_text(json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
    write_manifest(pack)
    done = chat("bad", "good", pack=pack)
    assert "mtpx: the chat template refuses the messages: no" in done.err
    assert (done.status, done.out != "") == (2, True)


def test_a_template_that_tries_to_escape_is_stopped(chat: Any, tmp_path: Path) -> None:
    pack = make_tiny_pack(tmp_path / "escapes")
    config = pack / "weights" / "tokenizer_config.json"
    template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    config.write_text(json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
    write_manifest(pack)
    done = chat("Hello", pack=pack)
    assert "do not trust this pack" in done.err
    assert (done.status, done.out) == (2, "")


# Traces


def traces(own_folders: Path) -> list[Path]:
    return sorted((own_folders / "state" / "traces").glob("*-chat-*.jsonl"))


def test_a_chat_is_traced_in_one_file_without_its_text(chat: Any, own_folders: Path) -> None:
    chat("Hello", "And?")
    (trace,) = traces(own_folders)
    requests = [r for r in read(trace) if isinstance(r, RequestRecord)]
    assert [r.text for r in requests] == [None, None]
    assert len({r.session for r in requests} - {0}) == 1
    assert [r.stop for r in read(trace) if isinstance(r, EndRecord)] == ["length", "length"]


def test_without_traces_nothing_is_written(chat: Any, own_folders: Path) -> None:
    chat("Hello", options=("--no-trace",))
    assert traces(own_folders) == []


def test_a_state_folder_that_cannot_be_written_is_said_once(chat: Any, own_folders: Path) -> None:
    (own_folders / "state").write_text("a file where the folder belongs")
    done = chat("Hello", "And?")
    assert done.status == 0
    assert done.err.count("this chat leaves no trace") == 1
    assert done.err.count("8 tokens; ") == 2


# Ctrl-C


def test_ctrl_c_in_a_pipe_keeps_what_was_made_and_leaves_with_130(
    chat: Any, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtpx_torch.engine import TorchEngine

    real, calls = TorchEngine.plain, iter(range(1, 100))

    def plain(self: Any, slots: Any) -> Any:
        if next(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return real(self, slots)

    whole = chat("Hello", options=("--depth", "off", "--quiet")).out
    monkeypatch.setattr(TorchEngine, "plain", plain)
    done = chat("Hello", "And?", options=("--depth", "off"))
    assert done.status == 130
    assert 0 < len(done.out) < len(whole)
    assert done.out.endswith("\n")
    assert "; stopped\n" in done.err
    records = [record for trace in traces(own_folders) for record in read(trace)]
    stops = [r.stop for r in records if isinstance(r, EndRecord)]
    assert sorted(stops) == ["interrupt", "length"]
