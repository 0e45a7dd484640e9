"""What cost tables, calibrations and plans look like on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mtpx_cli.draw import Notes, clean, heading, indented, number, percent, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mtpx.calibrate import PlanCheck
    from mtpx.policy.calibration import Calibration
    from mtpx.policy.planner import Choice, Option, RowPlan
    from mtpx.policy.table import CostTable

NO_CALIBRATION = "no calibration of this head yet: `mtpx measure --calibrate` makes one"


BUSY = 1.5
"""p90 over p10 of plain rounds above which the machine was doing something else as well."""


def draw_table(costs: CostTable, calibration: Calibration | None) -> Iterable[RenderableType]:
    """Every cell in ms, tok/s, J and tok/J; the best depths of each width marked."""
    from mtpx.policy.planner import propose_depth

    key, notes = costs.key, Notes()
    no_joules = costs.about.get("joules", "absent: the table has none").removeprefix("absent: ")
    for n in costs.widths:
        yield heading(
            clean(f"{key.pack} on {key.device}, context up to {key.context} tokens, width {n}")
        )
        choice = None
        if calibration is not None:
            choice = propose_depth(costs, calibration, n, 0.0, n, objective="speed")
        rows = []
        for cell in (cell for cell in costs.cells if cell.n == n):
            option = choice.options[cell.k] if choice else None
            joules = None if cell.verify_j is None else cell.verify_j + (cell.draft_j or 0.0)
            rows.append(
                [
                    str(cell.k),
                    number(cell.verify_ms + cell.draft_ms),
                    "–"
                    if cell.p10_ms is None
                    else f"{number(cell.p10_ms)}–{number(cell.p90_ms or 0)}",
                    number(cell.draft_ms),
                    notes.show(option.tokens_per_s if option else None, NO_CALIBRATION),
                    notes.show(joules, no_joules),
                    notes.show(option.tokens_per_j if option else None, no_joules),
                    _marks(choice, cell.k) if choice else "",
                ]
            )
        for left in (left for left in costs.left_out if left.n == n):
            dash = notes.dash(left.reason)
            rows.append([str(left.k), dash, *[""] * 6])
        joule = f"J ({costs.rail})" if costs.rail else "J"
        plain = next(cell for cell in costs.cells if (cell.n, cell.k) == (n, 0))
        if plain.p10_ms and plain.p90_ms and plain.p90_ms > BUSY * plain.p10_ms:
            notes.dash(
                f"the machine was busy: a plain round took {number(plain.p10_ms)} to "
                f"{number(plain.p90_ms)} ms; measure again when it is not"
            )
        columns = ["depth", "ms", "p10–p90", "of it draft", "tok/s", joule, "tok/J", ""]
        yield indented(table(columns, rows))
    if notes.lines():
        yield indented(*map(clean, notes.lines()))


def _marks(choice: Choice, depth: int) -> str:
    """What this depth is the best at."""
    marks = ["fastest"] if choice.depth == depth else []
    thrift = [option.tokens_per_j or 0.0 for option in choice.options]
    if max(thrift) > 0.0 and thrift.index(max(thrift)) == depth:
        marks.append("most tok/J")
    return ", ".join(marks)


def draw_calibration(calibration: Calibration) -> Iterable[RenderableType]:
    """Rates by position, and the reliability curve: observed against predicted by confidence."""
    yield heading("How often a draft stands, given that all before it stood")
    rates = [f"{j}: {percent(p)}" for j, p in enumerate(calibration.priors, 1)]
    yield indented("by position  " + ", ".join(rates) + "; later ones as the last")
    rows = []
    for bucket in calibration.reliability():
        lower = "-∞" if bucket.lower is None else f"{bucket.lower:g}"
        observed = "–" if bucket.observed is None else percent(bucket.observed)
        bar = "█" * round(20 * (bucket.observed or 0.0))
        rows.append(
            [
                f"{lower} to {bucket.upper:g}",
                str(bucket.reached),
                observed,
                percent(bucket.predicted),
                bar,
            ]
        )
    if rows:
        yield indented(table(["confidence", "drafts", "stood", "predicted", ""], rows))


def draw_choice(choice: Choice, n: int, objective: str, slack: float) -> Iterable[RenderableType]:
    """What was weighed by depth, and the choice in a sentence."""
    yield heading(f"Depth for {n} sequence{'' if n == 1 else 's'}, objective {objective}")
    if choice.options:
        yield indented(_options("depth", choice.options, choice.depth))
    yield indented(why_depth(choice, n, objective, slack))


def draw_rows(plan: RowPlan, objective: str) -> Iterable[RenderableType]:
    """What was weighed by total of rows, and who verifies how many."""
    yield heading("Drafts to verify")
    if plan.over_budget or not plan.options:
        yield indented("No draft is verified: this is a plain step.")
        return
    total = sum(plan.depths)
    yield indented(_options("drafts in all", plan.options, total))
    depths = ", ".join(map(str, plan.depths))
    yield indented(f"By sequence: {depths} ({total} in all, the best by objective {objective}).")


def _options(name: str, options: Sequence[Option], chosen: int) -> RenderableType:
    notes = Notes()
    rows = []
    for option in options:
        mark = "chosen" if option.rows == chosen else "" if option.feasible else "too slow"
        rows.append(
            [
                str(option.rows),
                number(option.tokens),
                number(option.ms),
                number(option.tokens_per_s),
                notes.show(option.joules, "the table has no joules"),
                "–" if option.tokens_per_j is None else f"{option.tokens_per_j:.3f}",
                mark,
            ]
        )
    drawn = table([name, "tokens", "ms", "tok/s", "J", "tok/J", ""], rows)
    return indented(drawn, *notes.lines()) if notes.lines() else drawn


def why_depth(choice: Choice, n: int, objective: str, slack: float) -> str:
    """The choice in a sentence: which of the two zeros it is, or what made the depth the best."""
    if choice.zero == "by_cap":
        return (
            f"Depth 0 by the cap: above the scheduler's own width everyone decodes plain, and {n} is "
            "above it. The table was not looked at."
        )
    option = choice.options[choice.depth]
    speed = f"{number(option.tokens_per_s)} tok/s"
    best = f"{speed}, the most there is"
    if objective != "speed" and option.tokens_per_j is not None:
        against = "depth 1's" if objective == "energy" else "the fastest depth's"
        best = (
            f"{option.tokens_per_j:.3f} tokens/J at {speed}, the most among depths with at least "
            f"{percent(1.0 - slack)} of {against} speed"
        )
    zero = "Depth 0 by cost: no draft pays. " if choice.zero else f"Depth {choice.depth}: "
    return zero + best + "."


def draw_check(found: PlanCheck) -> Iterable[RenderableType]:
    """Predicted beside measured."""
    from mtpx.calibrate import WITHIN

    rows = [
        [
            "predicted",
            number(found.predicted_tokens_per_s),
            number(found.predicted_tokens),
            number(found.predicted_ms),
        ],
        [
            "measured",
            number(found.measured_tokens_per_s),
            number(found.measured_tokens),
            number(found.measured_ms),
        ],
    ]
    yield heading(f"The plan against {found.rounds} rounds of prompts it was not fitted on")
    yield indented(table(["", "tok/s", "tokens a round", "ms a round"], rows))
    said = "holds" if found.holds else f"does not hold: {_off(found)}"
    yield indented(
        f"Measured speed is {found.difference:+.1%} off, {percent(WITHIN)} is allowed; the plan {said}."
    )


def _off(found: PlanCheck) -> str:
    """Which of its two halves the plan is wrong about."""
    tokens = found.measured_tokens / found.predicted_tokens - 1.0
    ms = found.measured_ms / found.predicted_ms - 1.0
    if abs(ms) >= abs(tokens):
        return f"a round takes {ms:+.0%}; was the machine busy, then or now? `mtpx measure` asks it again"
    return f"a round commits {tokens:+.0%}; these texts are not those the head was calibrated on"
