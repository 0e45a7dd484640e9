"""Which depth, or which policy chooses it: the options that all commands that decode share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from mtpx.api import Depth
    from mtpx.policy.registry import PolicyOptions

F = TypeVar("F", bound=Callable[..., Any])


class DepthParam(click.ParamType[int | str]):
    """A number of drafts a round, "off", or "auto"."""

    name = "depth"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value in ("off", "auto"):
            return str(value)
        try:
            depth = int(value)
        except ValueError:
            depth = -1
        if depth < 0:
            self.fail(f"{value!r} is neither a number of drafts nor off or auto", param, ctx)
        return depth


@dataclass(frozen=True, slots=True)
class Chosen:
    """As `Model.stream` takes them. `policy` `None` is the default one."""

    depth: Depth = None
    policy: PolicyOptions | None = None


_DEPTH = click.option(
    "--depth",
    type=DepthParam(),
    metavar="N|off|auto",
    help="Drafts a round; auto, the default, leaves it to --policy.",
)

_POLICY = [
    click.option(
        "--policy",
        metavar="NAME",
        help="What chooses the depth: adaptive (the default), measured, ollama, fixed, module:Class.",
    ),
    click.option(
        "--objective",
        type=click.Choice(["speed", "balanced", "energy"]),
        help="What --policy measured goes for.  [default: speed]",
    ),
    click.option(
        "--slack",
        type=float,
        metavar="S",
        help="Speed that --policy measured may give up for energy.  [default: 0.1]",
    ),
    click.option(
        "--table",
        "tables",
        type=click.Path(path_type=Path),
        multiple=True,
        help="Its cost table; once a context.  [default: what `mtpx measure` left]",
    ),
    click.option(
        "--calibration", type=click.Path(path_type=Path), help="Its calibration.  [default: ditto]"
    ),
    click.option(
        "--cost-feedback/--no-cost-feedback",
        "cost_feedback",
        default=None,
        help="Whether --policy adaptive prices depths by what rounds took, or by the pack's own costs.",
    ),
]

PARTS = ("policy", "objective", "slack", "tables", "calibration", "cost_feedback")


def depth_options(command: F) -> F:
    """Add --depth and the options of policies to a command, which receives them as one argument,
    `chosen`."""

    @functools.wraps(command)
    def wrapped(*args: Any, depth: int | str | None, **options: Any) -> Any:
        given = {name: options.pop(name) for name in PARTS}
        return command(*args, chosen=choose(depth, given, _typed), **options)

    for option in reversed([_DEPTH, *_POLICY]):
        wrapped = option(wrapped)
    return cast(F, wrapped)


def policy_options(command: F) -> F:
    """Add the options of policies alone; the command receives `policy`, `PolicyOptions` or `None`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in PARTS}
        return command(*args, policy=choose(None, given, _typed).policy, **options)

    for option in reversed(_POLICY):
        wrapped = option(wrapped)
    return cast(F, wrapped)


def _typed(name: str) -> bool:
    """Whether an option was given on the command line, not by a setting."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def choose(depth: int | str | None, given: dict[str, Any], typed: Callable[[str], bool]) -> Chosen:
    """What was asked for. What is typed wins over settings, and a setting of another policy than the
    one that is used is left aside; a typed one is refused with a `PolicyError`.

    A number of drafts from the settings is a taste, held to what a pack's head can; typed, it is meant.
    """
    from mtpx.policy.registry import ADAPTIVE, FIXED, MEASURED, NO_CUTS, PolicyOptions

    name, number = given["policy"], depth if isinstance(depth, int) and depth else None
    if typed("policy") and not typed("depth"):
        depth, number = None, number if name == FIXED else None
    elif typed("depth") and not typed("policy") and (depth != "auto" or name == FIXED):
        name = None
    if depth in ("off", 0):
        return Chosen("off")
    name = name or (FIXED if number else ADAPTIVE)
    belongs = {
        "objective": (MEASURED,),
        "slack": (MEASURED,),
        "tables": (MEASURED,),
        "calibration": (MEASURED,),
        "cost_feedback": (ADAPTIVE, NO_CUTS),
    }
    options = {
        part: given[part]
        for part, names in belongs.items()
        if given[part] not in (None, ()) and (typed(part) or name in names)
    }
    policy = PolicyOptions(name, depth=number, **options)
    if number and typed("depth"):
        return Chosen(depth=number)
    asked = given["policy"] is not None or number or options or depth == "auto"
    return Chosen(depth="auto" if depth == "auto" else None, policy=policy if asked else None)
