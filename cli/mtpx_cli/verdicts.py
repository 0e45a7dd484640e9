"""Drawing verdicts: does MTP pay, by how much, how sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtpx_cli.draw import clean, indented, percent, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from mtpx.bench.verdict import Part, Verdict

_STYLES = {"pays": "bold green", "does not pay": "bold red", "inconclusive": "bold yellow"}


def draw_verdict(verdict: Verdict) -> Iterable[RenderableType]:
    """One arm's verdict: the sentence first, then what it rests on."""
    from rich.text import Text

    if verdict.unsteady:
        yield Text(_caution(verdict), style="bold yellow")
    yield Text(_headline(verdict), style=_STYLES.get(verdict.verdict, "bold"))
    details = [Text(line) for line in _details(verdict)]
    if details:
        yield indented(*details)
    parts = [*verdict.per_suite] if len(verdict.per_suite) > 1 else []
    if verdict.without_loops is not None:
        parts.append(verdict.without_loops)
    if parts:
        yield indented(
            table(
                ["part", "verdict", "× plain", "interval", "level", "prompts", "reason"],
                [_part(part) for part in parts],
                left=2,
                trailing=1,
            )
        )


def no_verdict(reason: str) -> RenderableType:
    """There is none, and why."""
    from rich.text import Text

    how = "; `mtpx bench --plain-baseline` makes them" if "plain runs" in reason else ""
    return Text(f"No verdict on whether MTP pays: {clean(reason)}{how}.", style="bold")


def _headline(verdict: Verdict) -> str:
    arm = clean(verdict.arm) or "mtp"
    if verdict.null_control is not None:
        return f"Null control: {clean(verdict.reason)}."
    if verdict.verdict == "none":
        return f"No verdict on {arm}: {clean(verdict.reason)}."
    said = {"pays": "MTP pays", "does not pay": "MTP does not pay"}.get(
        verdict.verdict, "Whether MTP pays is inconclusive"
    )
    return f"{said} ({arm}): {_ratio(verdict)}."


def _caution(verdict: Verdict) -> str:
    """What is to be known before the verdict: the machine did not hold still."""
    change = 0.0 if verdict.drift is None else verdict.drift.change
    return (
        f"Caution: plain decode became {abs(change):.0%} {'slower' if change < 0 else 'faster'} while this "
        "was measured. Blocks cancel a steady drift, not a sudden one: run it again on a quiet machine."
    )


def _details(verdict: Verdict) -> Iterable[str]:
    if verdict.verdict == "none" and verdict.ratio is not None:
        yield f"Measured so far: {_ratio(verdict)}."
    if verdict.verdict != "none":
        yield f"{clean(verdict.reason).capitalize()} (margin {percent(verdict.margin, 1)})."
    others = []
    if verdict.bca_low is not None and verdict.bca_high is not None:
        others.append(f"bootstrap interval {verdict.bca_low:.3f} to {verdict.bca_high:.3f}")
    if verdict.pooled_ratio is not None:
        others.append(f"Σtokens/Σtime {verdict.pooled_ratio:.3f}")
    if verdict.blocks:
        others.append(_count(verdict.blocks, "block"))
    if verdict.void_blocks:
        others.append(f"{verdict.void_blocks} void")
    if verdict.short_blocks:
        others.append(f"{verdict.short_blocks} too short for a rate")
    if others:
        yield "; ".join(others)[:1].upper() + "; ".join(others)[1:] + "."
    if verdict.texts_equal is not None:
        yield f"Texts at temperature 0 are equal on {verdict.texts_equal} of {verdict.texts_compared} prompts."
    for difference in verdict.differences[:3]:
        where = clean(f"{difference.suite}/{difference.prompt}")
        at = "" if difference.position is None else f" from token {difference.position}"
        gap = "" if difference.gap is None else f", logits {difference.gap:.3g} apart"
        yield f"  {where} differs{at}{gap}."
    if len(verdict.differences) > 3:
        yield f"  … and {len(verdict.differences) - 3} more (--json has all)."
    if verdict.looped_prompts:
        yield (
            f"{_count(verdict.looped_prompts, 'prompt')} with looping output, which inflates acceptance; "
            "the verdict without them is below."
        )
    for effect, what in (
        (verdict.drift, "The plain rate drifted over the bench by"),
        (verdict.first_position, "The first run of a block differs from its last by"),
    ):
        if effect is not None and effect.flagged:
            p = "" if effect.p is None else f" (p = {effect.p:.2g})"
            yield f"{what} {100 * effect.change:+.1f} %{p}."


def _ratio(verdict: Verdict) -> str:
    if verdict.ratio is None:
        return "the ratio to the plain rate is unknown"
    prompts = _count(verdict.prompts, "prompt")
    interval = ""
    if verdict.low is not None and verdict.high is not None:
        level = percent(verdict.level, 0 if verdict.level == 0.95 else 2)
        interval = f"{level} interval {verdict.low:.3f} to {verdict.high:.3f}, "
    return f"{verdict.ratio:.3f} × the plain rate ({interval}{prompts})"


def _part(part: Part) -> list[str]:
    interval = level = "–"
    if part.low is not None and part.high is not None:
        interval = f"{part.low:.3f}–{part.high:.3f}"
    if part.level is not None:
        level = percent(part.level, 1)
    ratio = "–" if part.ratio is None else f"{part.ratio:.3f}"
    why = clean(part.reason) if part.verdict == "none" else ""
    return [clean(part.name), part.verdict, ratio, interval, level, str(part.prompts), why]


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
