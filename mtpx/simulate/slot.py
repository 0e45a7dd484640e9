"""What one simulated sequence holds, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mtpx.errors import BackendError
from mtpx.sampling import Array, History, Sampling
from mtpx.simulate.language import mix


@dataclass(frozen=True, slots=True)
class Step:
    """A plain step in flight: the token it draws, and its logits."""

    token: int
    logits: Array


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tokens and the target's rows, as they were."""

    tokens: tuple[int, ...]
    states: tuple[int, ...]


class Owner(Protocol):
    """The engine, as its slots see it."""

    checkpoint: int

    def release(self, slot: SimulatedSlot) -> None: ...


@dataclass(slots=True, eq=False)
class SimulatedSlot:
    """One sequence. `states[i]`: the target's row at position i; `head_rows[j]`: the head's row of
    pair j, of which the first `valid` come from target states and the rest are provisional;
    `queue`: pairs (token j + 1, state j) not yet written."""

    owner: Owner
    ids: list[int]
    sampling: Sampling
    seed: int
    request: int
    end_ids: frozenset[int]
    head: bool
    prompt_length: int = 0
    states: list[int] = field(default_factory=list)
    head_rows: list[int] = field(default_factory=list)
    valid: int = 0
    queue: list[tuple[int, int]] = field(default_factory=list)
    flight: Step | None = None
    round: int = 0
    poisoned: bool = False

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)

    @property
    def tokens(self) -> Sequence[int]:
        return self.ids

    def history(self) -> History:
        return History(self.ids[: self.prompt_length], self.ids[self.prompt_length :])

    def last_state(self, start: int) -> int:
        return self.states[-1] if self.states else start

    def adopt(self, snapshot: Snapshot) -> None:
        """Take over the rows of the longest common prefix; the last token stays pending."""
        common = 0
        for mine, theirs in zip(self.ids[:-1], snapshot.tokens, strict=False):
            if mine != theirs:
                break
            common += 1
        self.states = list(snapshot.states[:common])
        if self.head:
            for j, state in enumerate(self.states):
                self.write_pair(self.ids[j + 1], state)

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
        del self.head_rows[rows:]
        self.valid = len(self.head_rows)
        del self.queue[max(0, rows - self.valid) :]
        self.prompt_length = min(self.prompt_length, len(self.ids))
        return len(self.ids)

    def snapshot(self) -> Snapshot:
        self.discard_flight()
        return Snapshot(tuple(self.ids), tuple(self.states))

    def close(self) -> None:
        self.flight = None
        self.owner.release(self)
