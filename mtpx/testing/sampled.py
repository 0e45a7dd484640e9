"""Checks at temperature > 0: the committed marginal is the target's, and the check can tell.

The test is `mtpx.testing.marginal`. Two rules that are known to bias the text must fail it, or it
proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from mtpx.sampling import Array, Sampling
from mtpx.testing.drive import Finding, opened, run
from mtpx.testing.marginal import (
    Drafted,
    Rule,
    argmax_drafts,
    marginal_p_value,
    pilot,
    target_distribution,
)
from mtpx.testing.recorder import recorded_uniforms
from mtpx.testing.subject import Subject

ALLOWED = 1e-4
"""Least p-value of a right engine's chi-square: five tests a kit, so one false alarm in 2,000. A
forbidden rule is caught below it."""

HOTTER = (1.0, 2.0, 4.0)
"""Factors on the temperature at which a negative control may be caught. A rejected draft biases
nothing: where head and target hardly overlap, heat makes them."""


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
    threshold = float(np.median([c for d in pilot(subject, sampling) for c in d.confidence]))

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

    def peeking(drafts: list[Drafted], target: Array) -> Rule | None:
        seconds = [d.confidence[1] for d in drafts if len(d.confidence) > 1]
        if not seconds or max(seconds) - min(seconds) < 1e-6:
            return None
        threshold = float(np.median(seconds))

        def rule(confidence: Sequence[float], tokens: Sequence[int]) -> int:
            return len(tokens) if len(confidence) > 1 and confidence[1] >= threshold else 0

        return rule

    return _expect_caught(
        subject,
        peeking,
        "verifying draft 1 on confidence 2",
        "there is no second confidence, or it never varies",
    )


def deciding_on_the_drawn_token_is_caught(subject: Subject) -> Finding:
    """Negative control: drafts are verified only if draft 1 is among the target's likeliest tokens,
    those that hold half of its mass. The test must see the bias."""

    def favouring(drafts: list[Drafted], target: Array) -> Rule:
        order = np.argsort(-target, kind="stable")
        half = int(np.searchsorted(np.cumsum(target[order]), 0.5)) + 1
        likely = {int(t) for t in order[:half]}

        def rule(confidence: Sequence[float], tokens: Sequence[int]) -> int:
            return len(tokens) if tokens and tokens[0] in likely else 0

        return rule

    return _expect_caught(subject, favouring, "verifying draft 1 on its token", "")


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


def _expect_caught(
    subject: Subject,
    biased: Callable[[list[Drafted], Array], Rule | None],
    what: str,
    nothing: str,
) -> Finding:
    """The rule that `biased` makes from pilot drafts and the target's distribution must fail the
    test; `None` means there is no such rule here, `nothing` says why."""
    p_values: list[float] = []
    for hotter in HOTTER:
        sampling = Sampling(temperature=subject.temperature * hotter)
        drafts = pilot(subject, sampling)
        if argmax_drafts(drafts):
            return Finding(skipped="its drafts are argmax, which permits any rule")
        with subject.engine() as engine:
            prompt = list(subject.prompts[0])
            target, _ = target_distribution(subject, engine, prompt, [], sampling, sampling)
        rule = biased(drafts, target)
        if rule is None:
            return Finding(skipped=nothing)
        p_values.append(marginal_p_value(subject, sampling, rule))
        if p_values[-1] < ALLOWED:
            return Finding(compared=subject.samples * len(p_values))
    raise AssertionError(
        f"{what} biases the text, and the chi-square did not see it (p = {min(p_values):.2g} in "
        f"{subject.samples} samples): the sampled checks prove nothing here; give more samples or a "
        "prompt after which the target hesitates"
    )


def _named(sampling: Sampling) -> str:
    fields = msgspec.to_builtins(sampling)
    return ", ".join(f"{name} {value:g}" for name, value in fields.items())
