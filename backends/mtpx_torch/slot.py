"""One sequence inside the torch engine: what is committed, and how far its state reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtpx.host_slot import HostSlot
from mtpx.round import Route

if TYPE_CHECKING:
    import torch

    from mtpx_torch.engine import TorchEngine
    from mtpx_torch.sample import Counts
    from mtpx_torch.snapshot import Snapshot
    from mtpx_torch.timer import Stopwatch


@dataclass(slots=True)
class Flight:
    """A plain step already launched: the position of its row, its token and its check value, both still
    on the device, and how it ran."""

    position: int
    token: torch.Tensor
    peak: torch.Tensor
    route: Route


@dataclass(slots=True, eq=False, kw_only=True)
class TorchSlot(HostSlot):
    """The head's KV holds `head_rows` rows, the last of them of pair `head_key` (-1: none). `ticket` stamps
    the hidden states it writes (`mtpx.carry.StoreRange`). `eager`: its rounds stay on the eager route."""

    engine: TorchEngine
    index: int
    head: bool
    ticket: int = 0
    counts: Counts | None = None
    head_rows: int = 0
    head_key: int = -1
    flight: Flight | None = None
    eager: bool = False

    def spend(self, watch: Stopwatch) -> None:
        """Count time that went into the head's rows, if there is a carry, and if the host knows it."""
        ms = watch.host_ms()
        self.carry_ms = None if ms is None or self.carry_ms is None else self.carry_ms + ms

    def rewind(self, position: int) -> int:
        return self.engine.rewind(self, position)

    def snapshot(self) -> Snapshot:
        return self.engine.snapshot(self)

    def close(self) -> None:
        self.engine.release(self)
