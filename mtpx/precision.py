"""Precisions and tiers: what a person can ask for, and the sentence where it cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from mtpx.errors import BackendError

Precision = Literal["float32", "bfloat16", "int8", "int4"]
"""What the large matrices are held in and multiplied with. The activations' type goes with it and is
the backend's choice."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Tier = Literal["standard", "row-invariant"]

TIERS: tuple[Tier, ...] = get_args(Tier)


def choose_precision(asked: str, reasons: Mapping[Precision, str], what: str) -> Precision:
    """`asked` (not "auto"), if it can be had.

    `reasons`: every precision in order, "" where `what` (a pack on a device, in words) can do it, else
    why it cannot. Raises `BackendError` that names those it can.
    """
    able = [name for name, why in reasons.items() if not why]
    for name, why in reasons.items():
        if name == asked and not why:
            return name
        if name == asked:
            raise BackendError(f"{what} cannot run in {asked}: {why}; it can: {', '.join(able)}")
    raise BackendError(
        f"there is no precision {asked!r}; there are auto, {', '.join(PRECISIONS)}, of which "
        f"{what} can do {', '.join(able)}"
    )


def choose_tier(asked: str, free: bool) -> Tier:
    """`asked`, or for "auto" the row-invariant tier where it costs next to nothing (`free`).

    Raises `BackendError` for any other word.
    """
    if asked == "auto":
        return "row-invariant" if free else "standard"
    for name in TIERS:
        if name == asked:
            return name
    raise BackendError(f"there is no tier {asked!r}; there are auto, {', '.join(TIERS)}")
