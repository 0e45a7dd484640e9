"""Policies by name, set up as asked: "adaptive", "measured", "ollama", "fixed", or `module:Class`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mtpx.errors import PolicyError
from mtpx.policy import DepthPolicy
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.fixed import FixedDepth
from mtpx.policy.measured import SLACK
from mtpx.policy.ollama import OllamaDepth
from mtpx.policy.planner import OBJECTIVES, Objective

if TYPE_CHECKING:
    from mtpx.backend import EngineInfo

ADAPTIVE, NO_CUTS, MEASURED, OLLAMA, FIXED = (
    "adaptive",
    "adaptive-nocuts",
    "measured",
    "ollama",
    "fixed",
)
NAMES = (ADAPTIVE, NO_CUTS, MEASURED, OLLAMA, FIXED)
"""`adaptive-nocuts` is the adaptive policy that verifies every draft: what the cuts are worth is the
difference between the two."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Which policy chooses the depth, and how it is set up.

    `cost_feedback` False prices depths by the pack's configured costs instead of measured ones
    (adaptive). `objective` (default "speed"), `slack` (default 0.1), `tables` and `calibration`
    (files; default: what `mtpx measure` left for this engine) are the planner's ("measured"). `depth`
    is that of "fixed"; without it the pack's recommended one. Raises `PolicyError` for a name that is
    none, and for an option of another policy.
    """

    name: str = ADAPTIVE
    objective: Objective | None = None
    slack: float | None = None
    tables: tuple[Path, ...] = ()
    calibration: Path | None = None
    cost_feedback: bool = True
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES and ":" not in self.name:
            raise PolicyError(
                f"there is no policy {self.name!r}; there are {', '.join(NAMES)}, and module:Class"
            )
        if self.name != MEASURED:
            for option in ("objective", "slack", "tables", "calibration"):
                if getattr(self, option) not in (None, ()):
                    said = "table" if option == "tables" else option
                    raise PolicyError(
                        f"{said} is an option of the policy 'measured', and this one is {self.name!r}"
                    )
        if not self.cost_feedback and not self.adaptive:
            raise PolicyError(
                f"switching cost feedback off is for the policy 'adaptive', and this one is {self.name!r}"
            )
        if self.depth is not None and self.name != FIXED:
            raise PolicyError(
                f"depth {self.depth} is a fixed depth, and the policy {self.name!r} chooses its own: "
                "leave one of the two out"
            )
        if self.objective is not None and self.objective not in OBJECTIVES:
            raise PolicyError(
                f"there is no objective {self.objective!r}; there are {', '.join(OBJECTIVES)}"
            )
        if self.slack is not None and not 0.0 <= self.slack < 1.0:
            raise PolicyError(f"slack is a fraction from 0 up to but not 1, got {self.slack:g}")

    @property
    def adaptive(self) -> bool:
        return self.name in (ADAPTIVE, NO_CUTS)

    @property
    def key(self) -> str:
        """The name under which what it learns is kept: what was learned without cost feedback holds
        no costs, and must not take the place of what does."""
        return self.name if self.cost_feedback else f"{self.name}, configured costs"


def make_policy(
    policy: str | PolicyOptions = ADAPTIVE,
    *,
    depth: int | None = None,
    info: EngineInfo | None = None,
    prior_costs: Sequence[float] = (),
    warn: Callable[[str], None] = lambda sentence: None,
) -> DepthPolicy:
    """A fresh policy.

    `depth` is the depth of "fixed", where `policy` is a name; `info` is the engine whose tables "measured" looks
    for; `prior_costs` are the pack's configured costs (adaptive); `warn` takes the planner's remarks.
    `module:Class` is imported (the working directory counts as a place to import from) and called
    without arguments. Raises `PolicyError` when there is no such policy, or it cannot be made, or
    lacks a part of `DepthPolicy`.
    """
    options = PolicyOptions(policy, depth=depth) if isinstance(policy, str) else policy
    if options.name == FIXED:
        if options.depth is None:
            raise PolicyError("the policy 'fixed' needs a depth")
        return FixedDepth(options.depth)
    if options.adaptive:
        return AdaptiveDepth(
            prior_costs=prior_costs,
            cost_feedback=options.cost_feedback,
            cuts=options.name != NO_CUTS,
        )
    if options.name == OLLAMA:
        return OllamaDepth()
    if options.name == MEASURED:
        return _measured(options, info, warn)
    return _imported(options.name)


def _measured(
    options: PolicyOptions, info: EngineInfo | None, warn: Callable[[str], None]
) -> DepthPolicy:
    from mtpx.policy.planner_files import load_planner

    if info is None:
        raise PolicyError(
            "the policy 'measured' decides by this machine's cost table, so it needs a loaded model; "
            "`mtpx plan` shows what it would choose"
        )
    return load_planner(
        info,
        options.objective or "speed",
        SLACK if options.slack is None else options.slack,
        tables=options.tables,
        calibration=options.calibration,
        warn=warn,
    )


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
