"""Where compiled graphs are kept: a folder for everything that they were made for.

They are machine code of this processor's, and made of this package's source: any change of either makes
others.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from mtpx import paths
from mtpx.digests import write_atomically
from mtpx.hardware import cpu_flags, cpu_name

if TYPE_CHECKING:
    from mtpx.packs import Pack
    from mtpx_torch.recipe import Recipe

MOST_FOLDERS = 8
"""Folders that are kept, those used last; one has some ten megabytes."""

DESCRIPTION = "made-for.json"

COMPLETE = "complete"


class MadeFor(msgspec.Struct, frozen=True):
    """All that graphs depend on."""

    torch: str
    source: str
    machine: str
    threads: int
    weights: str
    head: str
    precision: str
    product: str
    tier: str
    bucket: int
    context: int

    @classmethod
    def here(cls, pack: Pack, recipe: Recipe, tier: str, bucket: int, context: int) -> MadeFor:
        """On this processor, with this torch and as many threads as it uses now."""
        return cls(
            torch=str(torch.__version__),
            source=_source(),
            machine=f"{platform.system()} {platform.machine()} {cpu_name()} {_digest(cpu_flags())}",
            threads=torch.get_num_threads(),
            weights=pack.weights_digest,
            head=f"{pack.head_digest} {_digest(repr(pack.contract))}",
            precision=recipe.precision,
            product=recipe.product,
            tier=tier,
            bucket=bucket,
            context=context,
        )

    @property
    def folder(self) -> Path:
        """Where graphs for it are kept, or would be."""
        return compiled_dir() / _digest(msgspec.json.encode(self).decode())


def compiled_dir() -> Path:
    return paths.cache_dir() / "compiled"


def begin(made_for: MadeFor) -> Path:
    """Its folder, made. Raises `OSError`."""
    folder = made_for.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(
        folder / DESCRIPTION, msgspec.json.format(msgspec.json.encode(made_for), indent=2)
    )
    return folder


def complete(folder: Path) -> None:
    """Note that all graphs are there."""
    write_atomically(folder / COMPLETE, b"")


def is_complete(folder: Path) -> bool:
    return (folder / COMPLETE).is_file()


def used(folder: Path) -> None:
    """Note that it was used now, and remove the folders that were not for longest."""
    with suppress(OSError):
        (folder / DESCRIPTION).touch()
        others = sorted(compiled_dir().iterdir(), key=_last_used, reverse=True)
        for other in others[MOST_FOLDERS:]:
            shutil.rmtree(other, ignore_errors=True)


def _last_used(folder: Path) -> float:
    try:
        return (folder / DESCRIPTION).stat().st_mtime
    except OSError:
        return 0.0


@cache
def _source() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return _digest("".join(hashlib.sha256(f.read_bytes()).hexdigest() for f in files))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
