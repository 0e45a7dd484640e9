"""What a round costs on one machine: measured cells by width and depth, and the key they hold for.

A table is for exactly one (pack, device, backend, dtype, quantisation, tier, details, context
bucket). The key is written inside and compared on load; nothing is approximated across keys. Within
one, a width between two measured ones is read on a straight line and a width outside takes the
nearest; a depth beyond the deepest measured one is absent.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from mtpx.errors import PolicyError
from mtpx.policy import artifact
from mtpx.policy.artifact import string

if TYPE_CHECKING:
    from mtpx.backend import EngineInfo

Array = npt.NDArray[np.float64]

SCHEMA = 1
KIND = "cost table"

FIRST_BUCKET, BUCKET_RATIO = 512, 8
"""Context buckets end at 512, 4096, 32768, ... tokens. Attention's share of a round grows with the
context; within a bucket the other depths of the same round grow along."""


def context_bucket(tokens: int) -> int:
    """The upper end of the bucket a context of `tokens` falls into: (previous end, end]."""
    end = FIRST_BUCKET
    while end < tokens:
        end *= BUCKET_RATIO
    return end


def bucket_start(bucket: int) -> int:
    """The fewest tokens of a context in this bucket."""
    return 1 if bucket <= FIRST_BUCKET else bucket // BUCKET_RATIO + 1


class TableKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a table was measured under. `context` is the bucket's upper end in tokens; `details` are
    what else an engine says it runs with: host threads, kernels chosen."""

    pack: str
    device: str
    backend: str
    dtype: str
    quantisation: str
    tier: str
    context: int
    details: str = ""

    @classmethod
    def of(cls, info: EngineInfo, context: int) -> TableKey:
        """The key of this engine at a context of `context` tokens."""
        details = {name: said for name, said in info.details.items() if name != "device"}
        if details.get("compile") != "ready":
            details.pop("compile", None)  # however it comes that decoding is eager
        return cls(
            pack=info.pack,
            device=info.device,
            backend=info.backend,
            dtype=info.dtype,
            quantisation=info.quantisation,
            tier=info.tier,
            context=context_bucket(context),
            details=", ".join(f"{name} {said}" for name, said in sorted(details.items())),
        )

    def differences(self, other: TableKey) -> list[str]:
        """Names of the fields in which the two differ."""
        return [
            name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)
        ]


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One width `n` and depth `k`: ms and joules of a step, for the whole batch.

    `verify_*` is everything but the head's steps. `steps` were timed; `p10_ms` and `p90_ms` are of
    their whole round.
    """

    n: int
    k: int
    verify_ms: float
    draft_ms: float
    verify_j: float | None = None
    draft_j: float | None = None
    steps: int | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cell that could not be measured honestly, and why."""

    n: int
    k: int
    reason: str


class Costs(NamedTuple):
    """One width's cells by depth, (max_k + 1,); joules are `None` on a machine without a meter."""

    verify_ms: Array
    draft_ms: Array
    verify_j: Array | None
    draft_j: Array | None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    schema: int
    key: TableKey
    cells: list[Cell]
    left_out: list[LeftOut] = []
    rail: str = ""
    about: dict[str, str] = {}


@dataclass(frozen=True)
class CostTable:
    """Measured costs of one key, complete: every width has every depth 0..max_k.

    `rail` names what the joules cover ("GPU rail only", ...), "" without a meter; `left_out` are the
    cells that are missing, with the reason; `about` is free text for people. Raises `PolicyError`
    for doubled cells, a width that lacks a depth, and costs that are not finite and above 0 (at
    depth 0 the draft cost is 0).
    """

    key: TableKey
    cells: tuple[Cell, ...]
    left_out: tuple[LeftOut, ...] = ()
    rail: str = ""
    about: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = f"the cost table of {self.key.pack}"
        if not self.cells:
            raise PolicyError(f"{name} holds no cell")
        seen: set[tuple[int, int]] = set()
        for cell in self.cells:
            _check_cell(cell, name)
            if (cell.n, cell.k) in seen:
                raise PolicyError(f"{name} holds the cell of width {cell.n}, depth {cell.k} twice")
            seen.add((cell.n, cell.k))
        deepest = max(k for _, k in seen)
        for n in sorted({n for n, _ in seen}):
            missing = [k for k in range(deepest + 1) if (n, k) not in seen]
            if missing:
                raise PolicyError(
                    f"{name} has no cell for width {n}, depth {missing[0]}; every width needs every "
                    f"depth from 0 to {deepest}"
                )
        with_joules = sum(cell.verify_j is not None for cell in self.cells)
        if with_joules not in (0, len(self.cells)):
            raise PolicyError(
                f"{name} has joules in {with_joules} of {len(self.cells)} cells; they are there in all "
                "of them or in none"
            )
        rows = {cell: cell for cell in sorted(self.cells, key=lambda c: (c.n, c.k))}
        object.__setattr__(self, "cells", tuple(rows))
        object.__setattr__(self, "_costs", {})

    @cached_property
    def max_k(self) -> int:
        """Deepest depth there are cells for."""
        return max(cell.k for cell in self.cells)

    @cached_property
    def widths(self) -> list[int]:
        return sorted({cell.n for cell in self.cells})

    @property
    def has_joules(self) -> bool:
        return self.cells[0].verify_j is not None

    def covers(self, n: int) -> bool:
        """Whether width `n` lies within the measured ones; outside, the nearest stands in."""
        return self.widths[0] <= n <= self.widths[-1]

    def costs(self, n: int) -> Costs:
        """Costs of width `n` by depth. Raises `PolicyError` unless `n` is 1 or more."""
        cache: dict[int, Costs] = self.__dict__["_costs"]
        found = cache.get(n)
        if found is None:
            if n < 1:
                raise PolicyError(f"a width is 1 or more sequences, got {n}")
            found = cache[n] = self._interpolated(n)
        return found

    def _interpolated(self, n: int) -> Costs:
        widths = self.widths
        below = max((w for w in widths if w <= n), default=widths[0])
        above = min((w for w in widths if w >= n), default=widths[-1])
        share = (n - below) / (above - below) if above > below else 0.0
        low = [cell for cell in self.cells if cell.n == below]
        high = [cell for cell in self.cells if cell.n == above]

        def mix(name: str) -> Array:
            a, b = (np.array([getattr(cell, name) for cell in row]) for row in (low, high))
            return (1.0 - share) * a + share * b

        return Costs(
            mix("verify_ms"),
            mix("draft_ms"),
            mix("verify_j") if self.has_joules else None,
            mix("draft_j") if self.has_joules else None,
        )

    def check(self, key: TableKey) -> None:
        """Raises `PolicyError` naming the fields in which this table is for something else."""
        wrong = self.key.differences(key)
        if wrong:
            parts = [f"{name} {_said(self.key, name)}, not {_said(key, name)}" for name in wrong]
            raise PolicyError(
                f"this cost table was measured for {'; '.join(parts)}; `mtpx measure` makes one for here"
            )

    def file_name(self) -> str:
        """The name a table of this key goes by."""
        digest = hashlib.sha256(msgspec.json.encode(self.key)).hexdigest()[:12]
        return f"{artifact_name(self.key.pack)}-{self.key.context}-{digest}.table.toml"

    def render(self) -> str:
        """The table as TOML; `parse_table` reads it back equal."""
        lines = [f"kind = {string(KIND)}", f"schema = {SCHEMA}"]
        if self.rail:
            lines.append(f"rail = {string(self.rail)}")
        lines += ["", "[key]", *_fields(self.key)]
        if self.about:
            lines += ["", "[about]"]
            lines += [f"{string(name)} = {string(said)}" for name, said in self.about.items()]
        for table, rows in (("cells", self.cells), ("left_out", self.left_out)):
            for row in rows:
                lines += ["", f"[[{table}]]", *_fields(row)]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Write the file and read it back. Raises `PolicyError`."""
        artifact.write(path, self.render(), self, parse_table)


def parse_table(data: bytes, where: str = "the cost table") -> CostTable:
    """The table these bytes are. Raises `PolicyError` naming `where`."""
    file = artifact.decode(data, KIND, SCHEMA, _File, where)
    try:
        return CostTable(file.key, tuple(file.cells), tuple(file.left_out), file.rail, file.about)
    except PolicyError as error:
        raise PolicyError(f"{where} cannot be used: {error}") from None


def read_table(path: Path, key: TableKey | None = None) -> CostTable:
    """The table in a file, for `key` if one is given. Raises `PolicyError` naming what does not fit."""
    table = artifact.read(path, parse_table)
    if key is not None:
        try:
            table.check(key)
        except PolicyError as error:
            raise PolicyError(f"{path} does not fit: {error}") from None
    return table


def artifact_name(pack: str) -> str:
    """A pack's name as part of a file's name."""
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in pack)[:60].lstrip(".") or "pack"


def _check_cell(cell: Cell, name: str) -> None:
    where = f"{name}, width {cell.n}, depth {cell.k}"
    if not (1 <= cell.n <= 2**20 and 0 <= cell.k <= 2**10):
        raise PolicyError(f"{where}: a width is 1 or more, a depth 0 or more")
    if (cell.verify_j is None) != (cell.draft_j is None):
        raise PolicyError(f"{where}: verify_j and draft_j are there together or not at all")
    costs = {"verify_ms": cell.verify_ms, "verify_j": cell.verify_j}
    drafts = {"draft_ms": cell.draft_ms, "draft_j": cell.draft_j}
    for field_name, cost in (costs | (drafts if cell.k else {})).items():
        if cost is not None and not 0.0 < cost < math.inf:
            raise PolicyError(f"{where}: {field_name} is {cost!r}; a cost is finite and above 0")
    if cell.k == 0 and any(drafts.values()):
        raise PolicyError(f"{where}: nothing is drafted at depth 0, so its draft cost is 0")


def _said(key: TableKey, name: str) -> str:
    value = getattr(key, name)
    return f"up to {value} tokens" if name == "context" else repr(value)


def _fields(row: msgspec.Struct) -> Sequence[str]:
    """The struct's fields as TOML lines, those at their default left out."""
    return [
        f"{name} = {string(value) if isinstance(value, str) else repr(value)}"
        for name, value in msgspec.to_builtins(row).items()
    ]
