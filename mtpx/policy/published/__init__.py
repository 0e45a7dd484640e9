"""Published cost tables and calibrations: the ones that ship, and others in their publisher's form.

A published file in its own form is TOML with `model`, `device`, `cells` (rows of n, k, verify_ms,
verify_j, draft_ms, draft_j) and `windows` (histograms of accepted drafts). It says nothing of dtype,
tier or context, so its table can be planned with and never matches a loaded engine.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from mtpx.errors import PolicyError
from mtpx.policy import artifact
from mtpx.policy.calibration import (
    Calibration,
    HeadIdentity,
    histogram_priors,
    parse_calibration,
)
from mtpx.policy.table import FIRST_BUCKET, Cell, CostTable, TableKey, parse_table

TABLE, CALIBRATION = ".table.toml", ".calibration.toml"


def published_names() -> list[str]:
    """Names of the tables that ship."""
    found = resources.files(__package__)
    return sorted(f.name.removesuffix(TABLE) for f in found.iterdir() if f.name.endswith(TABLE))


def published(name: str) -> tuple[CostTable, Calibration]:
    """A shipped table and its calibration. Raises `PolicyError` for a name there is none for."""
    if name not in published_names():
        raise PolicyError(
            f"there is no published table {name!r}; there are {', '.join(published_names())}"
        )
    folder = resources.files(__package__)
    return (
        parse_table((folder / f"{name}{TABLE}").read_bytes(), name),
        parse_calibration((folder / f"{name}{CALIBRATION}").read_bytes(), name),
    )


class _Published(msgspec.Struct):
    model: str
    device: str
    cells: list[tuple[int, int, float, float, float, float]]
    windows: list[list[int]] = []


def parse_published(data: bytes, where: str) -> tuple[CostTable, Calibration | None]:
    """A table in its publisher's form, and the calibration its histograms give, if it has any.

    Raises `PolicyError` naming `where`.
    """
    try:
        found = msgspec.toml.decode(data, type=_Published)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PolicyError(f"{where} is not a published table: {error}") from None
    unstated = "not stated"
    key = TableKey(found.model, found.device, unstated, unstated, unstated, unstated, FIRST_BUCKET)
    cells = tuple(
        Cell(n=n, k=k, verify_ms=v_ms, draft_ms=d_ms, verify_j=v_j, draft_j=d_j)
        for n, k, v_ms, v_j, d_ms, d_j in found.cells
    )
    try:
        table = CostTable(key, cells, about={"source": where})
        if not found.windows:
            return table, None
        priors = histogram_priors(found.windows)
        return table, Calibration(HeadIdentity(), priors, about={"source": where})
    except PolicyError as error:
        raise PolicyError(f"{where} cannot be used: {error}") from None


def read_any_table(path: Path) -> tuple[CostTable, Calibration | None]:
    """A cost table from a file of ours or in its publisher's form. Raises `PolicyError`."""
    return artifact.read(path, _parse_any)


def _parse_any(data: bytes, where: str) -> tuple[CostTable, Calibration | None]:
    return parse_published(data, where) if _foreign(data) else (parse_table(data, where), None)


def _foreign(data: bytes) -> bool:
    """Whether this is a table in its publisher's form: rows of numbers for cells, no kind of ours."""
    try:
        table: dict[str, Any] = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return False
    cells = table.get("cells")
    return (
        "kind" not in table and isinstance(cells, list) and all(isinstance(c, list) for c in cells)
    )
