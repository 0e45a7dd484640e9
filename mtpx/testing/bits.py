"""The row-invariant tier's own check: a row's numbers, to the last bit, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtpx.backend import Engine, TokenLogprob
from mtpx.sampling import Sampling
from mtpx.testing.drive import Finding, forced, opened, other_token
from mtpx.testing.subject import Subject

TOP = 16
"""Likeliest tokens whose log-probabilities are compared, of every row."""


def rows_keep_their_bits(subject: Subject, *, cases: int = 200, seed: int = 0) -> Finding:
    """`cases` times: a token's log-probabilities as row j of a verify of random depth, against those
    as the only row of a plain step, equal as bits. Every prefix of a prompt's answer is drawn from.

    Only for an engine of the row-invariant tier; on the standard one it fails.
    """
    found = Finding()
    random = np.random.default_rng(seed)
    with subject.engine() as engine:
        vocab = engine.info.vocab_size
        limit = min(subject.depth, engine.info.head_depth_limit)
        asked = Sampling(logprobs=min(TOP, vocab))
        answers = [_plain(engine, prompt, asked, subject.tokens) for prompt in subject.prompts]
        while found.compared < cases:
            which = int(random.integers(len(answers)))
            prompt, plain = subject.prompts[which], answers[which]
            text = [entry.token for entry in plain]
            depth = int(random.integers(1, limit + 1))
            at = int(random.integers(len(text) - depth))
            right = int(random.integers(depth + 1))
            drafts = text[at : at + depth]
            if right < depth:
                drafts[right] = other_token(drafts[right], vocab)
            slot = opened(engine, prompt, asked)
            for _ in range(at):
                engine.plain([slot])
            got = forced(subject, engine, slot, drafts).logprobs
            slot.close()
            assert got is not None, (
                "the engine gave no log-probabilities, though they were asked for"
            )
            for row, entry in enumerate(got):
                assert entry == plain[at + row], (
                    f"prompt {which}, row {row} of {depth + 1} after {at} tokens: log-probabilities "
                    f"differ from those of a plain step by {_distance(entry, plain[at + row]):.3g}"
                )
                found.compared += 1
    return found


def _plain(
    engine: Engine, prompt: Sequence[int], asked: Sampling, count: int
) -> list[TokenLogprob]:
    slot = opened(engine, prompt, asked)
    try:
        rows = [engine.plain([slot])[0].logprobs or [] for _ in range(count)]
    finally:
        slot.close()
    return [entry for row in rows for entry in row]


def _distance(a: TokenLogprob, b: TokenLogprob) -> float:
    return max(
        abs(x - y)
        for (_, x), (_, y) in zip([*a.top, (0, a.logprob)], [*b.top, (0, b.logprob)], strict=True)
    )
