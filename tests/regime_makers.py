"""Regimes for tests of policies."""

from __future__ import annotations

from typing import Any

from mtpx.simulate.scenario import Scenario


def regime(**fields: Any) -> Scenario:
    """A good head whose rows are cheap, but for `fields`."""
    known: dict[str, Any] = {
        "acceptance": [0.8, 0.7, 0.6],
        "cost_ms": {1: [10.0, 11.0, 12.0, 13.0]},
        "draft_ms": 0.2,
        "noise": 0.02,
    }
    return Scenario(**(known | fields))
