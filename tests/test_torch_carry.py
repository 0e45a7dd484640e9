"""The torch engine carries the head's rows from turn to turn: the right ones, in the right places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch_makers import make_pack

from mtpx.backend import EngineOptions
from mtpx.carry import Adopted, ForeignSession, NoCarry, PrefixMismatch, StoreRange
from mtpx.packs import Pack
from mtpx.sampling import Sampling
from mtpx_torch import TorchBackend
from mtpx_torch.engine import TorchEngine
from mtpx_torch.slot import TorchSlot

GREEDY = Sampling()
FIRST = [5, 9, 3, 22, 17, 30, 8, 12]
MORE = [7, 40, 11, 6]

Load = Callable[..., TorchEngine]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("carry"))


@pytest.fixture
def load(pack: Pack) -> Iterator[Load]:
    loaded = []

    def load(**options: Any) -> TorchEngine:
        asked = EngineOptions(threads=1, context=512, compile="off", **options)
        loaded.append(TorchBackend().load(pack, asked))
        return loaded[-1]

    yield load
    for engine in loaded:
        engine.close()


@pytest.fixture
def engine(load: Load) -> TorchEngine:
    return load()


def opened(engine: TorchEngine, tokens: list[int], **options: Any) -> TorchSlot:
    slot = engine.open(tokens, GREEDY, 0, **options)
    while not engine.prefill(slot, 3):
        pass
    return slot


def decoded(engine: TorchEngine, slot: TorchSlot, rounds: int = 3, depth: int = 2) -> TorchSlot:
    for _ in range(rounds):
        if depth == 0:
            engine.plain([slot])
            continue
        drafts = engine.propose([slot], [depth])
        engine.verify([slot], drafts, drafts.counts)
    return slot


def turn(
    engine: TorchEngine, tokens: list[int], *, depth: int = 2, **options: Any
) -> tuple[list[int], Any]:
    """Tokens and snapshot of a finished turn."""
    slot = decoded(engine, opened(engine, tokens, **options), depth=depth)
    snapshot = slot.snapshot()
    slot.close()
    return list(slot.tokens), snapshot


def first_draft(engine: TorchEngine, tokens: list[int], **options: Any) -> torch.Tensor:
    """The confidence of the next draft: a number that every row of the head's KV goes into."""
    slot = opened(engine, tokens, **options)
    drafts = engine.propose([slot], [1])
    slot.close()
    found = drafts.slots[0]
    assert found is not None
    return found.confidence


def test_a_carried_head_drafts_as_one_that_has_seen_everything(engine: TorchEngine) -> None:
    said, snapshot = turn(engine, FIRST, session=7)
    warm = first_draft(engine, said + MORE, session=7, reuse=snapshot)
    torch.testing.assert_close(warm, first_draft(engine, said + MORE), atol=1e-4, rtol=0)


def test_without_a_session_the_head_begins_at_the_first_computed_row(engine: TorchEngine) -> None:
    said, snapshot = turn(engine, FIRST, session=7)
    blind = first_draft(engine, said + MORE, reuse=snapshot)
    assert (blind - first_draft(engine, said + MORE)).abs() > 1e-3
    slot = opened(engine, said + MORE, reuse=snapshot)
    assert slot.head_rows == len(said + MORE) - 2 - slot.reused.tokens


def test_the_outcome_counts_rows_adopted_and_appended(engine: TorchEngine) -> None:
    said, snapshot = turn(engine, FIRST, session=7)
    reused = opened(engine, said + MORE, session=7, reuse=snapshot).reused
    rows = len(said) - 1
    assert reused.carry == Adopted(rows, len(MORE), rows)
    assert reused.tokens == rows
    assert reused.ms is not None
    assert reused.why == ""


def test_another_session_adopts_none_of_the_rows(engine: TorchEngine) -> None:
    said, snapshot = turn(engine, FIRST, session=7)
    slot = opened(engine, said + MORE, session=8, reuse=snapshot)
    assert slot.reused.carry == ForeignSession(7, 8)
    blind = first_draft_of(engine, slot)
    assert torch.equal(blind, first_draft(engine, said + MORE, reuse=snapshot))


def first_draft_of(engine: TorchEngine, slot: TorchSlot) -> torch.Tensor:
    drafts = engine.propose([slot], [1])
    slot.close()
    found = drafts.slots[0]
    assert found is not None
    return found.confidence


def test_a_regenerated_answer_needs_no_row_computed(engine: TorchEngine) -> None:
    _, snapshot = turn(engine, FIRST, session=7)
    slot = engine.open(FIRST, GREEDY, 0, session=7, reuse=snapshot)
    assert engine.prefill(slot, 256)
    assert slot.reused.carry == Adopted(len(FIRST) - 1, 0, len(FIRST) - 1)
    assert slot.reused.tokens == len(FIRST) - 1
    torch.testing.assert_close(
        first_draft_of(engine, slot), first_draft(engine, FIRST), atol=1e-4, rtol=0
    )


def test_a_shorter_history_keeps_the_rows_that_hold(engine: TorchEngine) -> None:
    _, snapshot = turn(engine, FIRST, session=7)
    prompt = FIRST[:5] + MORE
    slot = opened(engine, prompt, session=7, reuse=snapshot)
    assert slot.reused.carry == Adopted(4, 4, 4)
    assert slot.reused.why == "the prompt leaves the earlier one at token 6"
    torch.testing.assert_close(
        first_draft_of(engine, slot), first_draft(engine, prompt), atol=1e-4, rtol=0
    )


def test_nothing_in_common_is_said(engine: TorchEngine) -> None:
    said, snapshot = turn(engine, FIRST, session=7)
    slot = opened(engine, [1, *said], session=7, reuse=snapshot)
    assert slot.reused.carry == PrefixMismatch(0, len(said) - 1)
    assert slot.reused.tokens == 0


def test_a_plain_turn_hands_the_rows_on_and_its_own_pairs_are_skipped(engine: TorchEngine) -> None:
    """The head's KV stays compact: rows of the first turn, then those of the third."""
    said, snapshot = turn(engine, FIRST, session=7)
    rows = len(said) - 1
    prompt = said + MORE
    then, snapshot = turn(engine, prompt, session=7, reuse=snapshot, head=False, depth=0)
    slot = opened(engine, then + MORE, session=7, reuse=snapshot)
    reused = slot.reused
    assert reused.tokens == len(then) - 1
    assert reused.carry == Adopted(rows, len(MORE), len(then) - 1)
    assert (slot.head_rows, slot.head_key) == (rows + len(MORE) - 1, len(then + MORE) - 3)
    text = decoded(engine, slot, rounds=4).tokens
    slot.close()
    cold = decoded(engine, opened(engine, then + MORE, head=False), rounds=12, depth=0).tokens
    assert text == cold[: len(text)]


def test_rewinding_behind_skipped_pairs_claims_no_row_too_many(engine: TorchEngine) -> None:
    said, snapshot = turn(engine, FIRST, session=7)
    then, snapshot = turn(engine, said + MORE, session=7, reuse=snapshot, head=False, depth=0)
    for position in range(1, len(then + MORE)):
        slot = opened(engine, then + MORE, session=7, reuse=snapshot)
        keys = [*range(len(said) - 1), *range(len(then) - 1, len(then + MORE) - 2)]
        slot.rewind(position)
        assert slot.head_rows <= len([k for k in keys if k <= position - 2])
        text = decoded(engine, slot, rounds=2).tokens
        slot.close()
        plain = opened(engine, (then + MORE)[:position], head=False)
        cold = decoded(engine, plain, rounds=8, depth=0).tokens
        plain.close()
        assert text == cold[: len(text)]


def test_the_next_occupant_of_a_slot_does_not_see_its_hidden_states(engine: TorchEngine) -> None:
    first = opened(engine, FIRST)
    assert engine.proposer is not None
    held = engine.proposer.stores[first.index]
    first.close()
    second = engine.open(FIRST, GREEDY, 0)
    assert second.index == first.index
    assert held == StoreRange(first.ticket, 0, len(FIRST) - 1)
    assert engine.proposer.ready(second) == (0, 0)


def test_several_sequences_at_once_leave_the_carry_unarmed(load: Load) -> None:
    engine = load(max_width=2)
    assert engine.info.details["carry"].startswith("configured, not armed")
    said, snapshot = turn(engine, FIRST, session=7)
    slot = opened(engine, said + MORE, session=7, reuse=snapshot)
    assert slot.reused.carry == NoCarry("the carry is not armed")
    assert slot.reused.tokens > 0


def test_a_carry_that_is_switched_off_carries_nothing(load: Load) -> None:
    engine = load(carry=False)
    assert engine.info.details["carry"] == "switched off"
    said, snapshot = turn(engine, FIRST, session=7)
    assert snapshot.head is None
    slot = opened(engine, said + MORE, session=7, reuse=snapshot)
    assert slot.reused.carry == NoCarry("the carry is not armed")


def test_a_prefill_that_was_broken_off_is_gone_on_with(engine: TorchEngine) -> None:
    prompt = FIRST * 4
    slot = engine.open(prompt, GREEDY, 0, session=7)
    engine.prefill(slot, 10)
    snapshot = slot.snapshot()
    slot.close()
    assert opened_once(engine, prompt, snapshot) == 10
    torch.testing.assert_close(
        first_draft(engine, prompt, session=7, reuse=snapshot),
        first_draft(engine, prompt),
        atol=1e-4,
        rtol=0,
    )


def opened_once(engine: TorchEngine, prompt: list[int], snapshot: Any) -> int:
    slot = opened(engine, prompt, session=7, reuse=snapshot)
    slot.close()
    return slot.reused.tokens
