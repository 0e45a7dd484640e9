"""Settings: flags over the environment over the file over the default; broken ones say where."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from command import Command
from hypothesis import given
from hypothesis import strategies as st

from mtpx import settings
from mtpx.config import Environment
from mtpx.errors import SettingsError

FILE = "config.toml"


def load(folder: Path, text: str | bytes = "", **variables: str) -> dict[str, settings.Found]:
    data = text.encode() if isinstance(text, str) else text
    (folder / FILE).write_bytes(data)
    return settings.load(Environment(config_dir=folder, settings=variables))


def refused(folder: Path, text: str | bytes = "", **variables: str) -> str:
    with pytest.raises(SettingsError) as error:
        load(folder, text, **variables)
    return str(error.value).removeprefix(str(folder / FILE))


def test_without_a_file_nothing_is_set(tmp_path: Path) -> None:
    assert settings.load(Environment(config_dir=tmp_path / "none")) == {}


def test_a_value_in_the_file_knows_its_line(tmp_path: Path) -> None:
    found = load(tmp_path, '# mine\nmax-tokens = 9\ndepth = "off"\n')
    path = tmp_path / FILE
    assert found == {
        "max_tokens": settings.Found(9, f"{path}, line 2"),
        "depth": settings.Found("off", f"{path}, line 3"),
    }


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    found = load(tmp_path, "temperature = 0.1\ntop_k = 3", temperature="0.5")
    assert found["temperature"] == settings.Found(0.5, "MTPX_TEMPERATURE")
    assert found["top_k"].value == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b", ", line 1, column 3: Expected '='"),
        ("session = '../x'", ", line 1: '../x' cannot be a session's name"),
        ("x = 1\ny = [", ", line 2, column 6: "),
        (b"x = 1\n\xff", ", line 2, column 1: not UTF-8 text"),
        (
            "\ntempratur = 1",
            ", line 2: there is no setting 'tempratur'; did you mean 'temperature'?",
        ),
        ("temperature = -1", ", line 1: temperature must be from 0 to 100, got -1"),
        ("temperature = nan", ", line 1: temperature must be"),
        ("threads = 0", ", line 1: threads cannot be 0: a whole number, 1 or more"),
        ("threads = true", ", line 1: threads cannot be True: a whole number, 1 or more"),
        ("top_k = 1.5", ", line 1: top_k cannot be 1.5: a whole number"),
        ('temperature = "hot"', ", line 1: temperature cannot be 'hot': a number"),
        ('keep_traces = "no"', ", line 1: keep_traces cannot be 'no': true or false"),
        ('objective = "fast"', ", line 1: objective cannot be 'fast': balanced, energy or speed"),
        ('tier = "x"', ", line 1: tier cannot be 'x': "),
        ("policy = 3", ", line 1: policy cannot be 3: text (in quotes in the file)"),
        ('depth = "deep"', ", line 1: depth cannot be 'deep': a number of drafts, off or auto"),
        ("[pack]\na = 1", ", line 1: pack cannot be {'a': 1}: "),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_place(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    assert refused(tmp_path, text).startswith(said)


def test_what_is_wrong_in_the_environment_is_said_with_its_name(tmp_path: Path) -> None:
    assert refused(tmp_path, threads="many").startswith("MTPX_THREADS: threads cannot be 'many'")


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        settings.load(Environment(config_dir=tmp_path))


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_file_gives_settings_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with suppress(SettingsError):
        assert isinstance(load(folder, data), dict)


def test_every_setting_has_a_default_in_words() -> None:
    assert tuple(settings.DEFAULTS) == settings.Settings.__struct_fields__


# As the command line uses them


@pytest.fixture
def file(own_folders: Path) -> Path:
    folder = own_folders / "config"
    folder.mkdir(exist_ok=True)
    return folder / FILE


def test_a_flag_wins_over_everything(
    mtpx: Command, tiny_pack: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(f'pack = "{tiny_pack}"\nmax_tokens = 3\ntemperature = 0\n')
    assert mtpx("run", "Hello").err.startswith("3 tokens")
    monkeypatch.setenv("MTPX_MAX_TOKENS", "4")
    assert mtpx("run", "Hello").err.startswith("4 tokens")
    assert mtpx("run", "Hello", "--max-tokens", "5").err.startswith("5 tokens")


def test_a_broken_file_is_one_sentence_and_help_still_works(mtpx: Command, file: Path) -> None:
    file.write_text("a b")
    assert f"{file}, line 1, column 3" in mtpx("run", "Hello").complaint
    assert f"{file}, line 1, column 3" in mtpx("chat").complaint
    assert f"{file}, line 1, column 3" in mtpx("config").complaint
    assert mtpx("run", "--help").status == 0


def test_config_shows_value_and_source(
    mtpx: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("top_k = 7\n")
    monkeypatch.setenv("MTPX_TEMPERATURE", "0.5")
    monkeypatch.setenv("MTPX_TEMPRATURE", "0.5")
    done = mtpx("config")
    rows = {line.split()[0]: line.split(None, 1)[1] for line in done.out.splitlines()}
    assert rows["top_k"].split(None, 1) == ["7", f"{file}, line 1"]
    assert rows["temperature"].split() == ["0.5", "MTPX_TEMPERATURE"]
    assert rows["top_p"].endswith("default")
    assert "MTPX_TEMPRATURE is in the environment, and no setting is called so" in done.err
    assert mtpx("config", "--path").out == f"{file}\n"
