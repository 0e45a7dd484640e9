"""Folders: the platform's own, each with its variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpx import paths
from mtpx.config import Environment

FOLDERS = {
    "MTPX_CACHE_DIR": paths.cache_dir,
    "MTPX_STATE_DIR": paths.state_dir,
    "MTPX_CONFIG_DIR": paths.config_dir,
}


@pytest.mark.parametrize("name", FOLDERS)
def test_each_folder_has_its_variable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, str(tmp_path))
    assert FOLDERS[name]() == tmp_path


@pytest.mark.parametrize("name", FOLDERS)
def test_an_empty_variable_is_as_good_as_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    platforms_own = FOLDERS[name]()
    monkeypatch.setenv(name, "")
    assert FOLDERS[name]() == platforms_own
    assert platforms_own.name == "mtpx"


def test_a_relative_folder_is_meant_from_where_the_command_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Environment.from_environ({"MTPX_CACHE_DIR": "here"}).cache_dir == tmp_path / "here"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Environment.from_environ({"MTPX_STATE_DIR": "~/x"}).state_dir == tmp_path / "x"


@pytest.mark.parametrize(
    ("environ", "index"),
    [
        ({}, None),
        ({"PIP_INDEX_URL": "https://pip"}, "https://pip"),
        ({"PIP_INDEX_URL": "https://pip", "MTPX_INDEX_URL": "https://mine"}, "https://mine"),
        ({"PIP_INDEX_URL": "https://pip", "MTPX_INDEX_URL": ""}, "https://pip"),
        ({"PIP_INDEX_URL": "", "MTPX_INDEX_URL": ""}, None),
    ],
)
def test_the_index_is_ours_then_pips_then_none(environ: dict[str, str], index: str | None) -> None:
    assert Environment.from_environ(environ).index_url == index
