"""A snapshot as bytes for a file, and back: the target's layers, states kept to go back to, the head's
rows and the hidden states they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mtpx.carry import CarriedHead
from mtpx.frozen import Frozen
from mtpx_mlx.checkpoints import Checkpoint, bounded
from mtpx_mlx.frozen_layers import Given, Taken
from mtpx_mlx.hidden import HiddenRows
from mtpx_mlx.pair_cache import PairCache
from mtpx_mlx.snapshot import Snapshot

if TYPE_CHECKING:
    from mtpx_mlx.head import Head
    from mtpx_mlx.state import LayerState
    from mtpx_mlx.target import Target


def freeze(saved: Snapshot) -> Frozen:
    """`target.I.*` is layer I after `filled` positions, `checkpoint.N.I.*` a layer that cannot be cut
    after `checkpoint.N` positions, `head.*` the head's rows, `hidden` (hi - lo, H).

    Raises `BackendError` where a layer is of a kind that is not kept in files.
    """
    given = Given(numbers={"filled": saved.filled, "head_rows": 0, "checkpoints": 0})
    if saved.filled:
        for i, layer in enumerate(saved.state.layers):
            given.layer(f"target.{i}", layer)
    # The state at the end is among the layers already.
    earlier = [c for c in saved.checkpoints if c.position < saved.filled]
    given.numbers["checkpoints"] = len(earlier)
    for n, checkpoint in enumerate(earlier):
        given.numbers[f"checkpoint.{n}"] = checkpoint.position
        for i, layer in checkpoint.layers.items():
            given.layer(f"checkpoint.{n}.{i}", layer)
    head, hidden = saved.head, saved.hidden
    if head is not None and hidden is not None and head.rows:
        given.layer("head", head.handle.rows)
        given.numbers |= {"head_rows": head.rows, "head_key": head.last_pair_key}
        given.numbers |= {"hidden_lo": hidden.lo, "hidden_hi": max(hidden.lo, hidden.hi)}
        if hidden.lo < hidden.hi:
            given.arrays["hidden"] = hidden.read(hidden.lo, hidden.hi)
    return Frozen(saved.tokens, saved.session, given.tensors(), given.numbers)


def thaw(frozen: Frozen, target: Target, head: Head | None) -> Snapshot:
    """A snapshot of this target and head. Raises `BackendError` where the bytes are not theirs."""
    taken, state, one = Taken(frozen.tensors, frozen.facts), target.fresh(), target.fresh()
    # Arrays know their shapes before they are computed, and these never are.
    rows = target(mx.array([0]), one)
    filled = taken.number("filled", 0, len(frozen.tokens))
    if filled:
        pairs = zip(state.layers, one.layers, strict=True)
        state.layers = [
            taken.layer(f"target.{i}", fresh, like, filled) for i, (fresh, like) in enumerate(pairs)
        ]
        state.positions = filled
    saved = Snapshot(frozen.tokens, frozen.session, filled, state)
    if state.recurrent:
        earlier = _checkpoints(taken, target, one.layers, filled)
        saved.checkpoints = bounded([*earlier, Checkpoint.of(state)])
    if head is not None and rows.hidden is not None:
        _take_head(taken, saved, head, rows.hidden)
    return saved


def _checkpoints(
    taken: Taken, target: Target, like: list[LayerState], filled: int
) -> list[Checkpoint]:
    made = []
    for n in range(taken.number("checkpoints", 0, filled)):
        position = taken.number(f"checkpoint.{n}", 1, filled)
        fresh = target.fresh()
        layers = {
            i: taken.layer(f"checkpoint.{n}.{i}", fresh.layers[i], like[i], position)
            for i in Checkpoint.kept(fresh)
        }
        made.append(Checkpoint.holding(position, layers))
    return made


def _take_head(taken: Taken, saved: Snapshot, head: Head, hidden: mx.array) -> None:
    """The head's rows and the hidden states; `hidden` (1, H) is one of the target's."""
    pairs = max(0, len(saved.tokens) - 1)
    count = taken.number("head_rows", 0, pairs)
    if not count:
        return
    key = taken.number("head_key", count - 1, pairs - 1)
    lo = taken.number("hidden_lo", 0, saved.filled)
    hi = taken.number("hidden_hi", lo, saved.filled)
    one, cache = PairCache(), PairCache()
    one.place(0, 1)
    head.forward(mx.array([0]), hidden, 0, one)
    taken.layer("head", cache.rows, one.rows, count)
    saved.head = CarriedHead(count, key, saved.tokens, saved.session, cache)
    saved.hidden = HiddenRows()
    if lo < hi:
        saved.hidden.write(lo, taken.array("hidden", hidden, 0, hi - lo))
