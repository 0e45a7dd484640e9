"""Drawing verdicts: does MTP pay, by how much, how sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtpx_cli.draw import clean, indented, percent, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from mtpx.bench.verdict import Part, Verdict

_STYLES = {"pays": "bold green", "does not pay": "bold red", "inconclusive": "bold yellow"}


def draw_verdict(verdict: Verdict, fastest: Verdict | None = None) -> Iterable[RenderableType]:
    """One arm's verdict: the sentence first, then what it rests on. With a verdict against plain decode in
    the `fastest` precision, the less favourable of the two is the sentence and the other the line below."""
    from rich.text import Text

    from mtpx.bench.fastest import leading, precision_of

    if verdict.unsteady:
        yield Text(_caution(verdict), style="bold yellow")
    lead = leading(verdict, fastest)
    yield Text(_headline(lead), style=_STYLES.get(lead.verdict, "bold"))
    grounds = list(_grounds(verdict))
    if fastest is not None:
        other = fastest if lead is verdict else verdict
        yield Text(_other(other), style=_STYLES.get(other.verdict, "bold"))
        grounds = [
            f"{start}: {line[:1].lower()}{line[1:]}"
            for start, found in (("Fastest precision", fastest), ("Its own", verdict))
            for line in _grounds(found)
        ]
    details = [Text(line) for line in [*grounds, *_details(verdict)]]
    if details:
        yield indented(*details)
    parts = [_part(part) for part in _parts(verdict)]
    if fastest is not None:
        name = clean(precision_of(fastest.against))
        parts += [_part(part, f" / {name}") for part in _parts(fastest)]
    if parts:
        yield indented(
            table(
                ["part", "verdict", "× plain", "interval", "level", "prompts", "reason"],
                parts,
                left=2,
                trailing=1,
            )
        )


def _parts(verdict: Verdict) -> list[Part]:
    parts = [*verdict.per_suite] if len(verdict.per_suite) > 1 else []
    return [*parts, verdict.without_loops] if verdict.without_loops is not None else parts


def fastest_line(no_fastest: str) -> RenderableType:
    """Why no plain decode in the fastest precision was timed, or that the bench's own is it."""
    from rich.text import Text

    return indented(Text(f"{clean(no_fastest)[:1].upper()}{clean(no_fastest)[1:]}.", style="dim"))


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
        against = f" against {_plain(verdict)}" if verdict.against else ""
        return f"No verdict on {arm}{against}: {clean(verdict.reason)}."
    said = {"pays": "MTP pays", "does not pay": "MTP does not pay"}.get(
        verdict.verdict, "Whether MTP pays is inconclusive"
    )
    return f"{said} ({arm}): {_ratio(verdict)}."


def _other(verdict: Verdict) -> str:
    """The verdict that is not the headline, in a line."""
    said = f"no verdict: {clean(verdict.reason)}" if verdict.verdict == "none" else verdict.verdict
    ratio = "" if verdict.ratio is None else f"{_ratio(verdict, 'its rate')}: "
    return f"Against {_plain(verdict)}: {ratio}{said}."


def _plain(verdict: Verdict) -> str:
    from mtpx.bench.fastest import held_to

    return clean(held_to(verdict))


def _caution(verdict: Verdict) -> str:
    """What is to be known before the verdict: the machine did not hold still."""
    change = 0.0 if verdict.drift is None else verdict.drift.change
    return (
        f"Caution: plain decode became {abs(change):.0%} {'slower' if change < 0 else 'faster'} while this "
        "was measured. Blocks cancel a steady drift, not a sudden one: run it again on a quiet machine."
    )


def _grounds(verdict: Verdict) -> Iterable[str]:
    """Why the verdict is what it is."""
    if verdict.verdict == "none" and verdict.ratio is not None:
        yield f"Measured so far: {_ratio(verdict)}."
    if verdict.verdict != "none":
        yield f"{clean(verdict.reason).capitalize()} (margin {percent(verdict.margin, 1)})."


def _details(verdict: Verdict) -> Iterable[str]:
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


def _ratio(verdict: Verdict, of: str = "") -> str:
    """The ratio to the rate `of` something, with its interval."""
    if verdict.ratio is None:
        return "the ratio to the plain rate is unknown"
    prompts = _count(verdict.prompts, "prompt")
    interval = ""
    if verdict.low is not None and verdict.high is not None:
        level = percent(verdict.level, 0 if verdict.level == 0.95 else 2)
        interval = f"{level} interval {verdict.low:.3f} to {verdict.high:.3f}, "
    if not of:
        of = f"the rate of {_plain(verdict)}" if verdict.against else "the plain rate"
    return f"{verdict.ratio:.3f} × {of} ({interval}{prompts})"


def _part(part: Part, against: str = "") -> list[str]:
    interval = level = "–"
    if part.low is not None and part.high is not None:
        interval = f"{part.low:.3f}–{part.high:.3f}"
    if part.level is not None:
        level = percent(part.level, 1)
    ratio = "–" if part.ratio is None else f"{part.ratio:.3f}"
    why = clean(part.reason) if part.verdict == "none" else ""
    return [
        clean(part.name) + against,
        part.verdict,
        ratio,
        interval,
        level,
        str(part.prompts),
        why,
    ]


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
