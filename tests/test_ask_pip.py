"""Asking pip where a wheel lies: no network, no code of the project, and every refusal a sentence."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tarfile
import threading
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from package_index import FILE, METADATA, NAME, WEIGHTS, WHEEL, Index, sha

from mtpx import ask_pip, fetch
from mtpx.config import Environment
from mtpx.errors import PackError
from mtpx.manifest import PyPISource

SOURCE = PyPISource(
    project="Some_Model", version="1.0", wheel=NAME, sha256=sha(WHEEL), size=len(WHEEL)
)
URL = f"https://mirror.example/some/{NAME}"

FakePip = Callable[[str], Path]
"""Make the program that runs for pip of these lines; `report`, `argv` are theirs to use. Answers the
folder that it may write to."""


def report(url: Any = URL, digest: str = SOURCE.sha256) -> bytes:
    hashes = {"hash": f"sha256={digest}", "hashes": {"sha256": digest}}
    item = {"download_info": {"url": url, "archive_info": hashes}, "is_yanked": False}
    return json.dumps({"version": "1", "pip_version": "26.0", "install": [item]}).encode()


@pytest.fixture
def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    folder = tmp_path / "fake"
    folder.mkdir()

    def make(lines: str) -> Path:
        head = (
            "import json, os, sys, time\nfrom pathlib import Path\nargv = sys.argv\n"
            "report = Path(argv[argv.index('--report') + 1])\nfolder = Path(__file__).parent\n"
        )
        (folder / "pip.py").write_text(head + lines)
        monkeypatch.setattr(ask_pip, "COMMAND", (sys.executable, str(folder / "pip.py")))
        return folder

    return make


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip itself, that knows of nothing but a folder with the wheel."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / NAME).write_bytes(WHEEL)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def fetched(folder: Path) -> bytes:
    fetch.wheel_members(SOURCE, [FILE], folder, env=Environment())
    return (folder / FILE.name).read_bytes()


def test_a_wheel_in_pips_find_links_folder_is_copied_from_there(
    links: Path, tmp_path: Path
) -> None:
    assert fetched(tmp_path / "weights") == WEIGHTS
    assert (links / NAME).read_bytes() == WHEEL


@pytest.fixture
def named_in_settings(
    index: Index, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Index:
    """An index that only pip's own settings know of. It answers no HEAD requests."""
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {index.url}/simple/\nno-cache-dir = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    (links / NAME).unlink()
    return index


@pytest.mark.usefixtures("named_in_settings")
def test_the_index_that_pips_own_settings_name_is_fetched_from(tmp_path: Path) -> None:
    assert fetched(tmp_path / "weights") == WEIGHTS


def test_where_the_index_serves_metadata_the_wheel_is_downloaded_once(
    named_in_settings: Index, tmp_path: Path
) -> None:
    listed = {
        "filename": NAME,
        "url": f"/files/{NAME}",
        "hashes": {"sha256": SOURCE.sha256},
        "core-metadata": {"sha256": sha(METADATA)},
    }
    page = {"meta": {"api-version": "1.1"}, "name": "some-model", "files": [listed]}
    named_in_settings.page = json.dumps(page).encode()
    assert fetched(tmp_path / "weights") == WEIGHTS
    assert len(named_in_settings.ranges_asked()) == 1


def test_a_source_distribution_is_never_built(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    built = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    settings = '[build-system]\nrequires = []\nbuild-backend = "ran"\nbackend-path = ["."]\n'
    with tarfile.open(links / "some_model-1.0.tar.gz", "w:gz") as archive:
        for name, text in {"pyproject.toml": settings, "ran.py": built}.items():
            member = tarfile.TarInfo(f"some_model-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    (links / NAME).unlink()
    with pytest.raises(PackError, match="pip does not find Some_Model"):
        ask_pip.where(SOURCE)
    assert not marker.exists()


def test_a_folder_called_pip_where_the_command_started_is_not_run(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert ask_pip.where(SOURCE) == (links / NAME).as_uri()


@pytest.mark.usefixtures("links")
def test_a_project_that_pip_does_not_find_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PackError) as error:
        fetch.wheel_members(
            PyPISource(project="other", version="1", wheel=NAME, sha256="0" * 64, size=1),
            [FILE],
            tmp_path,
            env=Environment(),
        )
    assert "No matching distribution found for other==1; check its settings" in str(error.value)
    assert f"`pip download --no-deps other==1`, and put {NAME} into {tmp_path}" in str(error.value)


def test_a_python_without_pip_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setattr(ask_pip, "COMMAND", (python, *ask_pip.COMMAND[1:]))
    with pytest.raises(PackError, match=r"not installed for .*bare.*; install it there"):
        ask_pip.where(SOURCE)


@pytest.mark.parametrize("program", ["", "/nowhere/python"])
def test_a_python_that_cannot_be_started_is_a_sentence(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_pip, "COMMAND", (program, "-m", "pip"))
    with pytest.raises(PackError, match="pip could not be started"):
        ask_pip.where(SOURCE)


def test_what_pip_reports_is_the_answer(fake_pip: FakePip) -> None:
    fake_pip(
        f"report.write_bytes({report()!r}); print('WARNING: old'); assert 'Some_Model==1.0' in argv"
    )
    assert ask_pip.where(SOURCE) == URL


def test_a_pip_that_does_not_know_fast_deps_is_asked_without(fake_pip: FakePip) -> None:
    fake_pip(
        "if '--use-feature=fast-deps' in argv:\n"
        "    print('option --use-feature: invalid choice: fast-deps (choose from a)', file=sys.stderr)\n"
        "    sys.exit(2)\n"
        f"report.write_bytes({report()!r})"
    )
    assert ask_pip.where(SOURCE) == URL


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "ERROR: first\nERROR: \x1b[31mthe last.\nWARNING: a newer pip",
            "1.0: [31mthe last; check",
        ),
        ("Usage: pip\n\nno such option: --report\n", "1.0: no such option: --report; check"),
        ("WARNING: only\n", "it gave no reason"),
        ("", "it gave no reason"),
        (
            "WARNING: Retrying after connection broken by 'X': /simple/\nERROR: No matching",
            "could not reach a package index; check the network",
        ),
        (
            "WARNING: Could not fetch URL x: There was a problem confirming the ssl certificate: y",
            "does not trust the certificate",
        ),
    ],
)
def test_pips_own_refusal_becomes_a_sentence(fake_pip: FakePip, said: str, sentence: str) -> None:
    fake_pip(f"sys.stderr.write({said!r}); sys.exit(1)")
    with pytest.raises(PackError) as error:
        ask_pip.where(SOURCE)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pip_that_fails_gives_way_to_the_manifests_url(
    fake_pip: FakePip, index: Index, tmp_path: Path
) -> None:
    fake_pip("sys.exit(1)")
    source = index.source(url=f"{index.url}/files/{NAME}")
    fetch.wheel_members(source, [FILE], tmp_path, env=Environment())
    assert (tmp_path / FILE.name).read_bytes() == WEIGHTS


def test_a_fetch_that_was_cut_asks_pip_again_and_goes_on(
    fake_pip: FakePip, index: Index, tmp_path: Path
) -> None:
    fake_pip(f"report.write_bytes({report(f'{index.url}/files/{NAME}')!r})")
    (tmp_path / f"{NAME}.part").write_bytes(WHEEL[:2_000_000])
    assert fetched(tmp_path) == WEIGHTS
    assert index.ranges_asked() == ["bytes=2000000-"]


def test_an_interrupt_passes_through_and_pip_is_ended(fake_pip: FakePip) -> None:
    pid = fake_pip(
        "(folder / 'new').write_text(str(os.getpid())); (folder / 'new').rename(folder / 'pid')\n"
        "time.sleep(600)"
    ).joinpath("pid")

    def interrupt() -> None:
        while not pid.exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ask_pip.where(SOURCE)
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_pip_that_reports_nothing_is_a_sentence(fake_pip: FakePip) -> None:
    fake_pip("")
    with pytest.raises(PackError, match=r"report on Some_Model.* cannot be understood"):
        ask_pip.where(SOURCE)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"install": []}',
        report()
        .replace(b"}], ", b'}, {"download_info": {"url": "x"}}], ')
        .replace(b"}]}", b"}, 1]}"),
        report(url=3),
        report(url="http://[::1"),
    ],
)
def test_a_report_that_is_none_is_a_sentence(answer: bytes) -> None:
    with pytest.raises(PackError, match="cannot be understood; pip"):
        ask_pip.planned(answer, SOURCE)


def test_another_wheel_than_the_manifests_is_refused() -> None:
    with pytest.raises(PackError, match=f"pip finds 'other.whl' .* the manifest names {NAME}"):
        ask_pip.planned(report(url="https://me:secret@mirror.example/other.whl"), SOURCE)


def test_another_digest_than_the_manifests_is_refused_without_showing_a_password() -> None:
    with pytest.raises(PackError, match="is another") as error:
        ask_pip.planned(report(f"https://me:secret@mirror.example/{NAME}", "0" * 64), SOURCE)
    assert "secret" not in str(error.value)


def test_a_report_without_digests_is_left_to_the_check_of_the_wheel() -> None:
    answer = json.dumps({"install": [{"download_info": {"url": URL}}]}).encode()
    assert ask_pip.planned(answer, SOURCE) == URL


def test_a_wheels_name_is_compared_unquoted() -> None:
    local = PyPISource(
        project="m", version="1+cpu", wheel="m-1+cpu-py3-none-any.whl", sha256="0" * 64, size=1
    )
    url = "https://mirror.example/m-1%2Bcpu-py3-none-any.whl#sha256=1"
    answer = json.dumps({"install": [{"download_info": {"url": url}}]}).encode()
    assert ask_pip.planned(answer, local) == url


@given(st.integers(0, 600), st.integers(0, 600), st.binary(max_size=20))
def test_any_report_gives_the_wheel_or_a_sentence(start: int, end: int, put: bytes) -> None:
    whole = report()
    try:
        url = ask_pip.planned(whole[:start] + put + whole[end:], SOURCE)
    except PackError:
        return
    assert url.partition("#")[0].partition("?")[0].endswith(NAME)


@pytest.mark.parametrize(
    ("there", "said"), [(None, "there is no file"), (b"short", "holds 5 bytes where")]
)
def test_a_file_that_is_not_what_pip_found_is_a_sentence(
    fake_pip: FakePip, tmp_path: Path, there: bytes | None, said: str
) -> None:
    if there is not None:
        (tmp_path / NAME).write_bytes(there)
    fake_pip(f"report.write_bytes({report((tmp_path / NAME).as_uri())!r})")
    with pytest.raises(PackError, match=said):
        fetched(tmp_path / "weights")


def test_an_older_part_is_replaced_by_the_copy_of_a_file(fake_pip: FakePip, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(WHEEL)
    fake_pip(f"report.write_bytes({report((tmp_path / NAME).as_uri())!r})")
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / f"{NAME}.part").write_bytes(b"z" * (len(WHEEL) + 7))
    assert fetched(weights) == WEIGHTS
