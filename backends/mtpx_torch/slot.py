"""One sequence inside the torch engine: what is committed, and how far its state reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from mtpx.sampling import Sampling
    from mtpx_torch.engine import TorchEngine
    from mtpx_torch.sample import Counts
    from mtpx_torch.snapshot import Snapshot


@dataclass(slots=True)
class Flight:
    """A plain step already launched: its token and its check value, both still on the device."""

    token: torch.Tensor
    peak: torch.Tensor


@dataclass(slots=True, eq=False)
class TorchSlot:
    """`filled` target KV rows and hidden states are valid; `head_rows` head pairs are in the head's
    KV. Pair k is row k of the head's KV. `round` counts target forwards that drew tokens."""

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
    counts: Counts | None = None
    filled: int = 0
    head_rows: int = 0
    round: int = 0
    flight: Flight | None = None

    @property
    def pairs(self) -> int:
        """Head pairs whose embedding and hidden state are both known."""
        return min(self.filled, len(self.tokens) - 1)

    @property
    def queued(self) -> int:
        return self.pairs - self.head_rows

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
