"""A pack whose weights are on an index: fetched once, from the first source that has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from package_index import FILE, NAME, WEIGHTS, Index, sha

from mtpx import packs
from mtpx.errors import PackError


def write_pack(folder: Path, index: Index, sources: list[str]) -> Path:
    folder.mkdir()
    source = index.source()
    wheel = (
        f'project = "{source.project}", version = "1.0", wheel = "{NAME}", '
        f'sha256 = "{source.sha256}", size = {source.size}'
    )
    listed = ", ".join(f"{{{text.replace('WHEEL', wheel)}}}" for text in sources)
    (folder / "pack.toml").write_text(
        f"""
        schema = 1
        name = "served"
        description = "a pack from an index"
        license = "MIT"
        family = "llama"
        context = 128
        quantisation = "none"
        sources = [{listed}]
        [[files]]
        name = "{FILE.name}"
        path = "{FILE.path}"
        sha256 = "{FILE.sha256}"
        size = {FILE.size}
        """
    )
    return folder


@pytest.fixture
def environment(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPX_INDEX_URL", index.environment().index_url)
    monkeypatch.setenv("MTPX_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("environment")
def test_resolving_a_pack_fetches_its_weights_once(index: Index, tmp_path: Path) -> None:
    folder = write_pack(tmp_path / "pack", index, ['kind = "local"', 'kind = "pypi", WHEEL'])
    pack = packs.resolve(folder)
    assert pack.manifest
    assert pack.weights == packs.cache_folder(pack.manifest) / FILE.name
    assert (pack.weights_digest, pack.verified, pack.contract) == (sha(WEIGHTS), True, None)
    index.asked.clear()
    assert packs.resolve(folder, offline=True) == pack
    assert index.asked == []


@pytest.mark.usefixtures("environment")
def test_a_source_that_fails_gives_way_to_the_next(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    index.answers = [404]
    sources = ['kind = "hub", repo = "a/b", revision = "c"', 'kind = "pypi", WHEEL']
    folder = write_pack(tmp_path / "pack", index, [*sources, 'kind = "pypi", WHEEL'])
    assert packs.resolve(folder).verified


@pytest.mark.usefixtures("environment")
def test_when_every_source_fails_each_says_why(index: Index, tmp_path: Path) -> None:
    index.answers = [404, 403]
    folder = write_pack(tmp_path / "pack", index, ['kind = "pypi", WHEEL'] * 2)
    with pytest.raises(PackError, match=r"answers 404.*then, from the next source: .*answers 403"):
        packs.resolve(folder)


@pytest.mark.usefixtures("environment")
def test_fetched_weights_that_were_changed_are_noticed(index: Index, tmp_path: Path) -> None:
    folder = write_pack(tmp_path / "pack", index, ['kind = "pypi", WHEEL'])
    weights = packs.resolve(folder).weights
    weights.write_bytes(b"other")
    with pytest.raises(PackError, match=r"not the file.*delete it, it is fetched again"):
        packs.resolve(folder)
    weights.unlink()
    assert packs.resolve(folder).verified


@pytest.mark.usefixtures("environment")
def test_a_process_killed_in_the_middle_leaves_no_weights_and_a_part_to_go_on_with(
    index: Index, tmp_path: Path
) -> None:
    folder = write_pack(tmp_path / "pack", index, ['kind = "pypi", WHEEL'])
    script = (
        "import os, sys; from mtpx import packs\n"
        "packs.resolve(sys.argv[1], lambda done, total: done > 1_500_000 and os._exit(9))"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(folder)], check=False)
    assert killed.returncode == 9
    with pytest.raises(PackError, match="switched off"):
        packs.resolve(folder, offline=True)
    assert packs.resolve(folder).verified
    first, second = index.ranges_asked()
    assert first is None
    assert second is not None
