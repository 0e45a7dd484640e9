"""A slot's state on its own, and taking it over into another slot."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import mlx.core as mx

from mtpx.backend import PAIR_QUEUE_LIMIT
from mtpx.carry import CarriedHead, NoCarry, StoreRange, appended, refusal
from mtpx.reuse import Reuse, plan_reuse
from mtpx.snapshots import snapshot_min_tokens
from mtpx_mlx.checkpoints import Checkpoint, bounded
from mtpx_mlx.hidden import HiddenRows

if TYPE_CHECKING:
    from mtpx_mlx.propose import Proposer
    from mtpx_mlx.slot import HeadState, MlxSlot
    from mtpx_mlx.state import TargetState


@dataclass(slots=True)
class Snapshot:
    """The target's state after `filled` of these tokens; of a session also the head's rows (`head`,
    whose handle is their cache) and the hidden states. A state that cannot be cut is also held as it was
    after earlier positions (`checkpoints`). Shares its values with the slot it came from,
    which copies before it writes."""

    tokens: list[int]
    session: int
    filled: int
    state: TargetState
    head: CarriedHead | None = None
    hidden: HiddenRows | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)


def save(slot: MlxSlot, proposer: Proposer | None, *, carry: bool) -> Snapshot:
    """Remember what the slot has computed. Pairs that queue are written first, while somebody reads
    the answer, unless a prefill was broken off."""
    saved = Snapshot(list(slot.tokens), slot.session, slot.filled, slot.state.copy())
    saved.state.evaluate()
    if saved.state.recurrent:
        saved.checkpoints = bounded([*slot.checkpoints, Checkpoint.of(saved.state)])
    mine = slot.held
    if mine is None or not carry or slot.session == 0:
        return saved
    first, end = mine.ready(slot.pairs)
    if slot.headed and proposer is not None and end - first <= PAIR_QUEUE_LIMIT:
        proposer.flush(slot, mine, end)
    cache = mine.cache.copy(mine.rows)
    saved.head = CarriedHead(mine.rows, mine.key, saved.tokens, slot.session, cache)
    saved.hidden = mine.hidden.copy(slot.filled)
    mx.eval(cache.state, [r for r in [saved.hidden.rows] if r is not None])
    return saved


def adopt(slot: MlxSlot, saved: Snapshot | None, *, carry: bool) -> None:
    """Take over the state of the longest common prefix of the two slots' tokens.

    The head's rows and the hidden states go from turn to turn of one session, also through a plain
    run, which adds none. A head without hidden states begins where the target computes its first row.
    """
    if saved is None:
        if slot.headed and slot.session:
            slot.outcome = NoCarry("there was no turn before")
        return
    started = time.perf_counter_ns()
    mine = carry and slot.session != 0 and slot.session == saved.session
    state = saved.state.copy()
    plan = _plan(slot, saved, state, mine)
    slot.kept = plan
    slot.checkpoints = [c for c in saved.checkpoints if c.position <= plan.tokens]
    if state.reach(plan.tokens) < plan.tokens:
        slot.checkpoints[-1].put_into(state)
    state.keep(plan.tokens)
    slot.state, slot.filled = state, plan.tokens
    if slot.headed:
        slot.outcome = (
            refusal(saved.head, slot.tokens, slot.session)
            if carry
            else NoCarry("the carry is not armed")
        )
    if not mine or slot.held is None:
        return
    if saved.hidden is not None:
        slot.held.hidden = saved.hidden.copy(plan.tokens)
    carried = saved.head and saved.head.usable_by(slot.tokens, slot.session)
    if carried:
        slot.held.cache = carried.handle.copy(carried.rows)
        slot.held.rows, slot.held.key = carried.rows, carried.last_pair_key
        slot.carried = replace(carried, handle=None)
    slot.carry_ms = (time.perf_counter_ns() - started) / 1e6


def _plan(slot: MlxSlot, saved: Snapshot, state: TargetState, mine: bool) -> Reuse:
    """How many positions of the saved state serve this slot."""
    prompt = slot.tokens

    def reachable(most: int) -> Reuse:
        plan = plan_reuse(prompt, saved.tokens, saved.filled, most=most)
        if state.recurrent:
            kept = [*(c.position for c in saved.checkpoints), state.reach(plan.tokens)]
            floor = snapshot_min_tokens()
            return plan_reuse(
                prompt, saved.tokens, saved.filled, snapshots=kept, floor=floor, most=most
            )
        if state.reach(plan.tokens) == plan.tokens:
            return plan
        # A state that cannot be cut anywhere serves from where it can be gone back to.
        kept = [state.reach(plan.tokens)]
        return plan_reuse(prompt, saved.tokens, saved.filled, snapshots=kept, most=most)

    whole = reachable(len(prompt) - 1)
    hidden = saved.hidden if mine else None
    lo, hi = (hidden.lo, min(hidden.hi, whole.common)) if hidden is not None else (0, 0)
    if slot.headed and not lo <= len(prompt) - 2 < hi:
        # The first draft is made from the hidden state before the pending token: compute that row.
        return reachable(max(0, len(prompt) - 2))
    return whole


def prefill_head(
    slot: MlxSlot, head: HeadState, proposer: Proposer, target: int, max_tokens: int
) -> bool:
    """Write at most `max_tokens` further pairs, up to `target`; True once all that can be are. Then it
    is said what the carry came to."""
    started = time.perf_counter_ns()
    first, _ = head.ready(slot.pairs)
    proposer.flush(slot, head, min(target, first + max(1, max_tokens)))
    mx.eval(head.cache.state)
    if slot.carry_ms is not None:
        slot.carry_ms += (time.perf_counter_ns() - started) / 1e6
    first, end = head.ready(slot.pairs)
    if first < min(target, end) or slot.filled < target + 1:
        return False
    if slot.carried is not None:
        held = StoreRange(1, head.hidden.lo, head.hidden.hi)
        slot.outcome = appended(slot.carried, slot.prompt, held, 1)
        slot.carried = None
    return True
