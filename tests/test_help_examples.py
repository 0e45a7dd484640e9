"""Every command's help has examples, and they work when pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command import Command
from simulated_traces import simulated_trace
from test_trace_time import REGIME
from tiny_pack import make_tiny_pack
from trace_makers import written

from mtpx import packs
from mtpx.manifest import read
from mtpx.paths import traces_dir
from mtpx.policy import FixedDepth
from mtpx.trace.files import new_trace_path
from mtpx_cli.main import cli

PASTED = re.compile(r"(?<!`)\bmtpx [a-z][^>|`]*?(?=  |$| >|\)\"$)")


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with what is typed for it, groups included."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def examples(command: click.Command) -> list[str]:
    """What the help shows to be pasted: `mtpx` and all after it, pipes and comments left out."""
    blocks = re.findall(r"\x08\n(.*?)(?:\n\s*\n|\Z)", command.help or "", re.DOTALL)
    return [m[0] for block in blocks for line in block.splitlines() if (m := PASTED.search(line))]


ALL = {" ".join(path): found for path, command in commands() if (found := examples(command))}


def test_every_command_shows_an_example_of_its_own() -> None:
    without = [
        " ".join(path)
        for path, _ in commands()
        if not any(
            f"{line} ".startswith(" ".join(["mtpx", *path, ""]))
            for line in ALL.get(" ".join(path), ())
        )
    ]
    # `mtpx session` alone lists nothing: a session begins in a chat.
    assert without == []


@pytest.mark.parametrize("line", sorted({line for lines in ALL.values() for line in lines}))
def test_every_example_is_a_command_with_options_it_has(line: str, own_folders: Path) -> None:
    words = shlex.split(line)
    assert words.pop(0) == "mtpx"
    command: click.Command = cli
    context = cli.make_context("mtpx", words)
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        if not rest and isinstance(found, click.Group):
            return  # a group alone shows its help
        command, context = found, found.make_context(name, rest, parent=context)


NOT_RUN = {
    "warm": "compiles for minutes; tests/test_compiled_ahead.py compiles something small",
    "": "shows what the commands below do",
    "chat": "talks until the answers end; tests/test_chat_lines.py talks with a shorter breath",
    "bench": "two minutes of a real model; tests/test_bench_cli.py runs it on a simulated one",
    "measure": "minutes of a real model; tests/test_plan_cli.py runs it on a simulated one",
    "head": "trains for half an hour",
    "head train": "trains for half an hour",
    "policy compare": "drives every regime; tests/test_policy_scores.py does so",
    "session": "begins with a chat",
    "session drop": "wants a conversation that was kept; tests/test_sessions.py keeps some",
    "session show": "wants a conversation that was kept; tests/test_sessions.py keeps some",
    "pack remove": "the weights of the pack in these tests are a folder of somebody's",
    "trace tail": "watches until it is told to stop; run below with an end",
}


@pytest.fixture(scope="module")
def named_pack(tmp_path_factory: pytest.TempPathFactory) -> packs.Entry:
    """A small pack by the name that the examples use."""
    folder = make_tiny_pack(tmp_path_factory.mktemp("packs") / packs.EMBEDDED)
    manifest = folder / packs.MANIFEST
    manifest.write_text(manifest.read_text().replace('name = "tiny"', f'name = "{folder.name}"'))
    return packs.Entry(read(manifest), folder)


@pytest.fixture
def workplace(own_folders: Path, named_pack: packs.Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with what examples take for granted: a pack, and a trace to read."""
    monkeypatch.setattr(packs, "_installed", lambda: iter([(named_pack.folder, named_pack)]))
    written(new_trace_path(traces_dir(), "run"), simulated_trace(REGIME, FixedDepth(3)))
    monkeypatch.chdir(own_folders)


@pytest.mark.parametrize("name", sorted(ALL.keys() - NOT_RUN.keys()))
def test_the_examples_of_a_command_run_one_after_the_other(
    mtpx: Command, workplace: None, name: str
) -> None:
    for line in ALL[name]:
        done = mtpx(*shlex.split(line)[1:], stdin=b"Hello\n")
        assert done.status == 0, (line, done)


def test_the_tail_of_a_trace_ends_when_it_is_told_to(mtpx: Command, workplace: None) -> None:
    assert ALL["trace tail"] == ["mtpx trace tail", "mtpx trace tail --idle 5"]
    done = mtpx("trace", "tail", "--idle", "0")
    assert "request 0 ended (length)" in done.out
