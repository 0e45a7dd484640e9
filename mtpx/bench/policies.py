"""Policies by name, as a bench and a replay take them: a depth, or a name that `mtpx.policy` knows."""

from __future__ import annotations

from importlib import import_module

from mtpx.errors import PolicyError
from mtpx.policy import DepthPolicy, FixedDepth

AUTO = "adaptive"
"""What "auto" stands for."""


def policy_named(name: str) -> DepthPolicy:
    """A fresh policy: "3" or "fixed:3" is that depth, "auto" the adaptive one, else a name of the
    registry or `module:Class`. Raises `PolicyError`."""
    depth = name.removeprefix("fixed:")
    if depth.isdecimal() and len(depth) < 4:
        return FixedDepth(int(depth))
    name = AUTO if name == "auto" else name
    try:
        registry = import_module("mtpx.policy.registry")
    except ModuleNotFoundError:
        raise PolicyError(
            f"there is no policy {name!r} in this mtpx; a fixed depth such as 2 is one"
        ) from None
    made: DepthPolicy = registry.make_policy(name)
    return made
