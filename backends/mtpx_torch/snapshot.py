"""A slot's state on its own, and taking it over into another slot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mtpx.backend import PAIR_QUEUE_LIMIT
from mtpx.carry import CarriedHead, NoCarry, StoreRange, appended, refusal
from mtpx.reuse import Reuse, plan_reuse
from mtpx_torch.timer import Stopwatch

if TYPE_CHECKING:
    import torch

    from mtpx_torch.cache import KVCache
    from mtpx_torch.propose import Proposer
    from mtpx_torch.slot import TorchSlot


@dataclass(slots=True)
class Snapshot:
    """`filled` target rows of these tokens (`target`); of a session also the head's rows (`head`, whose
    handle is their tensors) and the hidden states (hi - lo, H) of the positions in `store`. Copies, so
    that it outlives its slot."""

    tokens: list[int]
    session: int
    filled: int
    target: list[torch.Tensor]
    head: CarriedHead | None = None
    store: StoreRange = StoreRange()
    hidden: torch.Tensor | None = None


def save(slot: TorchSlot, cache: KVCache, proposer: Proposer | None, *, carry: bool) -> Snapshot:
    """Copy what the slot has computed. Pairs that queue are written first, while somebody reads the
    answer, unless a prefill was broken off."""
    saved = Snapshot(
        tokens=list(slot.tokens),
        session=slot.session,
        filled=slot.filled,
        target=cache.save_rows(slot.index, slot.filled),
    )
    if proposer is None or not carry or slot.session == 0:
        return saved
    first, end = proposer.ready(slot)
    if slot.head and end - first <= PAIR_QUEUE_LIMIT:
        proposer.flush(slot, end)
    saved.head = CarriedHead(
        slot.head_rows,
        slot.head_key,
        saved.tokens,
        slot.session,
        proposer.cache.save_rows(slot.index, slot.head_rows),
    )
    lo, hi = proposer.stores[slot.index].visible_to(slot.ticket)
    saved.store = StoreRange(slot.ticket, lo, min(hi, slot.filled))
    saved.hidden = proposer.hidden[slot.index, lo : saved.store.hi].clone()
    return saved


def adopt(
    slot: TorchSlot,
    saved: Snapshot | None,
    cache: KVCache,
    proposer: Proposer | None,
    *,
    carry: bool,
) -> None:
    """Take over the state of the longest common prefix of the two slots' tokens.

    The head's rows and the hidden states go from turn to turn of one session, also through a plain
    run, which adds none. A head without hidden states begins where the target computes its first row.
    """
    if saved is None:
        if slot.head and slot.session:
            slot.outcome = NoCarry("there was no turn before")
        return
    watch = Stopwatch(cache.keys[0].device)
    mine = carry and proposer is not None and slot.session != 0 and slot.session == saved.session
    whole = plan_reuse(slot.tokens, saved.tokens, saved.filled)
    lo, hi = (saved.store.lo, min(saved.store.hi, whole.common)) if mine else (0, 0)
    slot.kept = whole
    if slot.head and not lo <= len(slot.tokens) - 2 < hi:
        # The first draft is made from the hidden state before the pending token: compute that row.
        most = max(0, len(slot.tokens) - 2)
        slot.kept = Reuse(min(whole.tokens, most), whole.common, whole.why)
    slot.filled = slot.kept.tokens
    cache.load_rows(slot.index, slot.filled, saved.target)
    if slot.head:
        slot.outcome = (
            refusal(saved.head, slot.tokens, slot.session)
            if carry
            else NoCarry("the carry is not armed")
        )
    if not mine or proposer is None:
        return
    hi = min(hi, slot.filled)
    if lo < hi and saved.hidden is not None:
        proposer.keep(slot, lo, saved.hidden[: hi - lo])
    carried = saved.head and saved.head.usable_by(slot.tokens, slot.session)
    if carried:
        proposer.cache.load_rows(slot.index, carried.rows, carried.handle)
        slot.head_rows, slot.head_key = carried.rows, carried.last_pair_key
        slot.carried = replace(carried, handle=None)
    slot.carry_ms = 0.0
    slot.spend(watch)


def settle(slot: TorchSlot, proposer: Proposer) -> None:
    """The prompt is in: say what the carry came to."""
    if slot.carried is not None:
        store = proposer.stores[slot.index]
        slot.outcome = appended(slot.carried, slot.prompt, store, slot.ticket)
        slot.carried = None
