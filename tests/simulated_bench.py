"""The simulated model with the surface a bench and the command line need."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from mtpx.backend import EngineInfo
from mtpx.simulate import Language, Regime, SimulatedEngine, VirtualClock, simulated_model

PAYS = Regime(acceptance=(0.8, 0.6, 0.5), cost_ms={1: (10.0, 11.0, 12.0, 13.0)}, noise=0.01)
"""Every row nearly free, drafts that stand: depth 1 delivers about 1.6 times the plain rate."""

COSTS = Regime(acceptance=(0.2, 0.1, 0.1), cost_ms={1: (10.0, 14.0, 18.0, 22.0)}, noise=0.01)
"""Dear rows, drafts that fall: depth 1 delivers about 0.85 times the plain rate."""

NOISY = Regime(acceptance=(0.9,), cost_ms={1: (10.0, 11.0)}, stall=0.05, stall_factor=(5.0, 30.0))
"""A machine that is often elsewhere."""


@dataclass
class Pack:
    name: str = "simulated"


@dataclass
class Model:
    """The simulated engine with an encoder for whatever a bench gives it."""

    engine: SimulatedEngine
    end_ids: frozenset[int]
    pack: Pack = field(default_factory=Pack)

    def encode(self, content: Any) -> list[int]:
        text = content if isinstance(content, str) else "\n".join(m["content"] for m in content)
        return [1 + ord(c) % (self.engine.language.vocab - 2) for c in text]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.close()


def model_of(regime: Regime, end_bias: float = -1e9, seed: int = 0) -> Model:
    """A model on this machine; by default its texts never end by themselves."""
    simulated = simulated_model(regime, end_bias=end_bias, seed=seed)
    return Model(simulated.engine, simulated.end_ids)


END = 31


class PrecisionEngine(SimulatedEngine):
    """One that says which precision it runs in and on which weights; another precision, another text."""

    def __init__(self, regime: Regime, precision: str, clock: VirtualClock) -> None:
        language = Language(seed=sum(precision.encode()), bias={END: -1e9})
        super().__init__(regime, clock=clock, language=language)
        self.precision, self.weights, self.step_bytes = precision, "w", 0
        self.details: dict[str, str] = {}

    @property
    def info(self) -> EngineInfo:
        return replace(
            super().info,
            dtype=self.precision,
            weights_digest=self.weights,
            plain_step_bytes=self.step_bytes,
            details=self.details,
        )


def model_in(precision: str, regime: Regime, clock: VirtualClock) -> Model:
    """A model in this precision, whose texts never end; several share a machine by its `clock`."""
    return Model(PrecisionEngine(regime, precision, clock), frozenset({END}))
