"""How much memory there is, and how much a model takes."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtpx.checkpoint import Checkpoint

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes in all and free now; a container's limit counts as all there is. `None`: not known."""

    total: int | None
    free: int | None


def host_memory() -> HostMemory:
    """The memory of this machine, or of the container this process is in."""
    total: int | None = None
    with suppress(OSError, ValueError, AttributeError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _darwin_free() if platform.system() == "Darwin" else _linux_free()
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is not None and (total is None or limit < total):
        total = limit
        left = limit - (used or 0)
        free = left if free is None else min(free, left)
    return HostMemory(total, free)


def _linux_free() -> int | None:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == "MemAvailable":
                return int(value.split()[0]) * 1024
    return None


def _darwin_free() -> int | None:
    """Pages that are free or can be had at once."""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        said = subprocess.run(
            ["/usr/bin/vm_stat"], capture_output=True, text=True, timeout=5, check=True
        ).stdout
        pages = {
            key.strip(): int(value.strip().rstrip("."))
            for key, _, value in (line.partition(":") for line in said.splitlines()[1:])
            if value.strip().rstrip(".").isdecimal()
        }
        wanted = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable")
        return sum(pages.get(name, 0) for name in wanted) * os.sysconf("SC_PAGE_SIZE")
    return None


def _cgroup(name: str) -> int | None:
    with suppress(OSError, ValueError):
        return int((CGROUP / name).read_text())
    return None


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes a model takes: its weights, and keys and values for `context` tokens."""

    weights: int
    cache: int
    context: int

    @property
    def total(self) -> int:
        return self.weights + self.cache


def need(checkpoint: Checkpoint, context: int, itemsize: int) -> Need:
    """What the target takes with numbers of `itemsize` bytes; head and working space come on top."""
    config = checkpoint.config
    numbers = sum(prod(tensor.shape) for tensor in checkpoint.tensors.values())
    row = 2 * config.layers * config.kv_heads * config.head_dim
    return Need(numbers * itemsize, row * context * itemsize, context)
