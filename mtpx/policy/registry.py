"""Policies by name: "adaptive", "fixed", "ollama", or `module:Class` of your own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from mtpx.errors import PolicyError
from mtpx.policy import DepthPolicy
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.fixed import FixedDepth
from mtpx.policy.ollama import OllamaDepth

NAMES = ("adaptive", "fixed", "ollama")


def make_policy(
    name: str = "adaptive",
    *,
    depth: int | None = None,
    prior_costs: Sequence[float] = (),
    cost_feedback: bool = True,
) -> DepthPolicy:
    """A fresh policy.

    `depth` is the depth of "fixed" and of it alone; `prior_costs` and `cost_feedback` are
    `AdaptiveDepth`'s. `module:Class` is imported (the working directory counts as a place to import
    from) and called without arguments. Raises `PolicyError` when there is no such policy, or it
    cannot be made, or lacks a part of `DepthPolicy`.
    """
    if name == "fixed":
        if depth is None:
            raise PolicyError("the policy 'fixed' needs a depth")
        return FixedDepth(depth)
    if depth is not None:
        raise PolicyError(f"only the policy 'fixed' takes a depth, not {name!r}")
    if name == "adaptive":
        return AdaptiveDepth(prior_costs=prior_costs, cost_feedback=cost_feedback)
    if name == "ollama":
        return OllamaDepth()
    if ":" not in name:
        raise PolicyError(
            f"there is no policy {name!r}; there are {', '.join(NAMES)}, and module:Class"
        )
    return _imported(name)


def _imported(name: str) -> DepthPolicy:
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
        policy = getattr(found, attribute)()
    except Exception as error:
        raise PolicyError(
            f"policy {name!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
    if not isinstance(policy, DepthPolicy):
        needed = [part for part in _PARTS if not hasattr(policy, part)]
        raise PolicyError(f"policy {name!r} is no depth policy: it lacks {', '.join(needed)}")
    return policy


_PARTS = (
    "name",
    "wants_confidence",
    "propose",
    "verify",
    "decision",
    "observe",
    "explain",
    "parameters",
    "state",
    "restore",
)
