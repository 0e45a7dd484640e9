"""`mtpx run` from the outside, on a pack small enough to run for real."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command import Command, process
from tiny_pack import CONTEXT, save_head_for, write_manifest

from mtpx.answer import Generation, Position
from mtpx.sampling import Sampling
from mtpx.trace.reader import read
from mtpx.trace.schema import EndRecord, RequestRecord
from mtpx_cli.run import figure, summary

FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


@pytest.fixture
def pack(tiny_pack: Path) -> tuple[str, ...]:
    """The options of a quick greedy answer from the tiny pack."""
    return ("--pack", str(tiny_pack), "--temperature", "0", "--max-tokens", "8")


def generation(**changes: Any) -> Generation:
    whole: dict[str, Any] = {
        "text": "x",
        "tokens": 8,
        "token_ids": [1] * 8,
        "prompt_tokens": 3,
        "tok_s": 123.4,
        "prefill_ms": 1.0,
        "ttft_ms": 20.0,
        "rounds": 5,
        "accepted_per_position": [Position(4, 3, 0.75), Position(0, 0, None)],
        "stop": "end",
        "depth": 2,
        "speculation": "on",
        "pack": "p",
        "backend": "b",
        "device": "d",
        "seed": 0,
        "sampling": Sampling(),
    }
    return Generation(**{**whole, **changes})


# What is printed


def test_the_answer_is_on_stdout_and_the_summary_on_stderr(mtpx: Command, pack: Any) -> None:
    done = mtpx("run", "Hello", *pack)
    whole = json.loads(mtpx("run", "Hello", *pack, "--json").out)
    assert done.status == 0
    assert done.out == whole["text"] + "\n"
    assert done.err.startswith("8 tokens; ")
    assert re.search(r"; adaptive: \d\.\d drafts a round, accepted ", done.err)
    assert done.err.endswith("; stopped at --max-tokens\n")


def test_without_a_terminal_the_weights_progress_is_a_line_now_and_then(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtpx_cli.loading.PATIENCE_S", 0.0)
    err = mtpx("run", "Hello", *pack).err
    assert err.startswith("fetching and checking the model: 0 of 0 MB\n")
    assert "checking" not in mtpx("run", "Hello", *pack, "--quiet").err


def test_quiet_prints_the_answer_alone(mtpx: Command, pack: Any) -> None:
    assert mtpx("run", "Hello", *pack, "--quiet").err == ""


def test_json_is_one_line_with_every_figure(mtpx: Command, pack: Any) -> None:
    done = mtpx("run", "Hello", *pack, "--json", "--depth", "2", "--logprobs", "1")
    assert done.out.count("\n") == 1
    found = json.loads(done.out)
    fields = set(Generation.__struct_fields__)
    assert found.keys() | {"looped", "energy_j", "reused"} == fields
    assert (found["tokens"], found["stop"], found["depth"]) == (8, "length", 2)
    assert len(found["logprobs"]) == found["tokens"] == len(found["token_ids"])


@pytest.mark.parametrize("field", Generation.__struct_fields__)
def test_every_json_key_is_documented_in_the_docs_and_in_the_help(
    mtpx: Command, field: str
) -> None:
    docs = Path(__file__).parent.parent / "docs" / "json.md"
    assert f"`{field}`" in docs.read_text()
    assert field in mtpx("run", "--help").out


def test_the_docs_of_the_json_name_every_way_to_stop() -> None:
    docs = (Path(__file__).parent.parent / "docs" / "json.md").read_text()
    reasons = Generation.__annotations__["stop"]
    assert reasons == "Stop"
    for stop in ("end", "length", "context", "stop", "interrupt"):
        assert f"`{stop}`: " in docs


def test_the_prompt_may_come_from_stdin(mtpx: Command, pack: Any) -> None:
    given = mtpx("run", "Grüße", *pack)
    assert mtpx("run", "-", *pack, stdin="Grüße".encode()).out == given.out
    assert mtpx("run", *pack, stdin="Grüße".encode()).out == given.out


def test_the_pack_used_last_is_the_default(mtpx: Command, pack: Any) -> None:
    first = mtpx("run", "Hello", *pack)
    assert mtpx("run", "Hello", *pack[2:]).out == first.out


def test_every_sampling_option_reaches_the_sampling(mtpx: Command, tiny_pack: Path) -> None:
    given = {
        "temperature": 0.5,
        "top_p": 0.75,
        "top_k": 20,
        "min_p": 0.125,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "logprobs": 2,
    }
    options = [part for k, v in given.items() for part in (f"--{k.replace('_', '-')}", str(v))]
    done = mtpx(
        "run", "x", "--pack", str(tiny_pack), "--max-tokens", "2", "--seed", "7", "--json", *options
    )
    found = json.loads(done.out)
    assert (found["sampling"], found["seed"]) == (given, 7)
    assert given.keys() == set(Sampling.__struct_fields__)


def test_a_stop_string_ends_the_answer(mtpx: Command, pack: Any) -> None:
    text = mtpx("run", "Hello", *pack).out
    stop = text[2:4]
    done = mtpx("run", "Hello", *pack, "--stop", "never", "--stop", stop)
    assert done.out == text[: text.index(stop)] + "\n"
    assert "stopped at a stop string" in done.err


def test_a_plain_run_says_so(mtpx: Command, pack: Any) -> None:
    assert "plain: switched off" in mtpx("run", "Hello", *pack, "--depth", "off").err


def test_a_trace_is_written_with_text_only_if_asked_for(
    mtpx: Command, pack: Any, tmp_path: Path
) -> None:
    for name, options in (("bare", []), ("text", ["--trace-text"])):
        done = mtpx("run", "Hello", *pack, "--trace", str(tmp_path / name), *options)
        assert done.status == 0
        (request,) = (r for r in read(tmp_path / name) if isinstance(r, RequestRecord))
        assert (request.text is not None) == bool(options)


def test_a_trace_of_a_run_is_one_the_report_reads(mtpx: Command, pack: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t.jsonl")
    mtpx("run", "Hello", *pack, "--trace", path)
    report = mtpx("trace", "report", path)
    assert (report.status, "tiny" in report.out) == (0, True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "8 tokens; 123 tok/s; first token 20.0 ms; depth 2, accepted 0.75 –"),
        ({"tokens": 1, "tok_s": None}, "1 token; first token 20.0 ms; depth 2, accepted 0.75 –"),
        ({"tokens": 0, "ttft_ms": None, "tok_s": None, "accepted_per_position": []},
         "0 tokens; nothing was drafted"),
        ({"tok_s": 0.0123, "ttft_ms": 12345.0, "speculation": "no head"},
         "8 tokens; 0.012 tok/s; first token 12.35 s; plain: no head"),
        ({"stop": "context", "speculation": "x", "looped": True, "tok_s": None, "ttft_ms": 0.01},
         "8 tokens; first token 0.01 ms; plain: x; the context of 99 tokens is full; "
         "the text repeats itself"),
    ],
)  # fmt: skip
def test_the_summary_says_what_a_person_wants_to_know(
    changes: dict[str, Any], expected: str
) -> None:
    assert summary(generation(**changes), context=99) == expected


@pytest.mark.parametrize(
    ("value", "shown"), [(1234.5, "1234"), (99.96, "100.0"), (1.0, "1.0"), (0.04, "0.04")]
)
def test_a_figure_keeps_the_digits_that_say_something(value: float, shown: str) -> None:
    assert figure(value) == shown


# What cannot be done as asked


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("",), "the prompt is empty"),
        ((" \n\t",), "the prompt is empty"),
        (("--raw", ""), "the prompt is empty"),
        (("-",), "the prompt is empty"),
        (("a\udcff",), "the prompt is not valid UTF-8"),
        (("x", "--system", "a\udcff"), "the system prompt is not valid UTF-8"),
        (("x", "--stop", "a\udcff"), "the stop string is not valid UTF-8"),
        (("x", "--stop", ""), "a stop string must not be empty"),
        (("x", "--max-tokens", "-3"), "max-tokens must be at least 1, got -3"),
        (("x", "--temperature", "nan"), "temperature must be from 0 to 100, got nan"),
        (("x", "--temperature", "1e999"), "temperature must be from 0 to 100, got inf"),
        (("x", "--top-p", "-1"), "top-p must be above 0 to 1, got -1"),
        (("x", "--top-k", "9" * 400), "top-k must be from 0 to 2.14748e+09, got a huge integer"),
        (("x", "--min-p", "2"), "min-p must be from 0 to 1, got 2"),
        (("x", "--repeat-penalty", "-inf"), "repeat-penalty must be from 0.01 to 100, got -inf"),
        (("x", "--logprobs", "101", "--json"), "logprobs must be from 0 to 100"),
        (("x", "--seed", "-1"), "seed must be from 0 to 18446744073709551615, got -1"),
        (("x", "--seed", str(2**64)), "seed must be from 0"),
        (("x", "--depth", "5"), "depth 5 is beyond this head's limit of 4 drafts a round"),
        (("x", "--depth", "9" * 30), "is beyond this head's limit"),
        (("x", "--backend", "abacus"), "there is no backend 'abacus'; installed: "),
        (("x", "--device", "abacus"), "'abacus' is no device"),
        (("x", "--device", "cuda:99"), "CUDA"),
        (("x", "--threads", "99999"), "threads must be from 1 to 1024, got 99999"),
        (("x", "--context", "99999"), "a context of 99999 tokens is outside what tiny can do"),
        (("x", "--trace-text"), "--trace-text needs --trace FILE"),
        (("x", "--raw", "--system", "y"), "there is no place for a system prompt"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_what_cannot_be_done_is_one_sentence_on_stderr_and_nothing_on_stdout(
    mtpx: Command, tiny_pack: Path, args: tuple[str, ...], sentence: str, as_json: bool
) -> None:
    json_option = ["--json"] if as_json else []
    done = mtpx("run", "--pack", str(tiny_pack), *json_option, *args)
    assert sentence in done.complaint


def test_log_probabilities_are_for_json_only(mtpx: Command, pack: Any) -> None:
    done = mtpx("run", "x", *pack, "--logprobs", "3")
    assert done.complaint == "--logprobs prints into JSON: add --json"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--depth", "fast"), "'fast' is neither a number of drafts nor off"),
        (("--depth", "-1"), "'-1' is neither a number of drafts nor off"),
        (("--max-tokens", "many"), "'many' is not a valid integer"),
        (("--temperature", "hot"), "'hot' is not a valid float"),
        (("--threads", "0"), "0 is not in the range"),
        (("--tempreture", "1"), "No such option"),
    ],
)
def test_an_option_that_cannot_be_read_is_told_with_its_usage(
    mtpx: Command, args: tuple[str, ...], sentence: str
) -> None:
    done = mtpx("run", "x", *args)
    assert (done.status, done.out) == (2, "")
    assert sentence in done.err


def test_a_prompt_longer_than_the_context_says_by_how_much(mtpx: Command, pack: Any) -> None:
    long = "<|im_end|>" * (CONTEXT + 9)
    assert (
        f"the prompt has {CONTEXT + 9} tokens, 10 more than fit in the context of {CONTEXT}"
        in mtpx("run", "--raw", long, *pack).complaint
    )


def test_stdin_that_is_no_text_is_told_with_the_byte(mtpx: Command, pack: Any) -> None:
    done = mtpx("run", "-", *pack, stdin=b"ab\xff")
    assert done.complaint.startswith("stdin is not valid UTF-8: byte 2 is 0xff")


def test_without_a_prompt_at_a_terminal_the_usage_is_shown(
    mtpx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtpx_cli.run.is_terminal", lambda stream: stream is sys.stdin)
    done = mtpx("run")
    assert done.status == 2
    assert 'Missing argument "PROMPT"' in done.err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("smollm2", "no pack is called 'smollm2'; did you mean 'smollm2-135m'?"),
        ("", "no pack was named"),
        ("./nothing/here", "there is no file or folder ./nothing/here"),
        ("a\0b", "no pack is called"),
        ("a\udcffb", "no pack is called"),
    ],
)
def test_an_unknown_pack_is_one_sentence(mtpx: Command, name: str, sentence: str) -> None:
    assert sentence in mtpx("run", "x", "--pack", name).complaint


@pytest.mark.parametrize("data", [b"", b"GGUF", b"PK\x03\x04 a zip", b"GGUF" + bytes(60)])
def test_a_file_that_is_no_gguf_is_one_sentence(mtpx: Command, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    assert "model.gguf" in mtpx("run", "x", "--pack", str(path)).complaint


def test_a_safetensors_file_cut_short_is_one_sentence(mtpx: Command, copied: Path) -> None:
    path = copied / "weights" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    write_manifest(copied)
    assert "cut short" in mtpx("run", "x", "--pack", str(copied)).complaint


def test_weights_that_are_not_the_manifests_are_one_sentence(mtpx: Command, copied: Path) -> None:
    path = copied / "weights" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "is not the file its manifest names" in mtpx("run", "x", "--pack", str(copied)).complaint


def test_a_head_that_is_not_the_manifests_is_one_sentence(mtpx: Command, copied: Path) -> None:
    (copied / "head.safetensors").write_bytes(b"something else")
    assert "is not the one its manifest names" in mtpx("run", "x", "--pack", str(copied)).complaint


def test_a_head_made_for_another_trunk_is_one_sentence(mtpx: Command, copied: Path) -> None:
    save_head_for(copied, hidden_size=64)
    write_manifest(copied)
    done = mtpx("run", "x", "--pack", str(copied))
    assert "this head does not fit the trunk: " in done.complaint
    assert "instead of 32" in done.complaint


def test_a_trace_that_cannot_be_written_is_one_sentence(
    mtpx: Command, pack: Any, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("not a trace\n")
    for path, sentence in (
        (tmp_path, "it is a directory"),
        (tmp_path / "notes", "exists and is not a trace"),
        (tmp_path / "notes" / "t.jsonl", "cannot be written"),
    ):
        assert sentence in mtpx("run", "x", *pack, "--trace", str(path)).complaint
    assert (tmp_path / "notes").read_text() == "not a trace\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_trace_that_may_not_be_written_is_one_sentence(
    mtpx: Command, pack: Any, tmp_path: Path
) -> None:
    tmp_path.chmod(0o500)
    done = mtpx("run", "x", *pack, "--trace", str(tmp_path / "t.jsonl"))
    assert "Permission denied" in done.complaint


@needs_full
def test_a_full_disk_costs_the_trace_and_not_the_answer(mtpx: Command, pack: Any) -> None:
    expected = mtpx("run", "Hello", *pack).out
    done = mtpx("run", "Hello", *pack, "--trace", str(FULL), "--quiet")
    assert (done.status, done.out) == (0, expected)
    (line,) = done.err.splitlines()
    assert "cannot be written any more (No space left on device)" in line


def test_an_error_in_mid_answer_ends_the_line_and_is_one_sentence(
    mtpx: Command, pack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtpx.errors import NonFiniteLogits
    from mtpx_torch.engine import TorchEngine

    real, rounds = TorchEngine.plain, iter(range(100))

    def plain(self: Any, slots: Any) -> Any:
        if next(rounds) == 3:
            raise NonFiniteLogits("the target's logits\nare not finite")
        return real(self, slots)

    monkeypatch.setattr(TorchEngine, "plain", plain)
    path = tmp_path / "t.jsonl"
    done = mtpx("run", "Hello", *pack, "--depth", "off", "--trace", str(path))
    assert done.status == 2
    assert done.err == "mtpx: the target's logits are not finite\n"
    assert done.out.strip()
    assert done.out.endswith("\n")
    (end,) = (r for r in read(path) if isinstance(r, EndRecord))
    assert (end.stop, end.tokens) == ("error", 3)


# The terminal and the shell


def test_escape_sequences_of_a_model_do_not_reach_a_terminal(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtpx.text import Detokenizer

    monkeypatch.setattr(Detokenizer, "push", lambda self, ids: "\x1b[31mA\r\n\té")
    options = (*pack, "--max-tokens", "1", "--depth", "off")
    assert mtpx("run", "x", *options).out.startswith("\x1b[31mA\r\n\té")
    monkeypatch.setattr("mtpx_cli.run.is_terminal", lambda stream: stream is sys.stdout)
    assert mtpx("run", "x", *options).out.startswith("\ufffd[31mA\n\té")


@pytest.mark.parametrize(("no_color", "styled"), [(None, True), ("", True), ("1", False)], ids=repr)
def test_colours_are_for_terminals_that_want_them(
    mtpx: Command, monkeypatch: pytest.MonkeyPatch, no_color: str | None, styled: bool
) -> None:
    monkeypatch.setattr("mtpx_cli.terminal.is_terminal", lambda stream: True)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *args: False)
    if no_color is None:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert ("\x1b[31m" in mtpx("run", "").err) == styled


def test_a_long_prompt_is_counted_on_a_terminal_and_the_line_is_gone_at_its_end(
    mtpx: Command, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtpx.generation.PREFILL_CHUNK", 10)
    monkeypatch.setattr("mtpx_cli.run.is_terminal", lambda stream: stream is sys.stderr)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *args: False)
    long = "<|im_end|>" * 25
    err = mtpx("run", "--raw", long, *pack).err
    assert "reading the prompt: 10 of 25 tokens\r\x1b[Kreading the prompt: 20 of 25" in err
    assert "25 tokens\r\x1b[K8 tokens; " in err
    assert "\x1b" not in mtpx("run", "--raw", long, *pack, "--quiet").err


def test_a_wrong_command_is_told_with_the_nearest(mtpx: Command) -> None:
    assert "No such command 'rum'. Did you mean 'run'?" in mtpx("rum").err
    assert "There are: chat, run, bench, " in mtpx("xyzzy").err


def test_help_shows_examples_a_line_each(mtpx: Command) -> None:
    done = mtpx("run", "--help")
    assert done.status == 0
    assert '  mtpx run "Name three rivers."\n  git diff | mtpx run - --system' in done.out


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["run", "--help"]])
def test_help_imports_no_array_library(args: list[str]) -> None:
    script = (
        "import sys\nsys.argv = ['mtpx', *sys.argv[1:]]\nfrom mtpx_cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code == 0\n"
        "heavy = {'numpy', 'torch', 'scipy', 'tokenizers', 'huggingface_hub', 'rich', 'msgspec'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"


def test_a_reader_that_goes_away_is_no_error(pack: Any, own_folders: Path) -> None:
    running = process("run", "Hello", *pack, "--max-tokens", "200", "--ignore-eos")
    assert running.stdout
    assert running.stderr
    running.stdout.read(1)
    running.stdout.close()
    assert running.stderr.read() == b""
    assert running.wait() == 141


@pytest.mark.skipif(os.name != "posix", reason="a shell that closes a stream")
@pytest.mark.parametrize("command", [["run", "Hello"], ["pack", "list"]], ids="-".join)
def test_a_closed_stdout_is_said_before_an_answer_is_lost(command: list[str]) -> None:
    mtpx = [sys.executable, "-m", "mtpx_cli", *command]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *mtpx], stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith(b"mtpx: stdout is closed")
    assert done.stderr.count(b"\n") == 1


@needs_full
@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_an_answer_that_cannot_be_written_is_one_sentence(
    pack: Any, own_folders: Path, option: str
) -> None:
    with FULL.open("wb") as full:
        running = process("run", "Hello", *pack, option, stdout=full)
        _, err = running.communicate()
    assert running.returncode == 2
    assert err == b"mtpx: the answer cannot be written to stdout: No space left on device\n"


@needs_full
def test_a_summary_that_cannot_be_written_costs_nothing(
    pack: Any, own_folders: Path, mtpx: Command
) -> None:
    with FULL.open("wb") as full:
        running = process("run", "Hello", *pack, stderr=full)
        out, _ = running.communicate()
    assert out.decode() == mtpx("run", "Hello", *pack).out
    assert running.returncode == 0


def test_a_folder_whose_name_is_no_text_is_a_pack_like_any_other(
    mtpx: Command, tiny_pack: Path, tmp_path: Path
) -> None:
    weights = tmp_path / os.fsdecode(b"w\xff")
    try:
        shutil.copytree(tiny_pack / "weights", weights)
    except OSError:
        pytest.skip("this file system has names of text only")
    trace = str(tmp_path / "t.jsonl")
    done = mtpx("run", "x", "--pack", str(weights), "--max-tokens", "1", "--json", "--trace", trace)
    assert json.loads(done.out)["pack"] == "w?"


def test_a_stdout_without_a_character_gets_a_question_mark(
    pack: Any, own_folders: Path, mtpx: Command
) -> None:
    running = process("run", "Hello", *pack, "--quiet", env={"PYTHONIOENCODING": "ascii"})
    out, err = running.communicate()
    assert (running.returncode, err) == (0, b"")
    text = mtpx("run", "Hello", *pack).out
    assert out == text.encode("ascii", "replace")


def test_the_json_is_the_record_a_program_gets(mtpx: Command, pack: Any) -> None:
    out = mtpx("run", "Hello", *pack, "--json").out
    found = msgspec.json.decode(out, type=Generation)
    assert msgspec.json.encode(found).decode() + "\n" == out
