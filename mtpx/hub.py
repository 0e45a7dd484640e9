"""Weights from the Hugging Face Hub, through its own library.

Files are downloaded beside the pack's weights (`huggingface_hub` resumes a half-finished one), checked
against the manifest's digests, and only then given their names. A token, a mirror and an offline mode
are the library's own settings: `hf auth login`, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtpx import digests, fetch
from mtpx.digests import Progress
from mtpx.errors import PackError
from mtpx.manifest import HubSource, PackFile

STAGING = ".hub"
"""Folder, in the pack's weights folder, of what is not checked yet."""

Download = Callable[..., Any]
"""`huggingface_hub.hf_hub_download`, as far as it is used here."""


def repository_files(
    source: HubSource,
    files: Sequence[PackFile],
    folder: Path,
    progress: Progress | None = None,
    *,
    download: Download | None = None,
) -> None:
    """Bring `files` of a repository into `folder`, digests checked, whatever is there already.

    `progress(done, total)` counts bytes of all files. Several processes may ask at once: one
    downloads, the others wait. `download` stands in for `hf_hub_download`. Raises `PackError` when a
    file cannot be had or is not the promised one.
    """
    total = sum(file.size for file in files)
    staging = folder / STAGING
    with fetch.disk(source.repo, folder), fetch.locked(folder, staging, total, None):
        done = 0
        for file in files:
            if not (folder / file.name).exists():
                try:
                    _one(source, file, folder, _shifted(progress, done, total), download)
                except PackError as error:
                    raise PackError(
                        f"{error}; or by hand: put {file.member} of that repository into {folder} "
                        f"as {file.name}"
                    ) from None
            done += file.size
        shutil.rmtree(staging, ignore_errors=True)


def _one(
    source: HubSource,
    file: PackFile,
    folder: Path,
    progress: Progress | None,
    download: Download | None,
) -> None:
    with _sentences(source, file):
        import huggingface_hub

        get = download or huggingface_hub.hf_hub_download
        got = Path(
            get(
                source.repo,
                file.member,
                revision=source.revision,
                local_dir=folder / STAGING,
                library_name="mtpx",
                tqdm_class=_bar(progress),
            )
        )
    found = digests.sha256(got)
    if found != file.sha256:
        got.unlink()
        raise PackError(
            f"{file.member} of {source.repo} at {source.revision} is not the file the manifest names "
            f"(sha256 {found}, expected {file.sha256}); nothing was kept"
        )
    got.replace(folder / file.name)
    digests.remember(folder / file.name, digests.beside(folder / file.name), file.sha256)


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """One file's progress as that of all of them."""
    if progress is None:
        return None
    return lambda done, _: progress(min(before + done, total), total)


def _bar(progress: Progress | None) -> type:
    """What the library takes for a progress bar; it tells `progress` and draws nothing."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._done = int(options.get("initial") or 0)
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self._done += int(n or 0)
            if progress is not None:
                progress(self._done, self._done)

    return Bar


@contextmanager
def _sentences(source: HubSource, file: PackFile) -> Iterator[None]:
    """Whatever the library raises as a sentence with what to do."""
    try:
        from huggingface_hub import errors
    except ImportError:
        raise PackError(
            f"fetching {source.repo} from the Hugging Face Hub needs huggingface_hub: "
            "pip install huggingface_hub"
        ) from None
    repo, page = source.repo, f"https://huggingface.co/{source.repo}"
    try:
        yield
    except errors.GatedRepoError:
        raise PackError(
            f"{repo} is gated: accept its terms on {page}, then `hf auth login` (or set HF_TOKEN), "
            "and try again"
        ) from None
    except errors.RepositoryNotFoundError:
        raise PackError(
            f"there is no repository {repo} on the Hugging Face Hub, or it is private; look at {page}, "
            "and log in (`hf auth login`) if it is yours"
        ) from None
    except errors.RevisionNotFoundError:
        raise PackError(f"{repo} has no revision {source.revision}; look at {page}") from None
    except errors.LocalEntryNotFoundError:
        raise PackError(
            f"the Hugging Face Hub could not be reached for {file.member} of {repo}: check the network "
            "(and HF_HUB_OFFLINE), then run again to go on from there"
        ) from None
    except errors.EntryNotFoundError:
        raise PackError(f"{repo} holds no {file.member} at {source.revision}") from None
    except errors.HfHubHTTPError as error:
        said = " ".join(str(error).split())
        raise PackError(f"the Hugging Face Hub refuses {repo}: {said}") from None
    except PackError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise  # the disk's; the network's errors carry no number
        raise PackError(_unreachable(repo, error)) from None
    except Exception as error:  # whatever its HTTP library raises
        raise PackError(_unreachable(repo, error)) from None


def _unreachable(repo: str, error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return (
        f"fetching {repo} from the Hugging Face Hub failed: {said}; run again to go on from there"
    )
