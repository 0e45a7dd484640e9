"""One sequence inside the MLX engine: what is committed, and how far its state reaches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mtpx.host_slot import HostSlot
from mtpx_mlx.hidden import HiddenRows
from mtpx_mlx.pair_cache import PairCache
from mtpx_mlx.sample import Counts

if TYPE_CHECKING:
    import mlx.core as mx

    from mtpx_mlx.checkpoints import Checkpoint
    from mtpx_mlx.engine import MlxEngine
    from mtpx_mlx.snapshot import Snapshot
    from mtpx_mlx.state import TargetState


@dataclass(slots=True)
class Flight:
    """A plain step already launched: the position of its row, its token and its check value, both
    still on the device."""

    position: int
    token: mx.array
    peak: mx.array


@dataclass(slots=True)
class HeadState:
    """The head's side of a slot: `rows` pairs are in `cache`, the last of them pair `key` (-1: none),
    made of target states out of `hidden`."""

    cache: PairCache = field(default_factory=PairCache)
    hidden: HiddenRows = field(default_factory=HiddenRows)
    rows: int = 0
    key: int = -1

    def ready(self, pairs: int) -> tuple[int, int]:
        """[first, end) of the pairs that can be written now, after those that are."""
        end = min(self.hidden.hi, pairs)
        return min(max(self.key + 1, self.hidden.lo), end), end

    def drafts(self, pairs: int) -> bool:
        """Whether the hidden state that the first draft is made from is there."""
        return self.hidden.lo <= pairs - 1 < self.hidden.hi

    def cut(self, pairs: int) -> None:
        """Only pairs before `pairs` are still those of the slot's tokens."""
        if (beyond := self.key + 1 - pairs) > 0:
            self.rows = max(0, self.rows - beyond)
            self.key = pairs - 1 if self.rows else -1


@dataclass(slots=True, eq=False, kw_only=True)
class MlxSlot(HostSlot):
    """`state` covers `filled` positions between two rounds; `checkpoints` are earlier states that a
    recurrent target can go back to. `held` is the head's side, `None` where no head is loaded; a plain
    run (`headed` false) adds nothing to it and only hands it on."""

    engine: MlxEngine
    state: TargetState
    held: HeadState | None
    headed: bool
    counts: Counts | None = None
    flight: Flight | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def head(self) -> HeadState | None:
        """The head's side, unless this is a plain run."""
        return self.held if self.headed else None

    def settle(self) -> None:
        """Make everything hold for `filled` and `tokens` again: forget rows of a forward that were never
        committed (a step in flight, a round that failed or was interrupted), and count anew where
        counting was broken off."""
        self.flight = None
        if self.state.positions != self.filled:
            self.state.keep(self.filled)
        counted = None if self.counts is None else self.counts.tokens
        if self.sampling.penalised and counted != len(self.tokens):
            self.counts = Counts.of(self.tokens[: self.prompt], self.engine.info.vocab_size)
            self.counts.add(self.tokens[self.prompt :])

    def rewind(self, position: int) -> int:
        return self.engine.rewind(self, position)

    def snapshot(self) -> Snapshot:
        return self.engine.snapshot(self)

    def close(self) -> None:
        self.engine.release(self)
