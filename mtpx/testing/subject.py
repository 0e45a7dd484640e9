"""What the conformance kit is given: engines to make, prompts to run, and a way to look inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, cast

from mtpx.backend import Drafts, Engine, EngineOptions, FloatArray, Slot


class Pairs(NamedTuple):
    """Rows of the head's KV a slot holds: written from target hidden states, from the head's own
    (dropped by the next propose), and pairs queued but not yet written."""

    valid: int
    provisional: int
    queued: int


class Inspectable(Protocol):
    """The methods the kit calls where a `Subject` brings no hook of its own. They are for tests, so
    an engine may keep them in a subclass."""

    def force(self, slots: Sequence[Slot], drafts: Sequence[Sequence[int]]) -> Drafts:
        """Propose, then put these token ids in the drafts' place (one list a slot, possibly empty),
        each drawn from a point mass. State afterwards is what a propose leaves."""
        ...

    def drafted(self, drafts: Drafts) -> list[list[int]]:
        """The token ids of these drafts, one list a slot."""
        ...

    def logits(self, slot: Slot) -> FloatArray:
        """(V,) raw logits of the token after `slot.tokens`, computed by a plain forward from the
        state the slot holds (not from scratch), the slot unchanged."""
        ...

    def pairs(self, slot: Slot) -> tuple[int, int, int]:
        """(valid, provisional, queued), see `Pairs`."""
        ...

    def poison(self, slot: Slot) -> None:
        """Make every further target forward of this slot give a NaN."""
        ...


@dataclass(frozen=True)
class Subject:
    """A backend under test.

    `load(options)` makes a fresh engine of the same weights; the kit closes it. `prompts`: token
    ids, several lengths, at least two prompts of two tokens or more. `depth`: deepest depth tried;
    `tokens`: how many are decoded in an equality check. `tolerance`: how far two computations of one logit may
    differ (absolute); two candidates closer than that are a numerical tie. `samples`: rounds
    drawn for a test of a distribution. `width`: sequences decoded together. `temperature` of the
    sampled checks.

    The five hooks default to the engine's methods of the same name (`Inspectable`). `pairs` and
    `poison` may be missing: what needs them is reported as skipped.
    """

    name: str
    load: Callable[[EngineOptions], Engine]
    prompts: Sequence[Sequence[int]]
    depth: int = 3
    tokens: int = 24
    tolerance: float = 1e-3
    samples: int = 400
    width: int = 4
    temperature: float = 1.0
    options: EngineOptions = field(default_factory=EngineOptions)
    logits: Callable[[Engine, Slot], FloatArray] = lambda engine, slot: _inside(engine).logits(slot)
    force: Callable[[Engine, Sequence[Slot], Sequence[Sequence[int]]], Drafts] = (
        lambda engine, slots, drafts: _inside(engine).force(slots, drafts)
    )
    drafted: Callable[[Engine, Drafts], list[list[int]]] = lambda engine, drafts: _inside(
        engine
    ).drafted(drafts)
    pairs: Callable[[Engine, Slot], tuple[int, int, int]] | None = lambda engine, slot: _inside(
        engine
    ).pairs(slot)
    poison: Callable[[Engine, Slot], None] | None = lambda engine, slot: _inside(engine).poison(
        slot
    )

    @contextmanager
    def engine(self, *, width: int = 1, pipeline: bool | None = False) -> Iterator[Engine]:
        """A fresh engine with room for `width` sequences, closed afterwards."""
        engine = self.load(replace(self.options, max_width=width, pipeline=pipeline))
        try:
            yield engine
        finally:
            engine.close()


def _inside(engine: Engine) -> Inspectable:
    return cast(Inspectable, engine)
