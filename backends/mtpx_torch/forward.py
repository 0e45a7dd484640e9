"""The target's forwards: which rows, over which caches, by which route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from mtpx.round import Route
from mtpx_torch.attention import make_spans
from mtpx_torch.cache import SLACK, KVCache
from mtpx_torch.step import Step

if TYPE_CHECKING:
    from mtpx_torch.compiled import CompiledStep
    from mtpx_torch.slot import TorchSlot
    from mtpx_torch.trunk import Trunk

Pieces = Sequence[tuple["TorchSlot", Sequence["int | torch.Tensor"], int]]
"""Rows to run: a slot, token ids or tensors of them, the first one's position."""


class Forwards:
    """Runs rows of slots through the trunk. `fixed`: the row-invariant tier, where a slot keeps the
    route that it began on: the two routes round differently."""

    def __init__(
        self, trunk: Trunk, cache: KVCache, compiled: CompiledStep, *, fixed: bool
    ) -> None:
        self.trunk, self.cache, self.compiled, self.fixed = trunk, cache, compiled, fixed
        self._like = torch.empty(0, dtype=trunk.dtype, device=trunk.device)
        self._written = [0] * cache.keys[0].shape[0]

    def begin(self, slot: TorchSlot) -> int:
        """Make room for a new slot. Rows behind a mask are multiplied by 0, which a NaN that was left
        there would outlive. → how many rows the slot before wrote."""
        written, self._written[slot.index] = self._written[slot.index], 0
        if written:
            self.cache.clear(slot.index, written + SLACK)
        slot.eager = self.fixed and self.compiled.route(1) is None
        return written

    def adopted(self, slot: TorchSlot) -> None:
        """The slot took over rows that another one wrote."""
        self._written[slot.index] = slot.filled

    def route(self, slots: Sequence[TorchSlot], rows: Sequence[int]) -> Route:
        """What a step over these rows, one entry a slot, would run as now."""
        found = None
        if len(rows) == 1 and not any(slot.eager for slot in slots):
            found = self.compiled.route(rows[0])
        return found or Route("eager")

    def rows(self, pieces: Pieces) -> torch.Tensor:
        """Eagerly, without logits. → residual (rows + padding, H); the caches are written."""
        ids: list[torch.Tensor] = []
        spans: list[tuple[int, int, int]] = []
        positions: list[int] = []
        for slot, tokens, start in pieces:
            joined = self._joined(tokens)
            ids.append(joined)
            count = joined.shape[0]
            spans.append((slot.index, start, count))
            positions += range(start, start + count)
            self._wrote(slot, start + count)
        return self.trunk.forward(
            torch.cat(ids),
            torch.tensor(positions, device=self.trunk.device),
            make_spans(spans, self.trunk.group, self._like, fixed=self.fixed),
            self.cache,
        )

    def step(self, pieces: Pieces) -> tuple[Step, Route]:
        """The rows of a round, (rows + padding, ...), and how they ran."""
        slots = [slot for slot, _, _ in pieces]
        if len(pieces) == 1:
            (slot, tokens, start), *_ = pieces
            ids = self._joined(tokens)
            route = self.route(slots, [ids.shape[0]])
            if route.kind == "compiled":
                self._wrote(slot, start + ids.shape[0])
                keys, values = self.cache.of(slot.index)
                return self.compiled.run(ids, start, keys, values), route
        residual = self.rows(pieces)
        normed = self.trunk.norm(residual)
        return Step(residual, normed, self.trunk.output(normed)), Route("eager")

    def _joined(self, tokens: Sequence[int | torch.Tensor]) -> torch.Tensor:
        """(rows,) token ids on the device: what the host knows first."""
        device = self.trunk.device
        host = [t for t in tokens if not isinstance(t, torch.Tensor)]
        parts = [torch.tensor(host, device=device)] if host else []
        parts += [t for t in tokens if isinstance(t, torch.Tensor)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _wrote(self, slot: TorchSlot, end: int) -> None:
        self._written[slot.index] = max(self._written[slot.index], end)
