"""Checks at temperature 0: text equal to plain decode, state equal after every rejection."""

from __future__ import annotations

from collections.abc import Sequence

from mtpx.backend import PAIR_QUEUE_LIMIT, Engine, Slot
from mtpx.decode import Request, decode
from mtpx.errors import MtpxError
from mtpx.policy import FixedDepth
from mtpx.sampling import Sampling
from mtpx.testing.drive import (
    GREEDY,
    Finding,
    compare_states,
    compare_texts,
    forced,
    opened,
    other_token,
    plain_steps,
    plain_text,
    run,
)
from mtpx.testing.subject import Pairs, Subject

PENALISED = Sampling(repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)


def every_depth_gives_the_plain_text(subject: Subject) -> Finding:
    """Depths 1..K through the loop, with and without penalties, against depth 0."""
    found = Finding()
    with subject.engine() as engine:
        for sampling in (GREEDY, PENALISED):
            for i, prompt in enumerate(subject.prompts):
                expected = run(engine, prompt, 0, subject.tokens, sampling)[0].delivered
                for depth in range(1, _depth(subject, engine) + 1):
                    got = run(engine, prompt, depth, subject.tokens, sampling)[0].delivered
                    what = f"prompt {i} at depth {depth}"
                    if sampling.penalised:
                        what += " with penalties"
                    found.add(compare_texts(subject, engine, prompt, expected, got, what, sampling))
    return found


def a_plain_run_gives_the_parked_text(subject: Subject) -> Finding:
    """The head off altogether, against depth 0 with the head kept level; a plain run queues
    nothing and cannot propose."""
    found = Finding()
    with subject.engine(width=2) as engine:
        for i, prompt in enumerate(subject.prompts):
            expected = plain_text(engine, prompt, subject.tokens)
            got = run(engine, prompt, 0, subject.tokens)[0].delivered
            found.add(compare_texts(subject, engine, prompt, expected, got, f"prompt {i}, parked"))
        slot = opened(engine, subject.prompts[0], head=False)
        plain_steps(engine, slot, 2)
        if subject.pairs is not None:
            pairs = Pairs(*subject.pairs(engine, slot))
            assert pairs == Pairs(0, 0, 0), f"a plain run keeps head pairs: {pairs}"
        try:
            engine.propose([slot], [1])
        except MtpxError:
            pass
        else:
            raise AssertionError("a plain run (head=False) was allowed to propose")
    return found


def every_accepted_count_leaves_a_plain_state(subject: Subject) -> Finding:
    """For every depth k in 1..K and every accepted count a in 0..k, twice in a row: force drafts of
    which exactly a are right, then compare the target's logits and the head's drafts with a fresh
    run on the same tokens."""
    found = Finding()
    with subject.engine(width=2) as engine:
        for i, prompt in enumerate(subject.prompts[:2]):
            for depth in range(1, _depth(subject, engine) + 1):
                for accepted in range(depth + 1):
                    what = f"prompt {i}, {accepted} of {depth} drafts accepted"
                    found.add(_force_twice(subject, engine, prompt, depth, accepted, what))
    return found


def _force_twice(
    subject: Subject, engine: Engine, prompt: Sequence[int], depth: int, accepted: int, what: str
) -> Finding:
    found = Finding()
    slot = opened(engine, prompt)
    for turn in range(2):
        before = list(slot.tokens)
        ref = plain_text(engine, before, depth + 1)
        wrong = [other_token(t, engine.info.vocab_size) for t in ref[accepted:depth]]
        outcome = forced(subject, engine, slot, [*ref[:accepted], *wrong])
        text = compare_texts(
            subject, engine, before, ref[: accepted + 1], outcome.committed, f"{what}, turn {turn}"
        )
        found.add(text)
        assert text.ties or outcome.accepted == accepted, (
            f"{what}: the engine says {outcome.accepted} were accepted"
        )
        assert list(slot.tokens) == before + outcome.committed, (
            f"{what}: the slot's tokens are not what was committed"
        )
        _check_pairs(subject, engine, slot, what)
    found.add(compare_states(subject, engine, slot, what))
    plain_steps(engine, slot, 2)
    found.add(compare_states(subject, engine, slot, f"{what}, then 2 plain steps"))
    slot.close()
    return found


def a_cut_leaves_a_plain_state(subject: Subject) -> Finding:
    """Drafts proposed and not verified leave no trace, whether some or all of them are cut."""
    found = Finding()
    with subject.engine(width=2) as engine:
        depth = _depth(subject, engine)
        for i, prompt in enumerate(subject.prompts[:2]):
            slot = opened(engine, prompt)
            for verified in range(depth):
                before = list(slot.tokens)
                drafts = engine.propose([slot], [depth])
                if verified:
                    committed = engine.verify([slot], drafts, [verified])[0].committed
                else:
                    committed = engine.plain([slot])[0].committed
                what = f"prompt {i}, {verified} of {depth} drafts verified"
                ref = plain_text(engine, before, len(committed))
                found.add(compare_texts(subject, engine, before, ref, committed, what))
                found.add(compare_states(subject, engine, slot, what))
            slot.close()
    return found


def a_parked_slot_resumes_as_if_never_parked(subject: Subject) -> Finding:
    """Plain steps beyond the pair queue: at most `PAIR_QUEUE_LIMIT` pairs queue, none is lost, and
    drafts on resuming are those of a slot that was never parked."""
    found = Finding()
    with subject.engine(width=2) as engine:
        prompt = subject.prompts[0]
        room = engine.info.context_limit - len(prompt) - subject.depth - 1
        if room < PAIR_QUEUE_LIMIT + 3:
            found.skipped = f"the context has room for {room} steps only, the queue was not filled"
        for steps in (3, min(PAIR_QUEUE_LIMIT + 3, room)):
            slot = opened(engine, prompt)
            for _ in range(steps):
                engine.plain([slot])
                _check_pairs(subject, engine, slot, f"parked for {steps} steps")
            found.add(compare_states(subject, engine, slot, f"resumed after {steps} plain steps"))
            slot.close()
    if subject.pairs is None:
        found.skipped = "the queue was not counted: the subject has no `pairs` hook"
    return found


def ragged_batches_give_each_slot_what_it_gets_alone(subject: Subject) -> Finding:
    """Widths 2..`width`, caps and depths that differ from slot to slot and round to round."""
    found = Finding()
    with subject.engine(width=subject.width + 1) as engine:
        limit = _depth(subject, engine)
        alone = [plain_text(engine, prompt, subject.tokens) for prompt in subject.prompts]
        for width in range(2, subject.width + 1):
            which = [i % len(subject.prompts) for i in range(width)]
            slots = [opened(engine, subject.prompts[w], request=i) for i, w in enumerate(which)]
            texts: list[list[int]] = [[] for _ in slots]
            turn = 0
            while min(len(t) for t in texts) < subject.tokens:
                caps = [(turn + i) % (limit + 1) for i in range(width)]
                _ragged_round(engine, slots, caps, turn, texts)
                turn += 1
            for i, (w, text) in enumerate(zip(which, texts, strict=True)):
                what = f"slot {i} of {width}"
                got = text[: subject.tokens]
                found.add(compare_texts(subject, engine, subject.prompts[w], alone[w], got, what))
                found.add(compare_states(subject, engine, slots[i], what))
            for slot in slots:
                slot.close()
    return found


def _ragged_round(
    engine: Engine, slots: list[Slot], caps: list[int], turn: int, texts: list[list[int]]
) -> None:
    drafts = engine.propose(slots, caps)
    counts = drafts.counts
    assert [min(n, c) for n, c in zip(counts, caps, strict=True)] == counts, (
        f"asked for at most {caps} drafts, got {counts}"
    )
    depths = [max(0, n - (turn + i) % 2) for i, n in enumerate(counts)]
    outcomes = engine.verify(slots, drafts, depths) if any(depths) else engine.plain(slots)
    for text, depth, outcome in zip(texts, depths, outcomes, strict=True):
        assert 0 <= outcome.accepted <= depth, f"{outcome.accepted} accepted of {depth} verified"
        assert len(outcome.committed) == outcome.accepted + 1, "committed is not accepted + 1"
        text += outcome.committed


def plain_is_the_same_pipelined(subject: Subject) -> Finding:
    """Plain rounds with a step in flight, alone and interleaved with rounds that draft: same text,
    and the step in flight is gone before anything else looks at the state."""
    found = Finding()
    with subject.engine(width=2) as engine:
        expected = [plain_text(engine, prompt, subject.tokens) for prompt in subject.prompts]
    with subject.engine(width=2, pipeline=True) as engine:
        depth = _depth(subject, engine)
        for i, prompt in enumerate(subject.prompts):
            what = f"prompt {i}, pipelined"
            got = plain_text(engine, prompt, subject.tokens)
            found.add(compare_texts(subject, engine, prompt, expected[i], got, what))
            slot = opened(engine, prompt)
            text: list[int] = []
            while len(text) < subject.tokens:
                text += plain_steps(engine, slot, 2)
                drafts = engine.propose([slot], [depth])
                text += engine.verify([slot], drafts, drafts.counts)[0].committed
            got = text[: subject.tokens]
            what += " between drafting rounds"
            found.add(compare_texts(subject, engine, prompt, expected[i], got, what))
            plain_steps(engine, slot, 2)
            engine.drain([slot])
            found.add(compare_states(subject, engine, slot, f"{what}, drained"))
            slot.close()
    return found


def two_engines_do_not_meet(subject: Subject) -> Finding:
    """Two engines in one process, stepped in turns, each give what one gives alone."""
    found = Finding()
    first, second = subject.prompts[0], subject.prompts[1]
    with subject.engine() as a, subject.engine() as b:
        expected = plain_text(a, first, subject.tokens), plain_text(b, second, subject.tokens)
        depth = _depth(subject, a)
        requests = [
            Request(0, opened(engine, prompt), GREEDY, subject.tokens)
            for engine, prompt in ((a, first), (b, second))
        ]
        loops = [
            decode(engine, FixedDepth(depth), [request])
            for engine, request in zip((a, b), requests, strict=True)
        ]
        while any(r.stop is None for r in requests):
            for loop in loops:
                next(loop, None)
        for request in requests:
            request.slot.close()
        for engine, prompt, want, request in zip(
            (a, b), (first, second), expected, requests, strict=True
        ):
            what = "one of two engines"
            found.add(compare_texts(subject, engine, prompt, want, request.delivered, what))
    return found


def _depth(subject: Subject, engine: Engine) -> int:
    depth = min(subject.depth, engine.info.head_depth_limit)
    assert depth >= 1, "the kit needs an engine with a head: info.head_depth_limit is 0"
    return depth


def _check_pairs(subject: Subject, engine: Engine, slot: Slot, what: str) -> None:
    if subject.pairs is None:
        return
    pairs = Pairs(*subject.pairs(engine, slot))
    assert pairs.queued <= PAIR_QUEUE_LIMIT, f"{what}: {pairs.queued} head pairs are queued"
    assert pairs.valid + pairs.queued == len(slot.tokens) - 1, (
        f"{what}: {pairs.valid} head rows and {pairs.queued} queued pairs do not cover "
        f"{len(slot.tokens)} tokens; there must be one pair less than tokens"
    )
