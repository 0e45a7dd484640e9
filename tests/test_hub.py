"""Weights from the Hugging Face Hub: checked before they get their names, errors that help."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors
from package_index import sha

from mtpx import digests, hub
from mtpx.errors import PackError
from mtpx.manifest import HubSource, PackFile

SOURCE = HubSource(repo="someone/model", revision="abc123")
DATA = {"config.json": b"{}", "onnx/model.safetensors": b"weights" * 1000}
FILES = [
    PackFile(name=path.rpartition("/")[2], path=path, sha256=sha(data), size=len(data))
    for path, data in DATA.items()
]


class FakeHub:
    """Answers as `hf_hub_download` does, from memory."""

    def __init__(self, data: dict[str, bytes] | None = None, error: Exception | None = None):
        self.data, self.error = DATA if data is None else data, error
        self.asked: list[tuple[str, str, str]] = []

    def __call__(
        self,
        repo: str,
        filename: str,
        *,
        revision: str,
        local_dir: Path,
        tqdm_class: Any,
        **_: Any,
    ) -> str:
        self.asked.append((repo, filename, revision))
        if self.error is not None:
            raise self.error
        data = self.data[filename]
        to = local_dir / filename
        to.parent.mkdir(parents=True, exist_ok=True)
        with tqdm_class(total=len(data), initial=0, desc=filename) as bar, to.open("wb") as file:
            for at in range(0, len(data), 1024):
                file.write(data[at : at + 1024])
                bar.update(len(data[at : at + 1024]))
        return str(to)


def fetched(folder: Path, fake: FakeHub, **options: Any) -> None:
    hub.repository_files(SOURCE, FILES, folder, download=fake, **options)


def refused(folder: Path, error: Exception) -> str:
    with pytest.raises(PackError) as found:
        fetched(folder, FakeHub(error=error))
    return str(found.value)


def response(status: int) -> Any:
    """What of an HTTP library's answer the errors look at; which library that is changes."""
    return SimpleNamespace(status_code=status, headers={}, request=None)


def test_files_arrive_checked_under_their_own_names(tmp_path: Path) -> None:
    fake = FakeHub()
    fetched(tmp_path, fake)
    assert (tmp_path / "model.safetensors").read_bytes() == DATA["onnx/model.safetensors"]
    assert fake.asked == [("someone/model", path, "abc123") for path in DATA]
    stamped = tmp_path / "config.json"
    assert digests.known(stamped, digests.beside(stamped)) == sha(b"{}")
    assert not (tmp_path / hub.STAGING).exists()


def test_what_is_there_is_not_asked_for_again(tmp_path: Path) -> None:
    fetched(tmp_path, FakeHub())
    fake = FakeHub()
    fetched(tmp_path, fake)
    assert fake.asked == []


def test_progress_counts_the_bytes_of_all_files_and_draws_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, int]] = []
    fetched(tmp_path, FakeHub(), progress=lambda done, total: seen.append((done, total)))
    total = sum(file.size for file in FILES)
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    assert capsys.readouterr() == ("", "")


def test_another_file_than_the_promised_one_is_not_kept(tmp_path: Path) -> None:
    other = {**DATA, "onnx/model.safetensors": b"something else"}
    with pytest.raises(PackError, match="is not the file the manifest names"):
        fetched(tmp_path, FakeHub(other))
    assert not (tmp_path / "model.safetensors").exists()
    fetched(tmp_path, FakeHub())
    assert (tmp_path / "model.safetensors").exists()


def test_what_a_cut_left_is_kept_for_the_next_try(tmp_path: Path) -> None:
    left = tmp_path / hub.STAGING / "model.incomplete"
    left.parent.mkdir()
    left.write_bytes(b"half")
    refused(tmp_path, errors.LocalEntryNotFoundError("cut"))
    assert left.read_bytes() == b"half"


def test_ctrl_c_passes_through_and_nothing_half_done_has_a_name(tmp_path: Path) -> None:
    fake = FakeHub()
    with pytest.raises(KeyboardInterrupt):
        fetched(tmp_path, fake, progress=interrupt)
    assert not (tmp_path / "model.safetensors").exists()
    fetched(tmp_path, fake)
    assert (tmp_path / "model.safetensors").exists()


def interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


def test_a_gated_repository_says_how_to_get_in(tmp_path: Path) -> None:
    said = refused(tmp_path, errors.GatedRepoError("no", response=response(403)))
    assert "accept its terms on https://huggingface.co/someone/model" in said
    assert "hf auth login" in said


def test_a_missing_repository_says_where_to_look(tmp_path: Path) -> None:
    said = refused(tmp_path, errors.RepositoryNotFoundError("no", response=response(404)))
    assert said.startswith("there is no repository someone/model on the Hugging Face Hub")


def test_a_missing_revision_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path, errors.RevisionNotFoundError("no", response=response(404)))
    assert said.startswith("someone/model has no revision abc123")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path, errors.RemoteEntryNotFoundError("no", response=response(404)))
    assert said.startswith("someone/model holds no config.json at abc123")


@pytest.mark.parametrize(
    "error", [errors.LocalEntryNotFoundError("no"), RuntimeError("socket"), OSError("proxy")]
)
def test_no_network_says_so_and_how_to_do_it_by_hand(tmp_path: Path, error: Exception) -> None:
    said = refused(tmp_path, error)
    assert "run again to go on from there" in said
    assert said.endswith(f"put config.json of that repository into {tmp_path} as config.json")
