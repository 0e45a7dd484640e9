"""Whether committed text has the target's distribution: Pearson's chi-square.

Over the first two committed tokens, against the target's distribution as
`mtpx.sampling.distribution` makes it from the plain logits: the pair, the first token, and whether
the first token is one after which the rule under test verifies more (learned beforehand from other
requests; that is where a biased rule shows with the fewest samples).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from mtpx.backend import Engine, GoOn, Slot
from mtpx.sampling import Array, History, Sampling, distribution
from mtpx.testing.drive import opened
from mtpx.testing.subject import Subject

Stop = Callable[[Sequence[float]], bool]
"""A slot's confidences so far -> whether it makes no further draft."""

Rule = Callable[[Sequence[float], Sequence[int]], int]
"""(a slot's confidences, its drafted tokens) -> how many of its drafts are verified."""

PILOT = 96
"""Requests from which a rule's threshold and the tokens it favours are learned."""

MIN_EXPECTED = 5.0
"""Least expected count of a chi-square bin (Cochran 1954)."""

SEED = 20_240_229


def marginal_p_value(
    subject: Subject, sampling: Sampling, rule: Rule, stop: Stop | None = None
) -> float:
    """Smallest chi-square p-value of the tables of `_tables` under `rule`, chains ending where `stop` says
    so (`None`: nowhere), times how many were looked at (Bonferroni); 0 if a token came out that the
    target excludes."""
    favoured = _favoured(pilot(subject, sampling), rule)
    with subject.engine(width=subject.width + 1) as engine:
        prompt = list(subject.prompts[0])
        seen = _two_tokens(subject, engine, prompt, sampling, rule, stop)
        tables = _tables(subject, engine, prompt, sampling, seen, favoured)
    if tables is None:
        return 0.0
    from scipy.stats import chisquare

    values = [
        float(chisquare(observed, expected).pvalue)
        for observed, expected in tables
        if len(expected) > 1
    ]
    assert values, "the target is nearly certain: raise the subject's temperature or samples"
    return min(1.0, len(values) * min(values))


def _two_tokens(
    subject: Subject,
    engine: Engine,
    prompt: list[int],
    sampling: Sampling,
    rule: Rule,
    stop: Stop | None,
) -> Counter[tuple[int, int]]:
    """The first two committed tokens of `samples` requests."""
    # Whether a chain stops is to depend on a confidence that differs from request to request: the second.
    depth = min(2 if stop is None else 3, subject.depth, engine.info.head_depth_limit)
    seen: Counter[tuple[int, int]] = Counter()
    for start in range(0, subject.samples, subject.width):
        requests = range(start, min(start + subject.width, subject.samples))
        slots = [opened(engine, prompt, sampling, seed=SEED, request=r) for r in requests]
        live = list(slots)
        while live:
            _one_round(subject, engine, live, depth, rule, stop)
            live = [s for s in live if len(s.tokens) < len(prompt) + 2]
        for slot in slots:
            a, b = list(slot.tokens)[len(prompt) : len(prompt) + 2]
            seen[a, b] += 1
            slot.close()
    return seen


def _one_round(
    subject: Subject, engine: Engine, live: list[Slot], depth: int, rule: Rule, stop: Stop | None
) -> None:
    go_on: GoOn | None = None
    if stop is not None:
        go_on = lambda confidence: [not stop(row) for row in confidence.tolist()]  # noqa: E731
    drafts = engine.propose(live, [depth] * len(live), go_on)
    tokens = subject.drafted(engine, drafts)
    confidence = np.asarray(drafts.confidence)
    depths = [
        rule([float(c) for c in confidence[i][: len(row)]], row) for i, row in enumerate(tokens)
    ]
    if any(depths):
        engine.verify(live, drafts, depths)
    else:
        engine.plain(live)


Table = tuple[list[float], list[float]]
"""Observed and expected counts, one a bin."""


def _tables(
    subject: Subject,
    engine: Engine,
    prompt: list[int],
    sampling: Sampling,
    seen: Counter[tuple[int, int]],
    favoured: set[int],
) -> list[Table] | None:
    """Of the first token; of the first two (a bin for every pair expected often enough, one for the
    rest after each frequent first token, one for all other first tokens); of whether the first is
    `favoured`. Small bins pooled. `None` if a token outside the target's support was seen."""
    n = subject.samples
    wide = _widened(sampling)
    p1, support1 = target_distribution(subject, engine, prompt, [], sampling, wide)
    if any(support1[a] <= 0.0 for a, _ in seen):
        return None
    totals: Counter[int] = Counter()
    for (a, _), count in seen.items():
        totals[a] += count
    frequent = [int(a) for a in np.flatnonzero(n * p1 >= MIN_EXPECTED)]
    first = _with_rest(n, [totals[a] for a in frequent], [float(n * p1[a]) for a in frequent])
    pairs: Table = [first[0][-1]], [first[1][-1]]
    for a in frequent:
        p2, support2 = target_distribution(subject, engine, prompt, [a], sampling, wide)
        if any(support2[b] <= 0.0 for x, b in seen if x == a):
            return None
        often = [int(b) for b in np.flatnonzero(n * p1[a] * p2 >= MIN_EXPECTED)]
        observed = [seen[a, b] for b in often]
        means = [float(n * p1[a] * p2[b]) for b in often]
        counts = _with_rest(totals[a], observed, means, float(n * p1[a]))
        pairs = pairs[0] + counts[0], pairs[1] + counts[1]
    mass = float(n * p1[list(favoured)].sum())
    halves = _with_rest(n, [sum(totals[a] for a in favoured)], [mass])
    tables = [_pooled(*table) for table in (first, pairs, halves)]
    return [table for i, table in enumerate(tables) if table not in tables[:i]]


def _with_rest(
    total: int, observed: list[int], expected: list[float], mean: float | None = None
) -> Table:
    """These bins and one for everything else."""
    rest = (total if mean is None else mean) - sum(expected)
    return [*map(float, observed), float(total - sum(observed))], [*expected, max(0.0, rest)]


def _pooled(observed: list[float], expected: list[float]) -> Table:
    """Bins under `MIN_EXPECTED` become one; while that is under it, it takes in the smallest left."""
    order = sorted(range(len(expected)), key=lambda i: expected[i])
    pool_o = pool_e = 0.0
    while order and (
        expected[order[0]] < MIN_EXPECTED or (pool_e < MIN_EXPECTED and pool_o + pool_e > 0.0)
    ):
        i = order.pop(0)
        pool_o, pool_e = pool_o + observed[i], pool_e + expected[i]
    kept_o, kept_e = [observed[i] for i in order], [expected[i] for i in order]
    return ([*kept_o, pool_o], [*kept_e, pool_e]) if pool_e > 0.0 else (kept_o, kept_e)


def target_distribution(
    subject: Subject,
    engine: Engine,
    prompt: list[int],
    after: list[int],
    sampling: Sampling,
    wide: Sampling,
) -> tuple[Array, Array]:
    """The target's distribution after prompt and tokens, and one with slightly wider filters: its
    support allows for a token at a filter's edge that rounding moves across it."""
    slot = opened(engine, [*prompt, *after], head=False)
    logits = np.asarray(subject.logits(engine, slot), dtype=np.float64)
    slot.close()
    history = History(prompt, list(after))
    return distribution(logits, sampling, history), distribution(logits, wide, history)


def _widened(sampling: Sampling) -> Sampling:
    return msgspec.structs.replace(
        sampling,
        top_p=min(1.0, sampling.top_p + 0.01),
        top_k=sampling.top_k + 1 if sampling.top_k else 0,
        min_p=sampling.min_p * 0.9,
    )


@dataclass(frozen=True)
class Drafted:
    """One request's drafts."""

    tokens: list[int]
    confidence: list[float]


def pilot(subject: Subject, sampling: Sampling) -> list[Drafted]:
    """First drafts of requests outside the sample."""
    out: list[Drafted] = []
    with subject.engine(width=subject.width) as engine:
        depth = min(2, subject.depth, engine.info.head_depth_limit)
        while len(out) < PILOT:
            slots = [
                opened(engine, subject.prompts[0], sampling, seed=SEED + 1, request=len(out) + i)
                for i in range(subject.width)
            ]
            drafts = engine.propose(slots, [depth] * len(slots))
            confidence = np.asarray(drafts.confidence)
            for i, row in enumerate(subject.drafted(engine, drafts)):
                out.append(Drafted(row, [float(c) for c in confidence[i][: len(row)]]))
            for slot in slots:
                slot.close()
    return out


def argmax_drafts(drafts: list[Drafted]) -> bool:
    """Whether drafts are not drawn: every request has the same."""
    return len({tuple(d.tokens) for d in drafts}) == 1


def _favoured(drafts: list[Drafted], rule: Rule) -> set[int]:
    """First drafts after which `rule` verifies more than it does on average."""
    depths: dict[int, list[int]] = {}
    for d in drafts:
        depths.setdefault(d.tokens[0], []).append(rule(d.confidence, d.tokens))
    mean = float(np.mean([depth for row in depths.values() for depth in row]))
    return {token for token, row in depths.items() if float(np.mean(row)) > mean}
