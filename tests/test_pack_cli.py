"""`mtpx pack` and `mtpx completion` from the outside."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from command import Command
from package_index import FILE, Index
from test_fetch_packs import write_pack

from mtpx import memory, packs, shelf
from mtpx.errors import PackError
from mtpx.manifest import read as read_manifest


@pytest.fixture
def served(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack whose weights are on an index."""
    monkeypatch.setenv("MTPX_INDEX_URL", str(index.environment().index_url))
    return write_pack(tmp_path / "served", index, ['kind = "pypi", WHEEL'])


def test_list_names_every_installed_pack_and_whether_it_is_here(mtpx: Command) -> None:
    facts = json.loads(mtpx("pack", "list", "--json").out)
    assert [f["name"] for f in facts] == [e.manifest.name for e in packs.builtin()]
    assert {f["state"] for f in facts} == {"no"}
    assert "Apache-2.0" in mtpx("pack", "list").out


def test_show_says_what_a_pack_is_good_for(mtpx: Command, tiny_pack: Path) -> None:
    facts = json.loads(mtpx("pack", "show", str(tiny_pack), "--json").out)
    assert (facts["class"], facts["head"]) == ("verified", "llama-mtp, up to 4 drafts a round")
    bare = json.loads(mtpx("pack", "show", str(tiny_pack / "weights"), "--json").out)
    assert (bare["class"], bare["why"]) == ("plain only", "bare weights: no manifest, no MTP head")


def test_an_unknown_architecture_is_refused_with_the_reason(mtpx: Command, copied: Path) -> None:
    config = copied / "weights" / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"mystery"'))
    facts = json.loads(mtpx("pack", "show", str(copied / "weights"), "--json").out)
    assert facts["class"] == "refused"
    assert "mystery" in facts["why"]


def test_pull_fetches_checks_and_says_where(mtpx: Command, served: Path) -> None:
    assert "are not here: `mtpx pack pull" in mtpx("pack", "path", str(served)).complaint
    assert "is here and checked" in mtpx("pack", "pull", str(served)).err
    path = Path(mtpx("pack", "path", str(served)).out.strip())
    assert path.name == FILE.name
    assert path.is_file()


def test_pulling_again_fetches_nothing(mtpx: Command, served: Path, index: Index) -> None:
    mtpx("pack", "pull", str(served))
    index.asked.clear()
    assert mtpx("pack", "pull", str(served), "--quiet").err == ""
    assert index.asked == []


def test_verify_looks_at_the_bytes_and_not_at_the_stamp(mtpx: Command, served: Path) -> None:
    mtpx("pack", "pull", str(served))
    assert "is what its manifest promises" in mtpx("pack", "verify", str(served)).err
    path = Path(mtpx("pack", "path", str(served)).out.strip())
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    path.write_bytes(data)
    import os

    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert packs.resolve(served).verified  # the stamp still says so
    assert "is not the file its manifest names" in mtpx("pack", "verify", str(served)).complaint


def test_remove_asks_first_and_takes_everything_that_was_fetched(
    mtpx: Command, served: Path
) -> None:
    mtpx("pack", "pull", str(served))
    folder = packs.cache_folder(read_manifest(served / "pack.toml"))
    assert "add --yes" in mtpx("pack", "remove", str(served)).complaint
    assert folder.is_dir()
    assert mtpx("pack", "remove", str(served), "--yes").status == 0
    assert not folder.exists()
    assert "nothing of served was fetched" in mtpx("pack", "remove", str(served), "--yes").complaint


def test_a_folder_of_the_persons_own_is_never_removed(mtpx: Command, copied: Path) -> None:
    assert "nothing of tiny was fetched" in mtpx("pack", "remove", str(copied), "--yes").complaint
    weights = str(copied / "weights")
    assert "delete it yourself" in mtpx("pack", "remove", weights, "--yes").complaint
    assert (copied / "weights" / "model.safetensors").is_file()


def test_bare_weights_have_nothing_to_be_verified_against(tiny_pack: Path) -> None:
    with pytest.raises(PackError, match="has no manifest"):
        shelf.verify(tiny_pack / "weights")


def test_a_containers_limit_counts_as_all_the_memory_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.host_memory() == memory.HostMemory(total=1000000, free=600000)


# completion and help


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shells_script(mtpx: Command, shell: str) -> None:
    out = mtpx("completion", shell).out
    assert f"_MTPX_COMPLETE={shell}_complete" in out


def test_packs_are_completed(mtpx: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MTPX_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "mtpx chat smol")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert mtpx().out == "plain,smollm2-135m\n"


@pytest.mark.parametrize(
    "command",
    ["chat", "run", "bench", "doctor", "config", "completion"]
    + [f"pack {name}" for name in ("list", "show", "pull", "verify", "remove", "path")],
)
def test_every_command_has_help_with_an_example(mtpx: Command, command: str) -> None:
    done = mtpx(*command.split(), "--help")
    assert done.status == 0
    assert f"mtpx {command}" in done.out.partition("Usage:")[2].partition("\n")[2]
