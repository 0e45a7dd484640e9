"""Checks at temperature > 0: the committed marginal is the target's, and the check can tell.

The statistic is Pearson's chi-square over the first two committed tokens, against the target's
distribution as `mtpx.sampling.distribution` makes it from the plain logits. Two rules that are
known to bias the text must fail the same test, or it proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from mtpx.backend import Engine, Slot
from mtpx.sampling import Array, History, Sampling, distribution
from mtpx.testing.drive import Finding, opened, run
from mtpx.testing.recorder import recorded_uniforms
from mtpx.testing.subject import Subject

Rule = Callable[[Sequence[float], Sequence[int]], int]
"""(a slot's confidences, its drafted tokens) -> how many of its drafts are verified."""

ALLOWED = 1e-4
"""Least p-value of a right engine's chi-square: four tests a kit, so one false alarm in 2,500. A
forbidden rule is caught below it."""

MIN_EXPECTED = 5.0
"""Least expected count of a chi-square bin (Cochran 1954)."""

SEED = 20_240_229


def verify_all(confidence: Sequence[float], tokens: Sequence[int]) -> int:
    return len(tokens)


def sampled_text_has_the_target_distribution(subject: Subject) -> Finding:
    """All drafts verified: plain temperature; filters; penalties with a filter."""
    found = Finding()
    t = subject.temperature
    for sampling in (
        Sampling(temperature=t),
        Sampling(temperature=t, top_k=8, min_p=0.02),
        Sampling(temperature=t, top_p=0.9, repeat_penalty=1.4, frequency_penalty=0.6),
    ):
        p = marginal_p_value(subject, sampling, verify_all)
        assert p >= ALLOWED, (
            f"sampled with {_named(sampling)} the text does not follow the target: chi-square over "
            f"the first two tokens gives p = {p:.2g} in {subject.samples} samples"
        )
        found.compared += subject.samples
    return found


def a_confidence_cut_keeps_the_distribution(subject: Subject) -> Finding:
    """Draft j is verified while confidences 1..j stay above the median: an allowed rule."""
    sampling = Sampling(temperature=subject.temperature)
    threshold = _pilot(subject, sampling)[0]

    def cut(confidence: Sequence[float], tokens: Sequence[int]) -> int:
        below = [j for j, c in enumerate(confidence) if c < threshold]
        return min(below, default=len(confidence))

    p = marginal_p_value(subject, sampling, cut)
    assert p >= ALLOWED, (
        f"with the confidence cut the text does not follow the target: p = {p:.2g} in "
        f"{subject.samples} samples"
    )
    return Finding(compared=subject.samples)


def deciding_on_the_next_confidence_is_caught(subject: Subject) -> Finding:
    """Negative control: both drafts are verified if confidence 2, which depends on drawn token 1,
    is high, and none otherwise. The test must see the bias."""
    sampling = Sampling(temperature=subject.temperature)
    _, threshold, drawn, varies = _pilot(subject, sampling)
    if not drawn:
        return Finding(skipped="its drafts are argmax, which permits any rule")
    if not varies:
        return Finding(skipped="confidence 2 is the same after every first draft tried")

    def peek(confidence: Sequence[float], tokens: Sequence[int]) -> int:
        return len(tokens) if len(confidence) > 1 and confidence[1] >= threshold else 0

    return _expect_caught(subject, sampling, peek, "verifying draft 1 on confidence 2")


def deciding_on_the_drawn_token_is_caught(subject: Subject) -> Finding:
    """Negative control: drafts are verified only if draft 1 is the target's likeliest token."""
    sampling = Sampling(temperature=subject.temperature)
    if not _pilot(subject, sampling)[2]:
        return Finding(skipped="its drafts are argmax, which permits any rule")
    with subject.engine() as engine:
        slot = opened(engine, subject.prompts[0], head=False)
        likeliest = int(np.argmax(subject.logits(engine, slot)))

    def favour(confidence: Sequence[float], tokens: Sequence[int]) -> int:
        return len(tokens) if tokens and tokens[0] == likeliest else 0

    return _expect_caught(subject, sampling, favour, "verifying draft 1 on its token")


def a_seed_and_a_request_name_the_text(subject: Subject) -> Finding:
    """Same seed and request: same tokens. Another of either: others."""
    sampling = Sampling(temperature=subject.temperature)
    with subject.engine() as engine:
        depth = min(subject.depth, engine.info.head_depth_limit)

        def text(seed: int, request: int) -> list[int]:
            return run(
                engine,
                subject.prompts[0],
                depth,
                subject.tokens,
                sampling,
                seed=seed,
                request=request,
            )[0].delivered

        first = text(1, 1)
        assert text(1, 1) == first, "the same seed and request gave another text"
        others = [text(2, 1), text(1, 2), text(3, 3)]
        assert all(other != first for other in others), (
            "another seed or another request gave the same text; the stream of uniforms does not "
            "depend on both"
        )
    return Finding(compared=4)


def no_uniform_is_used_twice(subject: Subject) -> Finding:
    """Every round of every request draws under a key (seed, request, round) of its own, rewinding
    included."""
    sampling = Sampling(temperature=subject.temperature)
    used: dict[tuple[int, int, int], str] = {}
    with subject.engine(width=2) as engine, recorded_uniforms() as calls:
        depth = min(subject.depth, engine.info.head_depth_limit)
        slots = [opened(engine, subject.prompts[0], sampling, seed=5, request=r) for r in (0, 1)]
        for turn in range(8):
            calls.clear()
            if turn == 4:
                for slot in slots:
                    slot.rewind(len(slot.tokens) - 1)
            if turn % 3 == 2:
                engine.plain(slots)
            else:
                drafts = engine.propose(slots, [depth, max(1, depth - 1)])
                engine.verify(slots, drafts, drafts.counts)
            if turn == 0 and not calls:
                return Finding(skipped="the engine does not call mtpx.sampling.uniforms")
            for key in set(calls):
                assert key not in used, (
                    f"round {turn} draws with the uniforms of (seed, request, round) = {key}, which "
                    f"{used[key]} used"
                )
                used[key] = f"round {turn}"
    return Finding(compared=len(used))


def marginal_p_value(subject: Subject, sampling: Sampling, rule: Rule) -> float:
    """Chi-square p-value of the first two committed tokens under `rule`, or of the first alone if that
    is smaller (doubled for having looked twice: Bonferroni); 0 if a token came out that the
    target excludes."""
    with subject.engine(width=subject.width + 1) as engine:
        prompt = list(subject.prompts[0])
        seen = _two_tokens(subject, engine, prompt, sampling, rule)
        tables = _tables(subject, engine, prompt, sampling, seen)
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
    subject: Subject, engine: Engine, prompt: list[int], sampling: Sampling, rule: Rule
) -> Counter[tuple[int, int]]:
    """The first two committed tokens of `samples` requests."""
    depth = min(2, subject.depth, engine.info.head_depth_limit)
    first = opened(engine, prompt, sampling)
    snapshot = first.snapshot()
    first.close()
    seen: Counter[tuple[int, int]] = Counter()
    for start in range(0, subject.samples, subject.width):
        requests = range(start, min(start + subject.width, subject.samples))
        slots = [
            opened(engine, prompt, sampling, seed=SEED, request=r, reuse=snapshot) for r in requests
        ]
        live = list(slots)
        while live:
            _one_round(subject, engine, live, depth, rule)
            live = [s for s in live if len(s.tokens) < len(prompt) + 2]
        for slot in slots:
            a, b = list(slot.tokens)[len(prompt) : len(prompt) + 2]
            seen[a, b] += 1
            slot.close()
    return seen


def _one_round(subject: Subject, engine: Engine, live: list[Slot], depth: int, rule: Rule) -> None:
    drafts = engine.propose(live, [depth] * len(live))
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
) -> tuple[Table, Table] | None:
    """Of the first token, and of the first two: a bin for every pair expected often enough, one for
    the rest after each frequent first token, one for all other first tokens; small bins pooled.
    `None` if a token outside the target's support was seen."""
    n = subject.samples
    wide = _widened(sampling)
    p1, support1 = _target(subject, engine, prompt, [], sampling, wide)
    if any(support1[a] <= 0.0 for a, _ in seen):
        return None
    totals: Counter[int] = Counter()
    for (a, _), count in seen.items():
        totals[a] += count
    frequent = [int(a) for a in np.flatnonzero(n * p1 >= MIN_EXPECTED)]
    first = _with_rest(n, [totals[a] for a in frequent], [float(n * p1[a]) for a in frequent])
    pairs: Table = [first[0][-1]], [first[1][-1]]
    for a in frequent:
        p2, support2 = _target(subject, engine, prompt, [a], sampling, wide)
        if any(support2[b] <= 0.0 for x, b in seen if x == a):
            return None
        often = [int(b) for b in np.flatnonzero(n * p1[a] * p2 >= MIN_EXPECTED)]
        observed = [seen[a, b] for b in often]
        means = [float(n * p1[a] * p2[b]) for b in often]
        counts = _with_rest(totals[a], observed, means, float(n * p1[a]))
        pairs = pairs[0] + counts[0], pairs[1] + counts[1]
    return _pooled(*first), _pooled(*pairs)


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


def _target(
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


def _pilot(subject: Subject, sampling: Sampling) -> tuple[float, float, bool, bool]:
    """From drafts of a few requests outside the sample: median confidence, median second
    confidence, whether drafts are drawn (they differ), whether the second confidence varies."""
    with subject.engine(width=subject.width) as engine:
        depth = min(2, subject.depth, engine.info.head_depth_limit)
        firsts: set[int] = set()
        values: list[float] = []
        seconds: list[float] = []
        for start in range(0, 48, subject.width):
            slots = [
                opened(engine, subject.prompts[0], sampling, seed=SEED + 1, request=start + i)
                for i in range(subject.width)
            ]
            drafts = engine.propose(slots, [depth] * len(slots))
            for row, confidence in zip(
                subject.drafted(engine, drafts), np.asarray(drafts.confidence), strict=True
            ):
                firsts.add(row[0])
                values += [float(c) for c in confidence[: len(row)]]
                seconds += [float(c) for c in confidence[1 : len(row)]]
            for slot in slots:
                slot.close()
    varies = len(seconds) > 1 and max(seconds) - min(seconds) > 1e-6
    second = float(np.median(seconds)) if seconds else 0.0
    return float(np.median(values)), second, len(firsts) > 1, varies


def _expect_caught(subject: Subject, sampling: Sampling, rule: Rule, what: str) -> Finding:
    p = marginal_p_value(subject, sampling, rule)
    assert p < ALLOWED, (
        f"{what} biases the text, and the chi-square did not see it (p = {p:.2g} in "
        f"{subject.samples} samples): the sampled checks prove nothing here; give more samples or a "
        "prompt after which the target hesitates"
    )
    return Finding(compared=subject.samples)


def _named(sampling: Sampling) -> str:
    fields = msgspec.to_builtins(sampling)
    return ", ".join(f"{name} {value:g}" for name, value in fields.items())
