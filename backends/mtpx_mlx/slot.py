"""One sequence inside the MLX engine: what is committed, and how far its state reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mtpx.reuse import Reuse, Reused
from mtpx_mlx.hidden import HiddenRows
from mtpx_mlx.pair_cache import PairCache

if TYPE_CHECKING:
    import mlx.core as mx

    from mtpx.carry import CarriedHead, CarryOutcome
    from mtpx.sampling import Sampling
    from mtpx_mlx.checkpoints import Checkpoint
    from mtpx_mlx.engine import MlxEngine
    from mtpx_mlx.sample import Counts
    from mtpx_mlx.snapshot import Snapshot
    from mtpx_mlx.state import TargetState


@dataclass(slots=True)
class Flight:
    """A plain step already launched: its token and its check value, both still on the device."""

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


@dataclass(slots=True, eq=False)
class MlxSlot:
    """`state` covers `filled` positions between two rounds; `checkpoints` are earlier states that a
    recurrent target can go back to. `held` is the head's side, `None` where no head is loaded; a plain
    run (`headed` false) adds nothing to it and only hands it on. `round` counts target forwards that
    drew tokens. `kept` is what was taken over when it was opened, `carried` the head's part of that,
    `outcome` what became of it, `carry_ms` the time that took."""

    engine: MlxEngine
    tokens: list[int]
    prompt: int
    sampling: Sampling
    seed: int
    request: int
    end_ids: frozenset[int]
    state: TargetState
    held: HeadState | None
    headed: bool
    session: int = 0
    counts: Counts | None = None
    filled: int = 0
    round: int = 0
    flight: Flight | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)
    kept: Reuse = Reuse(0)
    carried: CarriedHead | None = None
    outcome: CarryOutcome | None = None
    carry_ms: float | None = None

    @property
    def head(self) -> HeadState | None:
        """The head's side, unless this is a plain run."""
        return self.held if self.headed else None

    @property
    def pairs(self) -> int:
        """Head pairs that the tokens and the target's state make up, the last one's number + 1."""
        return min(self.filled, len(self.tokens) - 1)

    @property
    def reused(self) -> Reused:
        return Reused(self.kept.tokens, self.kept.why, self.outcome, self.carry_ms)

    @property
    def pipelines(self) -> bool:
        """Whether the next step can start before this token is known to the host."""
        return not self.sampling.penalised and self.sampling.logprobs is None

    def settle(self) -> None:
        """Forget rows of a forward that were never committed: a step in flight, a round that failed
        or was interrupted."""
        self.flight = None
        if self.state.positions != self.filled:
            self.state.keep(self.filled)

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
