"""The terminal's view of replays and of two traces side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mtpx_cli.draw import Notes, clean, heading, number, percent, table
from mtpx_cli.report_time import spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from mtpx.trace.diff import TraceDiff
    from mtpx.trace.replay import Replay


def draw_replays(found: Sequence[Replay]) -> Iterable[RenderableType]:
    """An estimate a policy, with what the trace itself delivered."""
    from rich.text import Text

    yield Text(
        "Estimate from the trace's own costs and acceptances, not a measurement.", style="bold"
    )
    first = found[0]
    rows = [
        ["as recorded", number(first.recorded_tokens_per_s), "", ""],
        ["plain (depth 0)", number(first.plain_tokens_per_s), "", ""],
    ]
    for one in found:
        depths = ", ".join(f"{d}: {percent(share)}" for d, share in one.depths.items())
        rows.append(
            [
                _name(one),
                number(one.tokens_per_s),
                f"{number(one.low)}–{number(one.high)}",
                depths,
            ]
        )
    yield table(["policy", "tok/s", "draws", "rounds at depth"], rows, trailing=1)
    for one in found:
        high = max((s.deepest for s in one.timeline), default=0)
        if high and min(s.shallowest for s in one.timeline) < high:
            yield Text(f"{spark(one.timeline, high)}  {_name(one)}, depth 0 to {high}")
    for sentence in dict.fromkeys(s for one in found for s in one.assumed):
        yield Text(f"Assumed: {clean(sentence)}.", style="dim")
    if first.draws == 1:
        yield Text("One draw says nothing of luck; --draws takes more.", style="dim")


def _name(one: Replay) -> str:
    given = ", ".join(f"{k} {v}" for k, v in one.parameters.items())
    return clean(f"{one.policy} ({given})" if given else one.policy)


def draw_diff(found: TraceDiff, a: str, b: str) -> Iterable[RenderableType]:
    """What differed in what ran, then the numbers."""
    from rich.text import Text

    yield Text(f"A: {clean(a)}\nB: {clean(b)}", overflow="fold")
    yield heading("What ran")
    if found.changed:
        rows = [[clean(c.field), _value(c.a), _value(c.b)] for c in found.changed]
        yield table(["field", "A", "B"], rows, left=3)
    else:
        yield Text("Nothing that is recorded differs.")
    yield heading("What came out")
    notes = Notes()
    rows = [
        [
            n.group,
            clean(n.name),
            notes.show(n.a, "not in that run"),
            notes.show(n.b, "not in that run"),
            n.unit,
            "" if n.change is None else f"{100 * n.change:+.1f} %",
        ]
        for n in found.numbers
    ]
    yield table(["", "", "A", "B", "unit", "change"], rows, left=2)
    if notes.lines():
        yield Text("\n".join(notes.lines()), style="dim")
    yield Text(
        "Not a verdict: runs made at different times differ in more than this. "
        "`mtpx bench --plain-baseline` compares matched runs.",
        style="dim",
    )


def _value(value: Any) -> str:
    return "–" if value is None or value == "" else clean(value)
