"""States of recurrent layers after so many positions, kept to go back to.

Keys and values are cut from whatever came later; only the layers that cannot be cut are remembered, so
a checkpoint costs the same after ten tokens as after ten thousand.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten

from mtpx.snapshots import kept_snapshots
from mtpx_mlx.state import KVLayer, LayerState, TargetState

MOST_BYTES = 1 << 30
"""Of one sequence's checkpoints, beside the last: a 27B Qwen3.5's take 151 MB each."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The layers, by their number, that hold the state after `position` positions."""

    position: int
    layers: dict[int, LayerState]
    nbytes: int

    @classmethod
    def of(cls, state: TargetState) -> Checkpoint:
        return cls.holding(state.positions, {i: state.layers[i].copy() for i in cls.kept(state)})

    @classmethod
    def holding(cls, position: int, layers: dict[int, LayerState]) -> Checkpoint:
        """These layers, computed."""
        held = [layer.cache.state for layer in layers.values()]
        mx.eval(held)
        arrays = [a for _, a in tree_flatten(held) if isinstance(a, mx.array)]
        return cls(position, layers, sum(a.nbytes for a in arrays))

    @staticmethod
    def kept(state: TargetState) -> list[int]:
        """Numbers of the layers that cannot be cut."""
        return [i for i, layer in enumerate(state.layers) if not isinstance(layer, KVLayer)]

    def put_into(self, state: TargetState) -> None:
        """Take a later state of the same sequence back to this one."""
        for i, layer in self.layers.items():
            state.layers[i] = layer.copy()


def bounded(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """One for every position, as many as may be kept."""
    by_position = {c.position: c for c in checkpoints}
    found = [by_position[p] for p in sorted(by_position)]
    if not found:
        return []
    kept = kept_snapshots([c.position for c in found], [c.nbytes for c in found], budget=MOST_BYTES)
    return [found[i] for i in kept]
