"""Weights out of a wheel on a package index.

A wheel is used as a container: found through the index that was named (`mtpx.simple_index`) or by pip
(`mtpx.ask_pip`), fetched, checked against the manifest's digest, the files wanted taken out, checked
again, and the wheel deleted. Nothing in it is installed or run. A file has its own name only once it
is whole and right.

Without a network of its own a machine can be helped: a wheel fetched elsewhere (`pip download
--no-deps PROJECT==VERSION`) and put into the pack's weights folder is used instead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from mtpx import ask_pip, digests, download, simple_index
from mtpx.config import Environment
from mtpx.digests import CHUNK, Progress
from mtpx.errors import PackError
from mtpx.manifest import PackFile, PyPISource

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
    with disk(source.project, folder), locked(folder, _part(wheel), source.size, progress):
        missing = [file for file in files if not (folder / file.name).exists()]
        if not missing:
            return
        _check_space(source, missing, wheel)
        if not wheel.exists():
            try:
                _fetch(source, index, wheel, progress)
            except PackError as error:
                raise PackError(
                    f"{error}; or by hand: `pip download --no-deps {source.project}=="
                    f"{source.version}`, and put {source.wheel} into {folder}"
                ) from None
        elif (found := digests.sha256(wheel)) != source.sha256:
            raise PackError(
                f"{wheel} is not the wheel its manifest names (sha256 {found}, expected "
                f"{source.sha256}); delete it, it is fetched again"
            )
        for file in missing:
            _extract(wheel, file, folder / file.name)
        wheel.unlink()


def _fetch(source: PyPISource, index: str | None, wheel: Path, progress: Progress | None) -> None:
    url = _locate(source, index)
    receive = download.copy if urlsplit(url).scheme == "file" else download.resume
    part = _part(wheel)
    resumed = part.exists()
    while True:
        receive(url, part, source.size, progress)
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


def _locate(source: PyPISource, index: str | None) -> str:
    """The wheel's URL: from the index if one was named, else from pip; failing that, the
    manifest's."""
    try:
        return simple_index.where(source, index) if index else ask_pip.where(source)
    except PackError:
        if source.url is None:
            raise
        return source.url


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
def disk(what: str, folder: Path) -> Iterator[None]:
    """Turn what the disk refuses into a sentence. What was fetched so far is kept."""
    try:
        yield
    except OSError as error:
        if download.disk_full(error):
            raise PackError(
                f"the disk is full: fetching {what} into {folder} stopped; make room, or "
                "set MTPX_CACHE_DIR to another disk, and run again to go on from there"
            ) from None
        raise PackError(
            f"cannot write to {folder}: {error.strerror or error}; set MTPX_CACHE_DIR to a folder "
            "that can be written"
        ) from None


@contextmanager
def locked(folder: Path, part: Path, size: int, progress: Progress | None) -> Iterator[None]:
    """Hold the folder alone; while another process does, show how far its fetch is: how long `part`
    is, of `size` bytes."""
    import filelock

    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".lock")
    while True:
        try:
            lock.acquire(timeout=LOCK_POLL_S)
            break
        except filelock.Timeout:
            if progress:
                progress(min(download.length(part), size), size)
        except NotImplementedError:
            raise PackError(
                f"{folder} is on a file system without locks; set MTPX_CACHE_DIR to another one"
            ) from None
        except IsADirectoryError:
            raise PackError(
                f"{folder / '.lock'} is a directory, and should be a file that keeps two fetches apart; "
                "remove it"
            ) from None
    try:
        yield
    finally:
        lock.release()


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
