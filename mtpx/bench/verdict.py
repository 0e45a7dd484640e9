"""Does MTP pay here? The rule, applied to matched blocks.

A block's log ratio is log(MTP rate) - log(plain rate), averaged over its two runs of each. A prompt's
value is the mean of its blocks; prompts are the unit, because runs on one prompt resemble each
other. The estimand is the geometric mean over prompts of the rate ratio. The interval is Student's t
on prompt values at 95 %; the BCa bootstrap over whole prompts stands beside it, as does the pooled ratio
(Σtokens / Σtime of one arm over that of the other).

"pays" if the interval's low end is above 1 + margin, "does not pay" if its high end is below, else
"inconclusive". At a true ratio of exactly 1 + margin each wrong verdict then has a probability of
2.5 %. "none" where nothing can be said: no matched plain runs, fewer than 6 prompts, or a bench that
was cut short (a bench stopped at a moment of someone's choosing is not the bench that was
designed, so its interval is shown and no verdict drawn from it).

Suites are judged by Holm's step-down procedure, so that the chance of any wrong suite verdict on one
side stays at 2.5 %. For each of the m suites that have at least 6 prompts, p is the two-sided t test's
of "the log ratio is log(1 + margin)". The suites are sorted by p; the j-th (from 0) is held to
alpha = 0.05 / (m - j) until the first whose p is above its alpha; that one and all after it are held
to the alpha of that stop. A suite's interval is the t interval at 1 - its alpha, and its verdict is the
rule above on that interval, which agrees with the test. The intervals serve these verdicts;
they are not jointly a 95 % region.

Where plain decode in the fastest precision ran in the same blocks, an arm has a second verdict, by the same
rule, against that. Whoever wants to know whether MTP pays here is told the less favourable of the two: MTP
pays only if it beats both, at a chance of a wrong "pays" that is no larger than either's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from mtpx.bench import beside, intervals
from mtpx.bench.beside import Difference
from mtpx.bench.blocks import NOT_RUN, Block
from mtpx.bench.intervals import Effect
from mtpx.bench.looks import look_ends, look_levels
from mtpx.errors import BenchError

Answer = Literal["pays", "does not pay", "inconclusive", "none"]

MARGIN = 0.02
"""What MTP must gain to be worth its memory and its moving parts, unless told otherwise."""

MIN_PROMPTS = 6
"""Below this a t interval rests more on its assumptions than on what was measured."""

LEVEL = 0.95

NULL_HALF_WIDTH = 0.02
"""The widest null control a machine may show and still be called quiet enough for a verdict."""

UNSTEADY = 0.1
"""A drift of the plain rate that is told before the verdict: as large as most of what MTP gains."""

RESAMPLES = 9999
BOOTSTRAP_SEED = 0

NO_PLAIN = "matched plain runs required"


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verdict on part of a bench: a suite, or all but looping output. `level` is the interval's."""

    name: str
    verdict: Answer
    reason: str
    prompts: int
    blocks: int
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    pooled_ratio: float | None = None
    more_prompts: int | None = None


class NullControl(msgspec.Struct, frozen=True):
    """Plain against plain: whether the interval holds 1.0, and half its width on the ratio's scale."""

    contains_one: bool
    half_width: float
    quiet: bool


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict on one arm. `against` names the plain decode it is held to where that is in another
    precision, the fastest; else it is the arm's own.

    `ratio` with `low` and `high` (t, at `level`: 95 % unless the design had several looks),
    `bca_low` and `bca_high` are rate ratios, MTP over plain.
    `prompts` and `blocks` count what the ratio rests on, `void_blocks` and `short_blocks` what it
    could not use (cut; too short for a rate). `more_prompts` is about how many more would settle an
    inconclusive result, absent where it is too close to the margin. `texts_equal` of
    `texts_compared` prompts gave the same text in all runs at temperature 0. `drift` is the
    change of the plain rate over the bench, `first_position` that of a block's first run against
    its last (the same arm by design). `per_suite` is Holm-corrected.
    """

    arm: str
    verdict: Answer
    reason: str
    margin: float
    prompts: int = 0
    blocks: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    bca_low: float | None = None
    bca_high: float | None = None
    pooled_ratio: float | None = None
    more_prompts: int | None = None
    void_blocks: int = 0
    short_blocks: int = 0
    texts_equal: int | None = None
    texts_compared: int = 0
    differences: list[Difference] = []
    drift: Effect | None = None
    first_position: Effect | None = None
    level: float = LEVEL
    per_suite: list[Part] = []
    looped_prompts: int = 0
    without_loops: Part | None = None
    null_control: NullControl | None = None
    against: str = ""

    @property
    def unsteady(self) -> bool:
        """Whether the machine changed so much meanwhile that this has to be said first."""
        return self.drift is not None and self.drift.flagged and abs(self.drift.change) >= UNSTEADY


def verdicts(
    blocks: Iterable[Block],
    margin: float = MARGIN,
    *,
    resamples: int = RESAMPLES,
    looks: int = 1,
) -> list[Verdict]:
    """One verdict an arm and plain decode it is against, in the order these first appear; none at all
    where there are no blocks.
    `looks` is the design's: the verdict is that of the first look that settles it, else of the last.

    A null control among them that finds the machine too noisy takes the other arms' verdicts away.
    """
    arms: dict[tuple[str, str], list[Block]] = {}
    for block in blocks:
        arms.setdefault((block.against, block.arm), []).append(block)
    if len(arms) > 1:
        # A block cut before its other arm began, in a trace without a design: it may be any arm's.
        nameless = arms.pop(("", ""), [])
        for members in arms.values():
            members += nameless
    judged = [_look(members, margin, resamples, looks) for members in arms.values()]
    noisy = next((v for v in judged if v.null_control and not v.null_control.quiet), None)
    if noisy is None:
        return judged
    return [
        v
        if v.null_control
        else msgspec.structs.replace(v, verdict="none", reason=noisy.reason, more_prompts=None)
        for v in judged
    ]


def _look(blocks: Sequence[Block], margin: float, resamples: int, looks: int) -> Verdict:
    """The first look that settles it. A look has happened when all blocks before it were run whole."""
    levels = look_levels(looks)
    for k, end in enumerate(look_ends(len(blocks), looks)[:-1]):
        members = sorted(blocks, key=lambda block: block.pair)[:end]
        if any(block.void for block in members):
            break
        verdict = judge(members, margin, resamples=resamples, level=levels[k])
        if verdict.verdict in ("pays", "does not pay"):
            return msgspec.structs.replace(
                verdict, reason=f"{verdict.reason} at look {k + 1} of {looks}"
            )
    return judge(blocks, margin, resamples=resamples, level=levels[-1])


def judge(
    blocks: Sequence[Block],
    margin: float = MARGIN,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Verdict:
    """The verdict on one arm's blocks, by the rule in this module's docstring.

    `resamples` is the bootstrap's; 0 leaves the BCa interval out. `level` is that of all intervals. The
    order of `blocks` is immaterial. Raises `BenchError` for a margin that is not finite or at most -1,
    and for blocks of several arms.
    """
    check_margin(margin)
    arms = {block.arm for block in blocks if block.arm}
    if len(arms) > 1:
        raise BenchError(f"a verdict is about one arm, got blocks of {', '.join(sorted(arms))}")
    arm = arms.pop() if arms else ""
    against = next((block.against for block in blocks), "")
    if not any(block.plain for block in blocks):
        unmade = bool(blocks) and not any(block.mtp for block in blocks)
        reason = _cut(blocks) if unmade else NO_PLAIN
        return Verdict(arm=arm, verdict="none", reason=reason, margin=margin, against=against)
    ordered = sorted(blocks, key=lambda block: (block.suite, block.prompt, block.pair))
    usable = [block for block in ordered if block.log_ratio is not None]
    void = [block for block in ordered if block.void]
    overall = _part("", usable, margin, level, void)
    values = list(_values(usable).values())
    bca = None
    if resamples and len(values) >= 2:
        bca = intervals.bca_interval(values, level, resamples, BOOTSTRAP_SEED)
    compared = beside.texts(ordered)
    looped = {block.key for block in usable if block.looped}
    clean = [block for block in usable if not block.looped]
    verdict = Verdict(
        arm=arm,
        verdict=overall.verdict,
        reason=overall.reason,
        margin=margin,
        prompts=overall.prompts,
        blocks=overall.blocks,
        ratio=overall.ratio,
        low=overall.low,
        high=overall.high,
        bca_low=math.exp(bca[0]) if bca else None,
        bca_high=math.exp(bca[1]) if bca else None,
        pooled_ratio=overall.pooled_ratio,
        more_prompts=overall.more_prompts,
        void_blocks=len(void),
        short_blocks=len(ordered) - len(usable) - len(void),
        texts_equal=sum(compared.values()) if compared else None,
        texts_compared=len(compared),
        differences=beside.differences(ordered, compared),
        drift=beside.drift(usable),
        first_position=beside.first_position(usable),
        level=level,
        per_suite=_per_suite(usable, margin, level, void),
        looped_prompts=len(looped),
        without_loops=_part("without looping output", clean, margin, level, void)
        if looped
        else None,
        against=against,
    )
    return _null(verdict) if all(block.null for block in usable) and usable else verdict


def check_margin(margin: float) -> None:
    """Raises `BenchError` for a margin no verdict can be drawn with."""
    if not math.isfinite(margin) or margin <= -1.0:
        raise BenchError(f"the margin must be a number above -1, such as 0.02, got {margin:g}")


def _values(blocks: Iterable[Block]) -> dict[tuple[str, str], float]:
    """Each prompt's mean log ratio."""
    logs: dict[tuple[str, str], list[float]] = {}
    for block in blocks:
        if block.log_ratio is not None:
            logs.setdefault(block.key, []).append(block.log_ratio)
    return {key: math.fsum(values) / len(values) for key, values in logs.items()}


def _part(
    name: str, blocks: Sequence[Block], margin: float, level: float, void: Sequence[Block]
) -> Part:
    values = list(_values(blocks).values())
    if len(values) < 2:
        ratio = math.exp(values[0]) if values else None
        return Part(
            name,
            "none",
            _too_few(len(values), void),
            prompts=len(values),
            blocks=len(blocks),
            ratio=ratio,
            pooled_ratio=_pooled(blocks),
        )
    mean, low, high = (math.exp(x) for x in intervals.t_interval(values, level))
    answer, reason, more = _answer(values, low, high, margin, level, void)
    return Part(
        name,
        answer,
        reason,
        prompts=len(values),
        blocks=len(blocks),
        ratio=mean,
        low=low,
        high=high,
        level=level,
        pooled_ratio=_pooled(blocks),
        more_prompts=more,
    )


def _too_few(prompts: int, void: Sequence[Block]) -> str:
    if void:
        return _cut(void)
    return f"{MIN_PROMPTS} prompts are the least a verdict can rest on; this has {prompts}"


def _cut(void: Sequence[Block]) -> str:
    # Blocks that were never begun follow from the one that was cut.
    why = next((block.void for block in void if block.void != NOT_RUN), void[0].void)
    blocks = "one block is" if len(void) == 1 else f"{len(void)} blocks are"
    return f"{why}, so {blocks} missing, and a bench cut short has no verdict"


def _answer(
    values: Sequence[float],
    low: float,
    high: float,
    margin: float,
    level: float,
    void: Sequence[Block],
) -> tuple[Answer, str, int | None]:
    if void or len(values) < MIN_PROMPTS:
        return "none", _too_few(len(values), void), None
    bar = 1.0 + margin
    if low > bar:
        return "pays", f"the whole interval is above {bar:g}", None
    if high < bar:
        return "does not pay", f"the whole interval is below {bar:g}", None
    needed = intervals.values_needed(values, math.log(bar), level)
    if needed is None:
        return (
            "inconclusive",
            f"the interval holds {bar:g}, and so nearly in its middle that more prompts would not help",
            None,
        )
    more = _rounded(max(1, needed - len(values)))
    return (
        "inconclusive",
        f"the interval holds {bar:g}; a bench with about {more} more prompt{'s' * (more > 1)} would "
        "settle it",
        more,
    )


def _rounded(n: int) -> int:
    """Up to two significant digits: a planning figure claims no more."""
    unit: int = 10 ** max(0, len(str(n)) - 2)
    return -(-n // unit) * unit


def _pooled(blocks: Iterable[Block]) -> float | None:
    """Σtokens / Σtime of the MTP runs over that of the plain runs."""
    tokens, seconds = {"plain": 0, "mtp": 0}, {"plain": 0.0, "mtp": 0.0}
    for block in blocks:
        for side, runs in (("plain", block.plain), ("mtp", block.mtp)):
            tokens[side] += sum(run.rated_tokens for run in runs)
            seconds[side] += math.fsum(run.seconds or 0.0 for run in runs)
    if not tokens["plain"] or not seconds["plain"] or not seconds["mtp"]:
        return None
    return (tokens["mtp"] / seconds["mtp"]) / (tokens["plain"] / seconds["plain"])


def _per_suite(
    blocks: Sequence[Block], margin: float, level: float, void: Sequence[Block]
) -> list[Part]:
    suites: dict[str, list[Block]] = {}
    for block in blocks:
        suites.setdefault(block.suite, []).append(block)
    values = {name: list(_values(members).values()) for name, members in suites.items()}
    family = [name for name in suites if len(values[name]) >= MIN_PROMPTS]
    p_values = [intervals.t_p_value(values[name], math.log(1.0 + margin)) for name in family]
    alphas = dict(zip(family, intervals.holm_levels(p_values, 1.0 - level), strict=True))
    return [
        _part(name, members, margin, 1.0 - alphas[name] if name in alphas else level, void)
        for name, members in suites.items()
    ]


def _null(verdict: Verdict) -> Verdict:
    """What plain against plain says about the machine. Never about MTP."""
    if verdict.low is None or verdict.high is None or verdict.verdict == "none":
        return verdict
    contains = verdict.low <= 1.0 <= verdict.high
    half = (verdict.high - verdict.low) / 2
    quiet = contains and half <= NULL_HALF_WIDTH
    if quiet:
        reason = "null control: plain against plain is 1 within its interval; the machine is quiet enough"
    elif contains:
        reason = (
            f"the machine is too noisy for a verdict: plain against plain is known to ±{half:.1%} only, "
            f"and ±{NULL_HALF_WIDTH:.0%} is the most that will do; close other programs, or add prompts"
        )
    else:
        reason = (
            "the machine is too uneven for a verdict: plain against plain differs "
            f"({verdict.low:.3f} to {verdict.high:.3f}); close other programs and run it again"
        )
    return msgspec.structs.replace(
        verdict,
        verdict="none",
        reason=reason,
        more_prompts=None,
        per_suite=[
            msgspec.structs.replace(part, verdict="none", reason="null control", more_prompts=None)
            for part in verdict.per_suite
        ],
        null_control=NullControl(contains, half, quiet),
    )
