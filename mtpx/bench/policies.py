"""Policies by name, as a bench and a replay take them: a depth, or a name that `mtpx.policy` knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mtpx.policy import DepthPolicy, FixedDepth
from mtpx.policy.registry import ADAPTIVE, NO_CUTS, PolicyOptions, make_policy

if TYPE_CHECKING:
    from mtpx.backend import EngineInfo

AUTO, AUTO_NO_CUTS = "auto", "auto-nocuts"
"""Stand for the adaptive policy, as `--depth auto` does, and for the same without confidence cuts."""

_KNOWN = {AUTO: ADAPTIVE, AUTO_NO_CUTS: NO_CUTS}


def options_named(name: str, chosen: PolicyOptions | None = None) -> PolicyOptions:
    """How the policy called `name` is set up: as `chosen`, where that is about this policy. Raises
    `PolicyError` for a name that is none."""
    known = _KNOWN.get(name, name)
    if chosen is None or chosen.name != known:
        alike = chosen is not None and chosen.adaptive and known in (ADAPTIVE, NO_CUTS)
        feedback = chosen.cost_feedback if alike and chosen is not None else True
        return PolicyOptions(known, cost_feedback=feedback)
    return chosen


def policy_named(
    name: str,
    chosen: PolicyOptions | None = None,
    *,
    info: EngineInfo | None = None,
    prior_costs: Sequence[float] = (),
    warn: Callable[[str], None] = lambda sentence: None,
) -> DepthPolicy:
    """A fresh policy: "3" or "fixed:3" is that depth, "auto" the adaptive one, else a name of
    `mtpx.policy.registry`, set up as `chosen` where that is about it. Raises `PolicyError` where there
    is none, and as `make_policy` does."""
    depth = name.removeprefix("fixed:")
    if depth.isdecimal() and len(depth) < 4:
        return FixedDepth(int(depth))
    return make_policy(options_named(name, chosen), info=info, prior_costs=prior_costs, warn=warn)
