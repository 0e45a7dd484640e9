"""Packs: found by name or folder, checked, never more than their manifest promises."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from mtpx import digests, packs, paths
from mtpx.errors import PackError
from mtpx.packs import Entry, Pack

GGUF = b"GGUF not really"
HEAD = b"head not really"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"MTPX_{name}_DIR", str(tmp_path / name.lower()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pack with its files beside the manifest."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "weights.gguf").write_bytes(GGUF)
    (folder / "head.safetensors").write_bytes(HEAD)
    (folder / "pack.toml").write_text(
        f"""
        schema = 1
        name = "mine"
        description = "a pack of mine"
        license = "MIT"
        family = "llama"
        context = 128
        quantisation = "none"
        sources = [{{kind = "local"}}]
        files = [{{name = "weights.gguf", sha256 = "{sha(GGUF)}", size = {len(GGUF)}}}]
        [head]
        file = "head.safetensors"
        sha256 = "{sha(HEAD)}"
        [head.contract]
        family = "llama-mtp"
        """
    )
    return folder


def test_the_embedded_pack_is_installed_and_is_the_default() -> None:
    entry = packs.find(packs.default_name())
    assert isinstance(entry, Entry)
    assert entry.manifest.name == packs.EMBEDDED
    assert packs.EMBEDDED in [e.manifest.name for e in packs.builtin()]


def test_the_embedded_packs_head_is_the_one_its_manifest_names() -> None:
    entry = packs.find(packs.EMBEDDED)
    assert isinstance(entry, Entry)
    assert entry.manifest.head
    head = entry.folder / entry.manifest.head.file
    assert digests.sha256(head) == entry.manifest.head.sha256
    assert head.stat().st_size == entry.manifest.head.size


def test_listing_packs_executes_nothing_of_the_package_that_holds_them(tmp_path: Path) -> None:
    script = (
        "import sys; from mtpx import packs; packs.builtin(); sys.exit('mtpx_packs' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == 0


def test_a_folder_with_a_manifest_is_a_pack(folder: Path) -> None:
    pack = packs.resolve(folder)
    assert pack.contract
    assert pack == Pack(
        name="mine",
        manifest=pack.manifest,
        folder=folder,
        weights=folder / "weights.gguf",
        head=folder / "head.safetensors",
        contract=pack.contract,
        weights_digest=sha(GGUF),
        head_digest=sha(HEAD),
        verified=True,
        context=128,
    )
    assert pack.contract.family == "llama-mtp"


def test_the_manifest_itself_names_its_pack(folder: Path) -> None:
    assert packs.resolve(str(folder / "pack.toml")) == packs.resolve(str(folder))


@pytest.mark.parametrize("spelling", ["folder", "file"])
def test_bare_weights_decode_plain_and_are_not_verified(tmp_path: Path, spelling: str) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "model.gguf").write_bytes(GGUF)
    (bare / "notes.txt").write_text("hello")
    pack = packs.resolve(bare if spelling == "folder" else bare / "model.gguf")
    assert pack.weights == bare / "model.gguf"
    assert (pack.manifest, pack.head, pack.contract, pack.context) == (None, None, None, None)
    assert not pack.verified
    assert pack.weights_digest == sha(GGUF)
    assert pack.name == ("bare" if spelling == "folder" else "model")


def test_bare_safetensors_with_a_config_are_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    pack = packs.resolve(tmp_path)
    assert pack.weights == tmp_path
    assert len(pack.weights_digest) == 64


def test_bare_folders_whose_weights_differ_have_different_digests(tmp_path: Path) -> None:
    found = []
    for content in (b"x", b"y"):
        folder = tmp_path / content.decode()
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(content)
        found.append(packs.resolve(folder).weights_digest)
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "weights found: none"),
        (["a.gguf", "b.gguf"], "a.gguf, b.gguf"),
        (["a.gguf", "config.json", "b.safetensors"], "a.gguf, b.safetensors"),
        (["a.safetensors"], "config.json"),
        (["pytorch_model.bin", "config.json"], "weights found: none"),
    ],
)
def test_a_folder_that_is_no_pack_is_refused_with_what_it_holds(
    tmp_path: Path, names: list[str], said: str
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(PackError, match="is not a pack") as error:
        packs.resolve(tmp_path)
    assert said in str(error.value)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(PackError, match=r"give a \.gguf file, or a folder"):
        packs.resolve(tmp_path / "model.bin")


def test_a_misspelt_name_gets_the_nearest_pack_and_the_known_ones() -> None:
    with pytest.raises(PackError, match=r"did you mean 'smollm2-135m'.*installed packs: ") as error:
        packs.resolve("smolm2-135")
    assert packs.EMBEDDED in str(error.value)


@pytest.mark.parametrize("name", ["", "  ", "./nowhere", "/nowhere/at/all", "a\0b", "x" * 5000])
def test_a_name_that_names_nothing_is_a_sentence(name: str) -> None:
    with pytest.raises(PackError):
        packs.resolve(name)


def test_an_installed_name_wins_over_a_folder_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / packs.EMBEDDED).mkdir()
    monkeypatch.chdir(tmp_path)
    assert isinstance(packs.find(packs.EMBEDDED), Entry)
    assert packs.find(f"./{packs.EMBEDDED}") == tmp_path / packs.EMBEDDED


def test_changed_weights_are_noticed(folder: Path) -> None:
    packs.resolve(folder)
    (folder / "weights.gguf").write_bytes(b"other bytes!!!!")
    with pytest.raises(PackError, match=r"weights\.gguf is not the file.*replace it"):
        packs.resolve(folder)


def test_a_changed_head_is_noticed(folder: Path) -> None:
    (folder / "head.safetensors").write_bytes(b"other")
    with pytest.raises(PackError, match="not the one its manifest names"):
        packs.resolve(folder)


def test_a_missing_head_is_said(folder: Path) -> None:
    (folder / "head.safetensors").unlink()
    with pytest.raises(PackError, match="the head is missing"):
        packs.resolve(folder)


def test_missing_local_weights_are_said(folder: Path) -> None:
    (folder / "weights.gguf").unlink()
    with pytest.raises(PackError, match=r"weights\.gguf belongs in the pack's folder"):
        packs.resolve(folder)


def test_a_pack_on_the_hub_only_says_where_to_put_the_files_by_hand(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    (folder / "weights.gguf").unlink()
    text = (folder / "pack.toml").read_text()
    hub = '[{kind = "hub", repo = "someone/model", revision = "main"}]'
    (folder / "pack.toml").write_text(text.replace('[{kind = "local"}]', hub))
    with pytest.raises(PackError, match="someone/model") as error:
        packs.resolve(folder)
    place = Path(str(error.value).rpartition(" into ")[2].removesuffix(" as weights.gguf"))
    (place / "weights.gguf").write_bytes(GGUF)
    assert packs.resolve(folder).weights == place / "weights.gguf"


def unreachable(*_: Any, **__: Any) -> None:
    raise LocalEntryNotFoundError("no network")


def test_offline_missing_weights_are_said_and_nothing_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("a fetch"))
    with pytest.raises(PackError, match="fetching was switched off"):
        packs.resolve(packs.EMBEDDED, offline=True)


def test_a_digest_is_taken_once_while_the_file_stays_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs.resolve(folder)
    taken: list[Path] = []
    real = digests.sha256

    def counting(path: Path, progress: digests.Progress | None = None) -> str:
        taken.append(path)
        return real(path, progress)

    monkeypatch.setattr(digests, "sha256", counting)
    packs.resolve(folder)
    assert folder / "weights.gguf" not in taken
    status = (folder / "weights.gguf").stat()
    os.utime(folder / "weights.gguf", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    packs.resolve(folder)
    assert folder / "weights.gguf" in taken


@pytest.mark.parametrize("stamp", [b"", b"{}", b"\xff\xfe", b'{"size": "x"}', b"[" * 9999])
def test_a_damaged_stamp_is_ignored(folder: Path, stamp: bytes) -> None:
    packs.resolve(folder)
    for path in (paths.cache_dir() / "stamps").iterdir():
        path.write_bytes(stamp)
    assert packs.resolve(folder).verified


def test_stamps_that_cannot_be_written_are_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("MTPX_CACHE_DIR", str(tmp_path / "a-file" / "below"))
    assert packs.resolve(folder).verified


def test_a_local_source_may_lie_in_a_folder_below(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "weights.gguf").rename(folder / "deep" / "weights.gguf")
    text = (folder / "pack.toml").read_text()
    (folder / "pack.toml").write_text(text.replace('"local"', '"local", folder = "deep"'))
    assert packs.resolve(folder).weights == folder / "deep" / "weights.gguf"


def test_the_last_pack_is_remembered(folder: Path) -> None:
    assert packs.last_used() is None
    packs.remember(folder)
    assert packs.default_name() == str(folder)


def test_a_folder_is_remembered_from_wherever_the_next_command_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(folder.parent)
    packs.remember("mine")
    monkeypatch.chdir(tmp_path.parent)
    assert packs.resolve(packs.default_name()).name == "mine"


def test_a_name_is_remembered_as_a_name() -> None:
    packs.remember(packs.EMBEDDED)
    assert packs.last_used() == packs.EMBEDDED


def test_a_remembered_pack_that_is_gone_gives_way_to_the_embedded_one(folder: Path) -> None:
    packs.remember(folder)
    folder.rename(folder.with_name("moved"))
    assert packs.default_name() == packs.EMBEDDED


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"a\0b", b"x" * 10000])
def test_a_damaged_memory_is_no_error(content: bytes) -> None:
    paths.state_dir().mkdir()
    paths.last_pack_file().write_bytes(content)
    assert packs.default_name() == packs.EMBEDDED


def test_a_state_folder_that_cannot_be_written_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("MTPX_STATE_DIR", str(tmp_path / "a-file" / "below"))
    packs.remember(folder)
    assert packs.default_name() == packs.EMBEDDED


def test_one_broken_pack_hides_no_other_and_explains_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    package = tmp_path / "third_party_packs"
    (package / "broken").mkdir(parents=True)
    (package / "broken" / "pack.toml").write_text("schema = 1\nfrob = 2\n")
    folder.rename(package / "mine")
    (package / "__init__.py").write_text("raise SystemExit('executed')")
    info = tmp_path / "third_party-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[mtpx.packs]\nok = third_party_packs\ngone = no_such_package\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert {"mine", packs.EMBEDDED} <= {entry.manifest.name for entry in packs.builtin()}
    assert packs.resolve("mine").verified
    with pytest.raises(PackError, match=r"unknown key.*'frob'"):
        packs.find("broken")
