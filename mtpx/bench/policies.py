"""Policies by name, as a bench and a replay take them: a depth, or a name that `mtpx.policy` knows."""

from __future__ import annotations

from mtpx.policy import DepthPolicy, FixedDepth
from mtpx.policy.registry import make_policy

AUTO = "auto"
"""Stands for the adaptive policy, as `--depth auto` does."""


def policy_named(name: str) -> DepthPolicy:
    """A fresh policy: "3" or "fixed:3" is that depth, "auto" the adaptive one, else a name of
    `mtpx.policy.registry`. Raises `PolicyError` where there is none."""
    depth = name.removeprefix("fixed:")
    if depth.isdecimal() and len(depth) < 4:
        return FixedDepth(int(depth))
    return make_policy("adaptive" if name == AUTO else name)
