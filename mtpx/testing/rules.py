"""Checks of what is delivered and what is kept: ends, budgets, log-probabilities, rewinding,
snapshots, closing, damaged logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mtpx.backend import Engine, FloatArray, Slot, TokenLogprob
from mtpx.carry import Adopted, ForeignSession, common_prefix
from mtpx.errors import MtpxError, NonFiniteLogits
from mtpx.sampling import Sampling
from mtpx.testing.drive import (
    GREEDY,
    Finding,
    compare_states,
    compare_texts,
    drafted_steps,
    forced,
    opened,
    plain_steps,
    plain_text,
    run,
)
from mtpx.testing.subject import Subject


def an_accepted_end_ends_the_run(subject: Subject) -> Finding:
    """An end id among the drafts, as the bonus token, and in a plain round: it is the last token
    committed, drafts after it are neither accepted nor judged, its own state stays uncommitted."""
    found = Finding()
    with subject.engine(width=2) as engine:
        depth = min(subject.depth, engine.info.head_depth_limit)
        for i, prompt in enumerate(subject.prompts):
            ref = plain_text(engine, prompt, depth + 1)
            unused = next(t for t in range(engine.info.vocab_size) if t not in ref)
            for at, end in enumerate(ref):
                if end in ref[:at]:
                    continue
                what = f"prompt {i}, end id as token {at} of {depth + 1}"
                slot = opened(engine, prompt, end_ids=frozenset({unused, end}))
                outcome = forced(subject, engine, slot, ref[:depth])
                expected = ref[: at + 1]
                text = compare_texts(subject, engine, prompt, expected, outcome.committed, what)
                found.add(text)
                if not text.ties:
                    assert outcome.ended, f"{what}: the outcome does not say it ended"
                    want = min(at + 1, depth)
                    assert outcome.accepted == want, (
                        f"{what}: {outcome.accepted} drafts accepted instead of {want}"
                    )
                    found.add(compare_states(subject, engine, slot, what))
                slot.close()
    if not found.compared:
        found.skipped = "no prompt's plain text has a token that is new where it stands"
    return found


def nothing_is_delivered_after_an_end(subject: Subject) -> Finding:
    """Through the loop at every depth, 0 included and pipelined: the text stops with the first of
    several end ids, the request with `end`."""
    found = Finding()
    for pipeline in (False, True):
        with subject.engine(width=2, pipeline=pipeline) as engine:
            for i, prompt in enumerate(subject.prompts):
                ref = plain_text(engine, prompt, subject.tokens)
                end = ref[len(ref) // 2]
                expected = ref[: ref.index(end) + 1]
                unused = next(t for t in range(engine.info.vocab_size) if t not in ref)
                for depth in range(min(subject.depth, engine.info.head_depth_limit) + 1):
                    ends = frozenset({end, unused})
                    what = f"prompt {i} at depth {depth}"
                    request, rounds = run(engine, prompt, depth, subject.tokens, end_ids=ends)
                    got = request.delivered
                    text = compare_texts(subject, engine, prompt, expected, got, what)
                    found.add(text)
                    if not text.ties:
                        assert request.stop == "end", f"{what}: stopped with {request.stop!r}"
                        last = rounds[-1].slots[0]
                        assert last.ended, f"{what}: the last round does not say it ended"
                slot = opened(engine, prompt, end_ids=frozenset({end}))
                for _ in range(subject.tokens):
                    if engine.plain([slot])[0].ended:
                        break
                found.add(compare_states(subject, engine, slot, f"prompt {i} after its end"))
                slot.close()
    return found


def a_budget_is_never_exceeded(subject: Subject) -> Finding:
    """Budgets around the depth: exactly that many tokens, and no draft that could not land."""
    found = Finding()
    with subject.engine() as engine:
        depth = min(subject.depth, engine.info.head_depth_limit)
        for budget in range(1, depth + 4):
            request, rounds = run(engine, subject.prompts[0], depth, budget)
            assert len(request.delivered) == budget, (
                f"a budget of {budget} tokens delivered {len(request.delivered)}"
            )
            assert request.stop == "length", f"a spent budget stopped with {request.stop!r}"
            left = budget
            for round in rounds:
                assert round.slots[0].drafted <= left - 1, (
                    f"{round.slots[0].drafted} drafts with {left} tokens left"
                )
                left -= round.slots[0].committed
            found.compared += 1
    return found


def logprobs_are_those_of_the_raw_logits(subject: Subject) -> Finding:
    """Plain and verified rounds, greedy and sampled with penalties: one entry a committed token,
    equal to the log-softmax of the plain logits there, the rivals in order."""
    found = Finding()
    with subject.engine(width=2) as engine:
        depth = min(subject.depth, engine.info.head_depth_limit)
        for sampling in (
            Sampling(logprobs=3),
            Sampling(temperature=subject.temperature, repeat_penalty=1.3, logprobs=0),
        ):
            slot = opened(engine, subject.prompts[0], sampling, seed=3)
            for turn in range(6):
                before = list(slot.tokens)
                if turn % 2:
                    drafts = engine.propose([slot], [depth])
                    outcome = engine.verify([slot], drafts, drafts.counts)[0]
                else:
                    outcome = engine.plain([slot])[0]
                entries = outcome.logprobs
                assert [e.token for e in entries or []] == outcome.committed, (
                    f"log-probabilities {entries} do not match the tokens {outcome.committed}"
                )
                for i, entry in enumerate(entries or []):
                    fresh = opened(engine, [*before, *outcome.committed[:i]], head=False)
                    row = np.asarray(subject.logits(engine, fresh), dtype=np.float64)
                    fresh.close()
                    _check_logprob(subject, row, entry, sampling.logprobs or 0)
                    found.compared += 1
            slot.close()
        slot = opened(engine, subject.prompts[0])
        assert engine.plain([slot])[0].logprobs is None, "log-probabilities nobody asked for"
        slot.close()
    return found


def _check_logprob(subject: Subject, row: FloatArray, entry: TokenLogprob, top: int) -> None:
    values = row - row.max()
    values = values - np.log(np.exp(values).sum())
    gap = abs(float(values[entry.token]) - entry.logprob)
    assert gap <= subject.tolerance, (
        f"the log-probability of token {entry.token} is off by {gap:.3g}; it must be that of the "
        "raw distribution, without temperature, filters and penalties"
    )
    assert len(entry.top) == top, f"asked for {top} rivals, got {len(entry.top)}"
    best = np.sort(values)[::-1][:top]
    for (token, value), rank in zip(entry.top, best, strict=True):
        near = max(abs(value - float(rank)), abs(value - float(values[token])))
        assert near <= subject.tolerance, f"rival {token} has {value:.4g}, not {rank:.4g}"


def rewinding_restores_the_state(subject: Subject) -> Finding:
    """To every kind of position: inside what was generated, inside the prompt, the present."""
    found = Finding()
    with subject.engine(width=2, pipeline=True) as engine:
        depth = min(subject.depth, engine.info.head_depth_limit)
        prompt = list(subject.prompts[0])
        for back in (0, 1, 2, depth + 2, depth + 3 + len(prompt) // 2):
            slot = opened(engine, prompt)
            ref = plain_text(engine, prompt, depth)
            forced(subject, engine, slot, ref)
            plain_steps(engine, slot, 3)
            before = list(slot.tokens)
            position = max(1, len(before) - back)
            reached = slot.rewind(position)
            what = f"rewound from {len(before)} to {position} tokens"
            assert 1 <= reached <= position, f"{what}: it says {reached} was reached"
            assert list(slot.tokens) == before[:reached], f"{what}: other tokens are left"
            found.add(compare_states(subject, engine, slot, what))
            left = list(slot.tokens)
            text = plain_steps(engine, slot, 3)
            want = plain_text(engine, left, 3)
            found.add(compare_texts(subject, engine, left, want, text, what))
            slot.close()
    return found


def a_snapshot_outlives_its_slot(subject: Subject) -> Finding:
    """A new slot that reuses an earlier turn, continued or diverging from it, holds the target's state
    of a fresh one, and drafting from it gives the plain text."""
    found = Finding()
    with subject.engine(width=2, pipeline=True) as engine:
        prompt = list(subject.prompts[0])
        slot = opened(engine, prompt)
        plain_steps(engine, slot, 3)
        snapshot = slot.snapshot()
        then = list(slot.tokens)
        after = plain_steps(engine, slot, 4)
        want = plain_text(engine, then, 4)
        found.add(compare_texts(subject, engine, then, want, after, "a slot after its snapshot"))
        slot.close()
        other = [t for t in subject.prompts[1] if t not in then][:2] or [then[0]]
        for what, tokens in {
            "continued": [*then, *other],
            "the same": then,
            "diverging in the reply": [*then[:-2], *other],
            "diverging in the prompt": [*prompt[: len(prompt) // 2], *other],
            "unrelated": list(subject.prompts[1]),
        }.items():
            again = opened(engine, tokens, reuse=snapshot)
            assert list(again.tokens) == tokens, f"reused ({what}): other tokens are held"
            found.add(compare_states(subject, engine, again, f"reused ({what})", head=False))
            more = drafted_steps(engine, again, 3)
            text = plain_text(engine, tokens, len(more))
            found.add(compare_texts(subject, engine, tokens, text, more, f"reused ({what})"))
            again.close()
    return found


def a_session_carries_the_heads_rows(subject: Subject) -> Finding:
    """The next turn of a session adopts the head's rows, as many as hold for its prompt; another
    session, and no session, adopts none; the text is the plain one for all of them."""
    found = Finding()
    prompt, session = list(subject.prompts[0]), 7
    with subject.engine() as engine:
        slot = opened(engine, prompt, session=session)
        drafted_steps(engine, slot, 2)
        then, snapshot = list(slot.tokens), slot.snapshot()
        slot.close()
        other = [t for t in subject.prompts[1] if t not in then][:2] or [then[0]]
        turns = {
            "the next turn": ([*then, *other], session),
            "the answer once more": (prompt, session),
            "a shorter history": ([*then[: len(prompt) - 1], *other], session),
            "another session": ([*then, *other], session + 1),
            "no session": ([*then, *other], 0),
        }
        texts = {}
        for what, (tokens, whose) in turns.items():
            again = opened(engine, tokens, session=whose, reuse=snapshot)
            carry, most = again.reused.carry, len(tokens) - 1
            if whose == session:
                assert isinstance(carry, Adopted), f"{what}: nothing is carried: {carry}"
                common = common_prefix(tokens, then)
                assert 0 < carry.rows < common, f"{what}: {carry.rows} rows for {common} tokens"
                assert carry.rows + carry.appended <= most, f"{what}: {carry} for {most} pairs"
            else:
                assert isinstance(carry, ForeignSession), f"{what}: {carry}"
            texts[what] = tokens, drafted_steps(engine, again, 4)
            again.close()
        for what, (tokens, text) in texts.items():
            want = plain_text(engine, tokens, len(text))
            found.add(compare_texts(subject, engine, tokens, want, text, what))
    return found


def width_is_capped_and_closing_makes_room(subject: Subject) -> Finding:
    """One slot more than `max_width` is refused, closing twice is harmless, a closed slot's place
    is free, an empty prompt is refused."""
    with subject.engine(width=2) as engine:
        slots = [opened(engine, subject.prompts[0], request=r) for r in (0, 1)]
        _refused(lambda: engine.open(subject.prompts[0], GREEDY, 0), "a slot beyond max_width")
        slots[0].close()
        slots[0].close()
        again = opened(engine, subject.prompts[0])
        _refused(lambda: engine.open(subject.prompts[0], GREEDY, 0), "a slot beyond max_width")
        again.close()
        _refused(lambda: engine.open([], GREEDY, 0), "an empty prompt")
    return Finding(compared=3)


def prefill_may_come_in_any_chunks(subject: Subject) -> Finding:
    """One token at a time gives the state of one chunk."""
    found = Finding()
    with subject.engine(width=2) as engine:
        for i, prompt in enumerate(subject.prompts):
            slot = opened(engine, prompt, chunk=1)
            found.add(compare_states(subject, engine, slot, f"prompt {i} prefilled by ones"))
            slot.close()
    return found


def damaged_logits_raise(subject: Subject) -> Finding:
    """NaN logits raise `NonFiniteLogits` in plain and in drafting rounds and commit nothing."""
    if subject.poison is None:
        return Finding(skipped="the subject has no `poison` hook")
    for sampling in (GREEDY, Sampling(temperature=subject.temperature)):
        _poisoned(subject, sampling, lambda engine, slot: engine.plain([slot]), "plain")
        _poisoned(subject, sampling, _draft_once, "drafting")
    return Finding(compared=4)


def _draft_once(engine: Engine, slot: Slot) -> object:
    return engine.verify([slot], (drafts := engine.propose([slot], [1])), drafts.counts)


def _poisoned(
    subject: Subject, sampling: Sampling, step: Callable[[Engine, Slot], object], what: str
) -> None:
    assert subject.poison is not None
    with subject.engine() as engine:
        slot = opened(engine, subject.prompts[0], sampling)
        plain_steps(engine, slot, 1)
        before = list(slot.tokens)
        subject.poison(engine, slot)
        try:
            step(engine, slot)
        except NonFiniteLogits:
            assert list(slot.tokens) == before, f"a {what} round on NaN logits committed tokens"
            return
        raise AssertionError(
            f"a {what} round on NaN logits raised nothing and committed "
            f"{list(slot.tokens)[len(before) :]}"
        )


def _refused(attempt: Callable[[], object], what: str) -> None:
    try:
        attempt()
    except MtpxError:
        return
    raise AssertionError(f"{what} was not refused with an MtpxError")
