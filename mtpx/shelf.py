"""The packs on this machine: what is here, how far it can be trusted, what its head can do.

Nothing is loaded or fetched here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from mtpx import bare, digests, fetch, packs
from mtpx.bare import Class
from mtpx.digests import Progress
from mtpx.errors import PackError
from mtpx.heads import require_wired
from mtpx.manifest import HubSource, LocalSource, Manifest, PyPISource


@dataclass(frozen=True, slots=True)
class Stored:
    """A pack's weights here. `folder` is where they are, or would be; `size` the bytes of those that
    are; `whole` whether all are; `checked` whether their digests were computed since they last
    changed, and are the promised ones."""

    folder: Path
    size: int
    whole: bool
    checked: bool


def stored(entry: packs.Entry) -> Stored:
    """Where the pack's weights are, from file sizes and stamps; no digest is computed."""
    manifest = entry.manifest
    for source in manifest.sources:
        if isinstance(source, LocalSource):
            folder = entry.folder / source.folder
            if all((folder / file.name).is_file() for file in manifest.files):
                return _stored(manifest, folder, ours=False)
    return _stored(manifest, packs.cache_folder(manifest), ours=True)


def _stored(manifest: Manifest, folder: Path, *, ours: bool) -> Stored:
    size, here, checked = 0, 0, 0
    for file in manifest.files:
        path = folder / file.name
        try:
            size += path.stat().st_size
        except OSError:
            continue
        here += 1
        stamp = digests.beside(path) if ours else packs.stamp_elsewhere(path)
        checked += digests.known(path, stamp) == file.sha256
    whole = here == len(manifest.files)
    return Stored(folder, size, whole, whole and checked == here)


def origin(manifest: Manifest) -> list[str]:
    """Where the weights come from, in words, in order of preference."""
    said = []
    for source in manifest.sources:
        if isinstance(source, PyPISource):
            said.append(f"PyPI: {source.project} {source.version}")
        elif isinstance(source, HubSource):
            said.append(f"Hugging Face Hub: {source.repo} at {source.revision}")
        else:
            said.append("the pack's own folder")
    return said


def head_line(manifest: Manifest) -> str:
    """What the head can do, in words."""
    head = manifest.head
    if head is None:
        return "none: decodes plain"
    recommended = "" if manifest.depth is None else f", {manifest.depth} recommended"
    return f"{head.contract.family}, up to {head.contract.draft_depth_limit} drafts a round{recommended}"


def classify(found: packs.Entry | Path) -> Class:
    """What the pack is good for, before anything is loaded. Of bare weights the headers are read."""
    if not isinstance(found, packs.Entry):
        return bare.classify(found)
    if found.manifest.head is None:
        return Class("plain only", "the pack has no MTP head")
    try:
        require_wired(found.manifest.head.contract)
    except PackError as error:
        return Class("refused", str(error))
    if not stored(found).whole:
        return Class("verified", "its weights are not here yet; they are checked when fetched")
    return Class("verified", "its manifest promises digests, checked before anything is loaded")


def verify(name_or_dir: str | Path, progress: Progress | None = None) -> packs.Pack:
    """Compute every digest of the pack anew. Raises `PackError` when one is not the promised one, or
    files are missing."""
    found = packs.find(name_or_dir)
    if isinstance(found, Path):
        raise PackError(f"{found} has no manifest, so there is nothing to verify it against")
    held = stored(found)
    if not held.whole:
        raise PackError(
            f"the weights of {found.manifest.name} are not here: `mtpx pack pull {name_or_dir}`"
        )
    for file in found.manifest.files:
        digest = digests.sha256(held.folder / file.name, progress)
        if digest != file.sha256:
            raise PackError(
                f"{held.folder / file.name} is not the file its manifest names (sha256 {digest}, "
                f"expected {file.sha256}): `mtpx pack remove {name_or_dir}`, then pull it again"
            )
    return packs.resolve(name_or_dir, offline=True)


def remove(name_or_dir: str | Path) -> Stored:
    """Delete the fetched weights; what lies in a folder of the person's own stays. Returns what was
    there. Raises `PackError` when there is nothing of ours to delete."""
    found = packs.find(name_or_dir)
    if isinstance(found, Path):
        raise PackError(f"{found} is not mtpx's own: delete it yourself if it is not wanted")
    folder = packs.cache_folder(found.manifest)
    if not folder.is_dir():
        raise PackError(f"nothing of {found.manifest.name} was fetched: {folder} is not there")
    held = _stored(found.manifest, folder, ours=True)
    with (
        fetch.disk(found.manifest.name, folder),
        fetch.locked(folder, folder / ".removing", 1, None),
    ):
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder)
    return Stored(folder, size, held.whole, held.checked)
