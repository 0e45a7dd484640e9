"""Two runs side by side: what differed in what ran, and in what came out.

Not a verdict: two runs made at different times differ in more than what one changed. A matched
bench is what concludes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from mtpx.trace.summary import RunSummary

FIELDS = (
    "pack",
    "weights_digest",
    "head_digest",
    "backend",
    "device",
    "dtype",
    "quantisation",
    "tier",
    "policy",
    "policy_parameters",
    "threads",
    "context_limit",
    "versions",
    "details",
)
"""Of the run record: what can make two runs differ."""


class Changed(msgspec.Struct, frozen=True):
    """A field of the run record that is not the same."""

    field: str
    a: Any
    b: Any


class Compared(msgspec.Struct, frozen=True):
    """One number in both runs, absent where a run has it not; `change` is b / a - 1 (0.1: 10 % more)."""

    group: str
    name: str
    unit: str
    a: float | None
    b: float | None
    change: float | None


class TraceDiff(msgspec.Struct, frozen=True):
    """What differs between two runs, and their numbers side by side."""

    changed: list[Changed]
    numbers: list[Compared]


def compare(a: RunSummary, b: RunSummary) -> TraceDiff:
    """Run `a` against run `b`."""
    return TraceDiff(_changed(a, b), list(_numbers(a, b)))


def _changed(a: RunSummary, b: RunSummary) -> list[Changed]:
    out: list[Changed] = []
    for name in FIELDS:
        one, other = getattr(a.run, name, None), getattr(b.run, name, None)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            out += [
                Changed(f"{name}.{key}", one.get(key), other.get(key))
                for key in sorted(one.keys() | other.keys())
                if one.get(key) != other.get(key)
            ]
        else:
            out.append(Changed(name, one, other))
    return out


def _numbers(a: RunSummary, b: RunSummary) -> Iterator[Compared]:
    for group, unit, one, other in (
        (
            "delivered",
            "tok/s",
            _by(a.arms, "arm", "tokens_per_s"),
            _by(b.arms, "arm", "tokens_per_s"),
        ),
        ("first token", "ms", _by(a.arms, "arm", "ttft_ms"), _by(b.arms, "arm", "ttft_ms")),
        (
            "weights read",
            "GB/s",
            _by(a.arms, "arm", "weights_gb_s"),
            _by(b.arms, "arm", "weights_gb_s"),
        ),
        ("full round", "ms", _costs(a), _costs(b)),
        ("acceptance", "%", _acceptance(a), _acceptance(b)),
        ("ratio to plain", "×", _by(a.verdicts, "arm", "ratio"), _by(b.verdicts, "arm", "ratio")),
        ("ratio to fastest plain", "×", _fastest(a), _fastest(b)),
    ):
        for name in dict.fromkeys([*one, *other]):
            x, y = one.get(name), other.get(name)
            if x is None and y is None:
                continue
            yield Compared(group, name, unit, x, y, y / x - 1.0 if x and y is not None else None)


def _by(rows: list[Any], key: str, value: str) -> dict[str, float | None]:
    return {getattr(row, key): getattr(row, value) for row in rows}


def _fastest(run: RunSummary) -> dict[str, float | None]:
    return _by(run.against_fastest, "arm", "ratio")


def _costs(run: RunSummary) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for row in run.rounds:
        kind = row.mode if row.mode != "mtp" else f"depth {row.depth}"
        width = "" if row.width == 1 else f", width {row.width}"
        out[f"{kind}, {row.route}{width}"] = row.full_cost_ms
    return out


def _acceptance(run: RunSummary) -> dict[str, float | None]:
    return {
        f"position {p.position}": 100 * p.conditional.rate if p.conditional else None
        for p in run.acceptance
    }
