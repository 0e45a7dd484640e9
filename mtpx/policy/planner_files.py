"""Where tables and calibrations lie, and the planner they make for a loaded engine.

They are in `planner/` in the state directory, one file a key and one a head, so the newest
measurement is the one there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mtpx.errors import PolicyError
from mtpx.paths import state_dir
from mtpx.policy.calibration import Calibration, HeadIdentity, read_calibration
from mtpx.policy.measured import SLACK, MeasuredPlanner
from mtpx.policy.planner import Objective
from mtpx.policy.table import CostTable, TableKey, read_table

if TYPE_CHECKING:
    from mtpx.backend import EngineInfo


def planner_dir() -> Path:
    """Where `mtpx measure` leaves its files."""
    return state_dir() / "planner"


def save_table(table: CostTable, folder: Path | None = None) -> Path:
    """Write the table under its own name; returns the path. Raises `PolicyError`."""
    path = (folder or planner_dir()) / table.file_name()
    table.write(path)
    return path


def save_calibration(calibration: Calibration, folder: Path | None = None) -> Path:
    """Write the calibration under its own name; returns the path. Raises `PolicyError`."""
    path = (folder or planner_dir()) / calibration.file_name()
    calibration.write(path)
    return path


@dataclass(frozen=True, slots=True)
class Shelf:
    """What lies in the folder: readable tables and calibrations, newest first, and what cannot be read."""

    tables: list[tuple[Path, CostTable]]
    calibrations: list[tuple[Path, Calibration]]
    unreadable: list[str]


def shelf(folder: Path | None = None) -> Shelf:
    """Everything in the planner's folder. A folder that is not there is an empty one."""
    place = folder or planner_dir()
    found = Shelf([], [], [])
    for path in _newest_first(place, "*.table.toml"):
        try:
            found.tables.append((path, read_table(path)))
        except PolicyError as error:
            found.unreadable.append(str(error))
    for path in _newest_first(place, "*.calibration.toml"):
        try:
            found.calibrations.append((path, read_calibration(path)))
        except PolicyError as error:
            found.unreadable.append(str(error))
    return found


def load_planner(
    info: EngineInfo,
    objective: Objective = "speed",
    slack: float = SLACK,
    *,
    tables: Sequence[Path] = (),
    calibration: Path | None = None,
    folder: Path | None = None,
    warn: Callable[[str], None] = lambda sentence: None,
) -> MeasuredPlanner:
    """The planner for this engine, from its tables (one a context bucket) and its head's calibration.

    `tables` and `calibration` name files; what is not named is looked for in `folder` (default: where
    `mtpx measure` leaves it). Raises `PolicyError` that says which is missing, what is there instead,
    and the command that makes it; that a named file is of another machine or head; and as
    `MeasuredPlanner` does.
    """
    found = shelf(folder) if not tables or calibration is None else Shelf([], [], [])
    named = [_named_table(path, info) for path in tables]
    named = named or list(matching_tables(found, info).values())
    if calibration is None:
        head = matching_calibration(found, info)
    else:
        head = read_calibration(calibration)
        head.check(HeadIdentity.of(info))
    return MeasuredPlanner(named, head, objective=objective, slack=slack, warn=warn)


def _named_table(path: Path, info: EngineInfo) -> CostTable:
    """This file's table, in its publisher's form or ours, if it is of this engine."""
    from mtpx.policy.published import read_any_table

    table, _ = read_any_table(path)
    table.check(TableKey.of(info, table.key.context))
    return table


def matching_tables(found: Shelf, info: EngineInfo) -> dict[int, CostTable]:
    """The tables measured under this engine's key, by context bucket. Raises `PolicyError` if none."""
    tables: dict[int, CostTable] = {}
    closest: list[str] | None = None
    near: CostTable | None = None
    for _, table in found.tables:
        wrong = table.key.differences(TableKey.of(info, table.key.context))
        if not wrong:
            tables.setdefault(table.key.context, table)
        elif table.key.pack == info.pack and (closest is None or len(wrong) < len(closest)):
            closest, near = wrong, table
    if tables:
        return tables
    make = f"`mtpx measure {info.pack} --calibrate` makes one"
    if near is not None:
        try:
            near.check(TableKey.of(info, near.key.context))
        except PolicyError as error:
            raise PolicyError(f"no cost table of {info.pack} fits: {error}") from None
    raise PolicyError(
        f"there is no cost table of {info.pack} on {info.device} yet; {make}{_also(found)}"
    )


def matching_calibration(found: Shelf, info: EngineInfo) -> Calibration:
    """The newest calibration of this engine's head. Raises `PolicyError` if there is none."""
    head = HeadIdentity.of(info)
    for _, calibration in found.calibrations:
        if not calibration.head.differences(head):
            return calibration
    others = len(found.calibrations)
    there = f"; {others} of other heads are there" if others else ""
    raise PolicyError(
        f"there is no calibration of the head of {info.pack}{there}; "
        f"`mtpx measure {info.pack} --calibrate` makes one{_also(found)}"
    )


def _also(found: Shelf) -> str:
    return f" (and {found.unreadable[0]})" if found.unreadable else ""


def _newest_first(folder: Path, pattern: str) -> list[Path]:
    try:
        dated = [(path.stat().st_mtime_ns, path) for path in folder.glob(pattern)]
    except OSError as error:
        raise PolicyError(f"cannot list {folder}: {error.strerror or error}") from None
    return [path for _, path in sorted(dated, reverse=True)]
