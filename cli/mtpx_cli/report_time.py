"""The report's later sections: depth over time, what another depth would have done, where time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtpx_cli.draw import Notes, clean, number, percent, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from mtpx.trace.summary import RunSummary
    from mtpx.trace.timeline import Stretch

_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 60
"""Characters of a depth line: it fits 80 columns with its indent and its scale."""

_CARRIED = 12
"""Requests listed with their carry; a long session has hundreds, and --json has all."""


def depth_over_time(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    if not run.timeline:
        yield Text("No MTP round was run.")
        return
    low = min(s.shallowest for s in run.timeline)
    high = max(s.deepest for s in run.timeline)
    rounds = sum(s.rounds for s in run.timeline)
    if low == high:
        yield Text(f"Depth {low} in all {rounds} rounds.")
    else:
        yield Text(f"{spark(run.timeline, high)}  depth {low} to {high}, {rounds} rounds")
    yield from _choices(run, notes)
    if run.unsampled:
        whys = ", ".join(f"{clean(u.excluded)} {u.rounds}" for u in run.unsampled)
        yield Text(f"Rounds whose time became no cost sample: {whys}.", style="dim")
    yield from _belief(run)


def spark(stretches: Sequence[Stretch], high: int) -> str:
    """Mean depth over time, one character a part of the run; the tallest is depth `high`."""
    n = min(_SPARKS, len(stretches))
    out = []
    for i in range(n):
        part = stretches[i * len(stretches) // n : (i + 1) * len(stretches) // n]
        mean = sum(s.depth * s.rounds for s in part) / sum(s.rounds for s in part)
        out.append(_BARS[round(mean / max(high, 1) * (len(_BARS) - 1))])
    return "".join(out)


def _choices(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    reasons = {choice.reason for choice in run.choices}
    if reasons <= {"fixed", ""}:
        return
    rows = [
        [
            clean(choice.reason) or "not said",
            str(choice.rounds),
            str(choice.tokens),
            number(choice.ms),
            ""
            if choice.reason in ("selected", "fixed")
            else notes.show(choice.extra_ms, "ran at the selected depth, or its cost is not known"),
        ]
        for choice in run.choices
    ]
    yield table(["why", "rounds", "tokens", "ms", "extra ms"], rows)
    yield Text(
        "extra ms: what they took beyond the selected depth's time for the same tokens, by this run's "
        "own costs and acceptances; negative where they were faster.",
        style="dim",
    )


def _belief(run: RunSummary) -> Iterable[RenderableType]:
    from rich.text import Text

    last = run.last_belief
    if last is None:
        return
    if run.belief_over_time:
        final = run.belief_over_time[-1]
        best = "" if final.selected is None else f"depth {final.selected} held best; "
        speeds = ", ".join(f"{depth}: {number(v)}" for depth, v in final.tokens_per_s.items())
        yield Text(
            f"Believed at the last of {run.beliefs} looks: {best}expected tok/s by depth {speeds}.",
            style="dim",
        )
        return
    said = "; ".join(f"{clean(k)} {_short(v)}" for k, v in last.belief.items())
    yield Text(f"Believed at round {last.round}: {said or 'nothing'}.", style="dim")


def _short(value: object) -> str:
    """A belief on one line, numbers at reading precision."""
    if isinstance(value, bool) or value is None:
        return clean(value)
    if isinstance(value, (int, float)):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{clean(k)}: {_short(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_short(v) for v in value) + "]"
    return clean(value)


def hindsight(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    found = run.hindsight
    if found is None or found.reason:
        reason = found.reason if found else "no MTP round was run"
        yield Text(f"Not known: {clean(reason)}.")
        return
    rows = [
        [
            f"{s.depth}{' (best)' if s.depth == found.best_depth else ''}",
            number(s.cost_ms) + (" ~" if s.interpolated else ""),
            number(s.tokens_per_round),
            number(s.tokens_per_s),
        ]
        for s in found.depths
    ]
    yield table(["fixed depth", "ms", "tok /\nround", "tok/s"], rows)
    if any(s.interpolated for s in found.depths):
        yield Text("~ not run at this depth: between its neighbours.", style="dim")
    oracle = found.oracle_tokens_per_s
    if oracle is not None:
        yield Text(
            f"A seer who knows each round how many drafts will stand: {number(oracle)} tok/s; "
            "no policy can do better."
        )
    for arm in found.arms:
        yield Text(f"{clean(arm.arm)}: {number(arm.tokens_per_s)} tok/s, {regret(arm.regret)}")
    yield Text(
        "Estimates from this trace's own costs and acceptances; a verdict needs a bench.",
        style="dim",
    )


def regret(value: float | None) -> str:
    """A regret in words."""
    if value is None:
        return "regret not known"
    if value <= 0:
        return f"{percent(-value, 1)} above the best fixed depth (no regret)"
    return f"{percent(value, 1)} below the best fixed depth (its regret)"


def time_went(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    if run.spent:
        modes = list(dict.fromkeys(part.mode for part in run.spent))
        names = list(dict.fromkeys(part.part for part in run.spent))
        found = {(part.mode, part.part): part for part in run.spent}
        rows = []
        for mode in modes:
            cells = []
            for name in names:
                part = found.get((mode, name))
                cells.append("" if part is None else percent(part.share, 1))
            total = sum(part.ms for part in run.spent if part.mode == mode)
            rows.append([clean(mode), number(total / 1e3), *cells])
        yield table(["requests", "s", *names], rows)
        yield Text(
            "rest: of rounds timed apart, what no part accounts for; rounds: those not timed apart.",
            style="dim",
        )
    else:
        yield Text("Nothing was timed.")
    yield from _context(run)
    yield from _energy(run, notes)
    yield from _carry(run, notes)


def _context(run: RunSummary) -> Iterable[RenderableType]:
    if len({(row.low, row.high) for row in run.context}) < 2:
        return
    rows = [
        [
            clean(row.mode),
            f"{row.low}–{row.high}",
            str(row.rounds),
            number(row.round_ms),
            number(row.tokens_per_s),
        ]
        for row in run.context
    ]
    yield ""
    yield table(["requests", "context", "rounds", "ms", "tok/s"], rows, left=2)


def _energy(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    yield Text("")
    reason = "energy was not recorded for every request"
    if run.run is not None and run.run.no_meter:
        reason = f"no energy meter: {clean(run.run.no_meter)}"
    for arm in run.arms:
        joules = notes.show(arm.token_energy_j, reason)
        yield Text(f"{clean(arm.arm)}: {joules} J a token")
    if run.run is not None and run.run.meter:
        yield Text(f"Measured: {clean(run.run.meter)}; prefill left out.", style="dim")


def _carry(run: RunSummary, notes: Notes) -> Iterable[RenderableType]:
    from rich.text import Text

    carried = [
        r for r in run.requests if not r.warmup and (r.session or r.reused_tokens or r.carry)
    ]
    if not carried:
        return
    rows = [
        [
            str(r.id),
            str(r.session),
            str(r.prompt_tokens),
            str(r.reused_tokens),
            notes.show(r.prefill_ms, "the time of the prefill was not recorded"),
            notes.show(r.ttft_ms, "the time to the first token was not recorded"),
            "; ".join(filter(None, map(clean, (r.carry, r.reuse))))
            or notes.dash("nothing was said of the head's rows"),
        ]
        for r in carried[:_CARRIED]
    ]
    columns = ["request", "session", "prompt", "reused", "prefill ms", "TTFT ms", "carry"]
    yield ""
    yield table(columns, rows, trailing=1)
    if len(carried) > _CARRIED:
        yield Text(f"… and {len(carried) - _CARRIED} more (--json has all)", style="dim")
