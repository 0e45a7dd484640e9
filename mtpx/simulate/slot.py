"""What one simulated sequence holds, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mtpx.carry import Adopted, CarriedHead, CarryOutcome, NoCarry, refusal
from mtpx.errors import BackendError
from mtpx.reuse import Reuse, Reused, plan_reuse
from mtpx.sampling import Array, History, Sampling
from mtpx.simulate.language import mix
from mtpx.snapshots import snapshot_min_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """A plain step in flight: the token it draws, and its logits."""

    token: int
    logits: Array


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tokens, the target's rows and the head's, as they were."""

    tokens: tuple[int, ...]
    states: tuple[int, ...]
    head: CarriedHead | None = None


class Owner(Protocol):
    """The engine, as its slots see it."""

    checkpoint: int
    carry: bool

    def release(self, slot: SimulatedSlot) -> None: ...


@dataclass(slots=True, eq=False)
class SimulatedSlot:
    """One sequence. `states[i]`: the target's row at position i; `head_rows[j]`: the head's row of
    pair j, of which the first `valid` come from target states and the rest are provisional;
    `queue`: pairs (token j + 1, state j) not yet written. `skipped` pairs have no row: nobody had their
    target states when it was time."""

    owner: Owner
    ids: list[int]
    sampling: Sampling
    seed: int
    request: int
    end_ids: frozenset[int]
    head: bool
    session: int = 0
    prompt_length: int = 0
    states: list[int] = field(default_factory=list)
    head_rows: list[int] = field(default_factory=list)
    valid: int = 0
    skipped: int = 0
    queue: list[tuple[int, int]] = field(default_factory=list)
    flight: Step | None = None
    round: int = 0
    poisoned: bool = False
    kept: Reuse = Reuse(0)
    outcome: CarryOutcome | None = None

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)

    @property
    def tokens(self) -> Sequence[int]:
        return self.ids

    def history(self) -> History:
        return History(self.ids[: self.prompt_length], self.ids[self.prompt_length :])

    def last_state(self, start: int) -> int:
        return self.states[-1] if self.states else start

    @property
    def reused(self) -> Reused:
        return Reused(self.kept.tokens, self.kept.why, self.outcome)

    def adopt(self, snapshot: Snapshot | None) -> None:
        """Take over the target's rows of the longest common prefix (recurrent: up to a checkpoint), the
        last token stays pending; and, within a session, the head's."""
        if snapshot is None:
            if self.head and self.session:
                self.outcome = NoCarry("there was no turn before")
            return
        every, filled = self.owner.checkpoint, len(snapshot.states)
        self.kept = plan_reuse(
            self.ids,
            snapshot.tokens,
            filled,
            snapshots=None if every == 1 else range(every, filled + 1, every),
            floor=0 if every == 1 else snapshot_min_tokens(),
        )
        self.states = list(snapshot.states[: self.kept.tokens])
        if self.head:
            self._adopt_head(snapshot.head)

    def _adopt_head(self, entry: CarriedHead | None) -> None:
        carried = entry.usable_by(self.ids, self.session) if entry and self.owner.carry else None
        if carried is None:
            self.skipped = len(self.states)
            self.outcome = (
                refusal(entry, self.ids, self.session)
                if self.owner.carry
                else NoCarry("the carry is not armed")
            )
            return
        self.head_rows = carried.handle[: carried.rows]
        self.valid = carried.rows
        self.skipped = carried.last_pair_key + 1 - carried.rows
        first = carried.last_pair_key + 1
        more = max(0, len(self.ids) - 1 - first)
        self.outcome = Adopted(carried.rows, more, first)

    def write_pair(self, token: int, state: int) -> None:
        """One valid head row; every row depends on all before it, as attention does."""
        previous = self.head_rows[-1] if self.head_rows else 0
        self.head_rows.append(mix(mix(previous, token), state))
        self.valid += 1

    def drop_provisional(self) -> None:
        del self.head_rows[self.valid :]

    def flush(self) -> None:
        for token, state in self.queue:
            self.write_pair(token, state)
        self.queue.clear()

    def discard_flight(self) -> None:
        if self.flight is not None:
            self.flight = None
            self.states.pop()

    def rewind(self, position: int) -> int:
        if position < 1:
            raise BackendError(f"cannot rewind to {position} tokens; one must stay")
        self.discard_flight()
        if position >= len(self.ids):
            return len(self.ids)
        rows = (position - 1) // self.owner.checkpoint * self.owner.checkpoint
        del self.ids[rows + 1 :]
        del self.states[rows:]
        self.drop_provisional()
        del self.head_rows[max(0, rows - self.skipped) :]
        self.valid = len(self.head_rows)
        self.skipped = min(self.skipped, rows)
        del self.queue[max(0, rows - self.skipped - self.valid) :]
        self.prompt_length = min(self.prompt_length, len(self.ids))
        return len(self.ids)

    def snapshot(self) -> Snapshot:
        self.discard_flight()
        head = None
        if self.session and self.owner.carry:
            rows = list(self.head_rows[: self.valid])
            last = self.valid + self.skipped - 1
            head = CarriedHead(len(rows), last, tuple(self.ids), self.session, rows)
        return Snapshot(tuple(self.ids), tuple(self.states), head)

    def close(self) -> None:
        self.flight = None
        self.owner.release(self)
