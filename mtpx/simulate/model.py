"""A simulated model with the surface of a loaded one: enough for a bench or a policy to run on."""

from __future__ import annotations

from dataclasses import dataclass

from mtpx.backend import EngineOptions
from mtpx.simulate.clock import VirtualClock
from mtpx.simulate.engine import SimulatedEngine
from mtpx.simulate.language import Language, mix
from mtpx.simulate.regime import Regime


@dataclass(frozen=True)
class SimulatedPack:
    """The part of a pack that a run names."""

    name: str


@dataclass(frozen=True)
class SimulatedModel:
    """An engine on `clock`, an encoder and end ids."""

    engine: SimulatedEngine
    pack: SimulatedPack
    end_ids: frozenset[int]

    @property
    def clock(self) -> VirtualClock:
        return self.engine.clock

    def encode(self, text: str) -> list[int]:
        """Token ids, one a character; never an end id, never empty."""
        ids = [t for t in range(self.engine.language.vocab) if t not in self.end_ids]
        return [ids[mix(0, ord(c)) % len(ids)] for c in text or " "]


def simulated_model(
    regime: Regime | None = None,
    *,
    vocab: int = 32,
    end_bias: float = -6.0,
    max_width: int = 1,
    seed: int = 0,
    pipeline: bool | None = None,
) -> SimulatedModel:
    """A model on a virtual clock whose last token id ends a text.

    `end_bias` is added to the end id's logit: -6 makes an end rare, 0 as likely as any token.
    """
    end = vocab - 1
    engine = SimulatedEngine(
        regime,
        language=Language(vocab=vocab, bias={end: end_bias}),
        options=EngineOptions(max_width=max_width, pipeline=pipeline),
        seed=seed,
    )
    return SimulatedModel(engine, SimulatedPack(engine.info.pack), frozenset({end}))
