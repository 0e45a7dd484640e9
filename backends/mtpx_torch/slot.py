"""One sequence inside the torch engine: what is committed, and how far its state reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtpx.reuse import Reuse, Reused
from mtpx.round import Route

if TYPE_CHECKING:
    import torch

    from mtpx.carry import CarriedHead, CarryOutcome
    from mtpx.sampling import Sampling
    from mtpx_torch.engine import TorchEngine
    from mtpx_torch.sample import Counts
    from mtpx_torch.snapshot import Snapshot
    from mtpx_torch.timer import Stopwatch


@dataclass(slots=True)
class Flight:
    """A plain step already launched: its token and its check value, both still on the device, and how it ran."""

    token: torch.Tensor
    peak: torch.Tensor
    route: Route


@dataclass(slots=True, eq=False)
class TorchSlot:
    """`filled` target KV rows are valid; the head's KV holds `head_rows` rows, the last of them of pair
    `head_key` (-1: none). `ticket` stamps the hidden states it writes (`mtpx.carry.StoreRange`).
    `round` counts target forwards that drew tokens. `kept` is what was taken over when it was opened,
    `carried` the head's part of that, `outcome` what became of it, `carry_ms` the time that took.
    `eager`: its rounds stay on the eager route."""

    engine: TorchEngine
    index: int
    tokens: list[int]
    prompt: int
    sampling: Sampling
    seed: int
    request: int
    end_ids: frozenset[int]
    head: bool
    session: int = 0
    ticket: int = 0
    counts: Counts | None = None
    filled: int = 0
    head_rows: int = 0
    head_key: int = -1
    round: int = 0
    flight: Flight | None = None
    eager: bool = False
    kept: Reuse = Reuse(0)
    carried: CarriedHead | None = None
    outcome: CarryOutcome | None = None
    carry_ms: float | None = None

    @property
    def pairs(self) -> int:
        """Head pairs that the tokens and the target's state make up, the last one's number + 1."""
        return min(self.filled, len(self.tokens) - 1)

    @property
    def reused(self) -> Reused:
        return Reused(self.kept.tokens, self.kept.why, self.outcome, self.carry_ms)

    def spend(self, watch: Stopwatch) -> None:
        """Count time that went into the head's rows, if there is a carry, and if the host knows it."""
        ms = watch.host_ms()
        self.carry_ms = None if ms is None or self.carry_ms is None else self.carry_ms + ms

    @property
    def pipelines(self) -> bool:
        """Whether the next step can start before this token is known to the host."""
        return not self.sampling.penalised and self.sampling.logprobs is None

    def cut(self, committed: Sequence[int]) -> tuple[list[int], bool]:
        """`committed` up to and including the first end id, and whether there was one."""
        for i, token in enumerate(committed):
            if token in self.end_ids:
                return list(committed[: i + 1]), True
        return list(committed), False

    def rewind(self, position: int) -> int:
        return self.engine.rewind(self, position)

    def snapshot(self) -> Snapshot:
        return self.engine.snapshot(self)

    def close(self) -> None:
        self.engine.release(self)
