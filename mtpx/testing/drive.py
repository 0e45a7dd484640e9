"""How the kit drives an engine, and how it compares what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mtpx.backend import Engine, FloatArray, Outcome, Slot
from mtpx.decode import Request, decode
from mtpx.policy import DepthPolicy, FixedDepth
from mtpx.round import Round
from mtpx.sampling import History, Sampling, penalise
from mtpx.testing.subject import Subject

GREEDY = Sampling()
CHUNK = 64
"""Prompt tokens a prefill chunk; small enough that longer test prompts take several."""


@dataclass
class Finding:
    """What a check saw: comparisons made, differences shown to be numerical ties, and why it (or a
    part of it) did not run."""

    compared: int = 0
    ties: int = 0
    skipped: str = ""

    def add(self, other: Finding) -> None:
        self.compared += other.compared
        self.ties += other.ties


def opened(
    engine: Engine,
    tokens: Sequence[int],
    sampling: Sampling = GREEDY,
    *,
    seed: int = 0,
    request: int = 0,
    end_ids: frozenset[int] = frozenset(),
    head: bool = True,
    session: int = 0,
    reuse: object | None = None,
    chunk: int = CHUNK,
) -> Slot:
    """A slot, prefilled."""
    slot = engine.open(
        tokens,
        sampling,
        seed,
        request=request,
        end_ids=end_ids,
        head=head,
        session=session,
        reuse=reuse,
    )
    for _ in range(len(tokens) + 1):
        if engine.prefill(slot, chunk):
            return slot
    raise AssertionError(f"prefill of {len(tokens)} tokens did not end after as many chunks")


def plain_steps(engine: Engine, slot: Slot, count: int) -> list[int]:
    """Tokens of `count` plain rounds."""
    return [token for _ in range(count) for token in engine.plain([slot])[0].committed]


def drafted_steps(engine: Engine, slot: Slot, count: int) -> list[int]:
    """Tokens of `count` rounds that verify one draft each."""
    out: list[int] = []
    for _ in range(count):
        drafts = engine.propose([slot], [1])
        out += engine.verify([slot], drafts, drafts.counts)[0].committed
    return out


def plain_text(engine: Engine, prompt: Sequence[int], count: int) -> list[int]:
    """What a plain run (head off) at temperature 0 delivers."""
    slot = opened(engine, prompt, head=False)
    try:
        return plain_steps(engine, slot, count)
    finally:
        slot.close()


def run(
    engine: Engine,
    prompt: Sequence[int],
    policy: DepthPolicy | int,
    budget: int,
    sampling: Sampling = GREEDY,
    *,
    seed: int = 0,
    request: int = 0,
    end_ids: frozenset[int] = frozenset(),
) -> tuple[Request, list[Round]]:
    """One request through the loop, from opening to closing."""
    slot = opened(engine, prompt, sampling, seed=seed, request=request, end_ids=end_ids)
    one = Request(request, slot, sampling, budget)
    chosen = FixedDepth(policy) if isinstance(policy, int) else policy
    try:
        rounds = list(decode(engine, chosen, [one]))
    finally:
        slot.close()
    return one, rounds


def forced(
    subject: Subject, engine: Engine, slot: Slot, drafts: Sequence[int], depth: int | None = None
) -> Outcome:
    """Verify these drafts (the first `depth` of them)."""
    made = subject.force(engine, [slot], [list(drafts)])
    count = len(drafts) if depth is None else depth
    return engine.verify([slot], made, [count])[0]


def compare_texts(
    subject: Subject,
    engine: Engine,
    prompt: Sequence[int],
    expected: Sequence[int],
    got: Sequence[int],
    what: str,
    sampling: Sampling = GREEDY,
) -> Finding:
    """Token for token; the first difference must be a numerical tie of the two candidates' logits on
    the common prefix, and ends the comparison. Raises `AssertionError`."""
    for i, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a == b:
            continue
        margin = _margin(subject, engine, prompt, expected[:i], a, b, sampling)
        assert margin < subject.tolerance, (
            f"{what}: token {i} is {b} where plain decode gives {a}, and that is no tie: their "
            f"logits differ by {margin:.3g}, the tolerance is {subject.tolerance:g}"
        )
        return Finding(compared=i + 1, ties=1)
    assert len(got) == len(expected), (
        f"{what}: {len(got)} tokens where plain decode gives {len(expected)}"
    )
    return Finding(compared=len(expected))


def _margin(
    subject: Subject,
    engine: Engine,
    prompt: Sequence[int],
    common: Sequence[int],
    a: int,
    b: int,
    sampling: Sampling,
) -> float:
    slot = opened(engine, [*prompt, *common], head=False)
    try:
        raw = np.asarray(subject.logits(engine, slot), dtype=np.float64)
    finally:
        slot.close()
    logits = penalise(raw, sampling, History(prompt, list(common)))
    return abs(float(logits[a] - logits[b]))


def compare_states(
    subject: Subject, engine: Engine, slot: Slot, what: str, *, head: bool = True
) -> Finding:
    """The slot against a fresh one prefilled with the same tokens: the target's next logits, then
    (`head`) the head's drafts and confidences. Leaves the slot where a propose leaves it."""
    fresh = opened(engine, list(slot.tokens))
    try:
        mine = np.asarray(subject.logits(engine, slot), dtype=np.float64)
        theirs = np.asarray(subject.logits(engine, fresh), dtype=np.float64)
        gap = float(np.abs(mine - theirs).max())
        assert gap <= subject.tolerance, (
            f"{what}: the target's state is stale: next logits differ by up to {gap:.3g} from "
            f"those of a fresh run on the same {len(slot.tokens)} tokens"
        )
        if head:
            _compare_heads(subject, engine, slot, fresh, what)
    finally:
        fresh.close()
    return Finding(compared=1)


def _compare_heads(subject: Subject, engine: Engine, slot: Slot, fresh: Slot, what: str) -> None:
    if len(slot.tokens) < 2:
        return  # a first token alone makes no head pair
    depth = min(subject.depth, engine.info.head_depth_limit)
    mine = engine.propose([slot], [depth])
    seen, confidence = subject.drafted(engine, mine)[0], _row(mine.confidence)
    theirs = engine.propose([fresh], [depth])
    expected, reference = subject.drafted(engine, theirs)[0], _row(theirs.confidence)
    assert 1 <= len(seen) <= depth, f"{what}: asked for {depth} drafts, got {len(seen)}"
    assert len(seen) == len(expected), (
        f"{what}: {len(seen)} drafts, a fresh run on the same tokens makes {len(expected)}"
    )
    for j in range(len(seen)):
        gap = abs(float(confidence[j] - reference[j]))
        assert gap <= subject.tolerance, (
            f"{what}: the head's KV is stale: confidence {j + 1} differs by {gap:.3g} from that of "
            f"a fresh run on the same {len(slot.tokens)} tokens"
        )
        if seen[j] != expected[j]:
            # Equal logits up to rounding may order two drafts either way; then each goes its own way.
            # A tie for the top needs a top-1 probability of at most one half.
            assert reference[j] <= np.log(0.5) + subject.tolerance, (
                f"{what}: the head's KV is stale: draft {j + 1} is {seen[j]}, a fresh run on the "
                f"same tokens drafts {expected[j]}"
            )
            return


def _row(confidence: FloatArray) -> FloatArray:
    row: FloatArray = np.asarray(confidence)[0]
    return row


def other_token(token: int, vocabulary: int) -> int:
    """A token that is not this one."""
    return (token + 1) % vocabulary
