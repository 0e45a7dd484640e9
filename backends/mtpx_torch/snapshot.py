"""A slot's state on its own, and taking it over into another slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from mtpx_torch.cache import KVCache
    from mtpx_torch.propose import Proposer
    from mtpx_torch.slot import TorchSlot


@dataclass(slots=True)
class Snapshot:
    """`filled` target rows (`target`, and `hidden` (filled, H) where there is a head) and
    `head_rows` head pairs (`head`) of these tokens; copies, so that it outlives its slot."""

    tokens: list[int]
    session: int
    filled: int
    head_rows: int
    target: list[torch.Tensor]
    head: list[torch.Tensor] | None
    hidden: torch.Tensor | None


def save(slot: TorchSlot, cache: KVCache, proposer: Proposer | None) -> Snapshot:
    """Copy what the slot has computed."""
    head = hidden = None
    if slot.head and proposer is not None:
        head = proposer.cache.save_rows(slot.index, slot.head_rows)
        hidden = proposer.hidden[slot.index, : slot.filled].clone()
    return Snapshot(
        tokens=list(slot.tokens),
        session=slot.session,
        filled=slot.filled,
        head_rows=slot.head_rows,
        target=cache.save_rows(slot.index, slot.filled),
        head=head,
        hidden=hidden,
    )


def adopt(slot: TorchSlot, saved: Snapshot, cache: KVCache, proposer: Proposer | None) -> None:
    """Take over the state of the longest common prefix of the two slots' tokens.

    Head rows are adopted within a session only; elsewhere they are made again from the hidden
    states. Without hidden states a slot with a head could never catch up, so it adopts nothing.
    """
    if slot.head and saved.hidden is None:
        return
    common = 0
    for mine, theirs in zip(slot.tokens, saved.tokens, strict=False):
        if mine != theirs:
            break
        common += 1
    slot.filled = min(saved.filled, common, len(slot.tokens) - 1)
    cache.load_rows(slot.index, slot.filled, saved.target)
    if not slot.head or proposer is None or saved.hidden is None:
        return
    proposer.hidden[slot.index, : slot.filled] = saved.hidden[: slot.filled]
    if saved.head is not None and slot.session != 0 and slot.session == saved.session:
        slot.head_rows = max(0, min(saved.head_rows, slot.pairs, common - 1))
        proposer.cache.load_rows(slot.index, slot.head_rows, saved.head)
