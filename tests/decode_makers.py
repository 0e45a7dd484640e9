"""Policies, engines and requests for tests of the round loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtpx.backend import EngineOptions, FloatArray
from mtpx.decode import Request, decode
from mtpx.policy import Batch, DepthPolicy, FixedDepth
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.simulate import Regime, SimulatedEngine

REGIME = Regime(
    acceptance=[0.8, 0.7, 0.6], cost_ms={1: [10.0, 11.0, 12.0, 13.0]}, draft_ms=0.5, spread=0.5
)


class Scripted(FixedDepth):
    """A policy whose answers are functions given by the test; records what it is shown."""

    name = "scripted"

    def __init__(
        self,
        propose: Callable[[Batch], Any] = lambda batch: 2,
        verify: Callable[[FloatArray], Any] | None = None,
    ) -> None:
        super().__init__(0)
        self.wants_confidence = verify is not None
        self.script, self.cut = propose, verify
        self.batches: list[Batch] = []
        self.rounds: list[Round] = []

    def propose(self, batch: Batch) -> int:
        self.batches.append(batch)
        answer: int = self.script(batch)
        return answer

    def verify(self, confidence: FloatArray) -> list[int]:
        assert self.cut is not None
        answer: list[int] = self.cut(confidence)
        return answer

    def observe(self, round: Round) -> None:
        self.rounds.append(round)


def engine_of(width: int = 1, **settings_: Any) -> SimulatedEngine:
    return SimulatedEngine(REGIME, options=EngineOptions(max_width=width), **settings_)


def request_on(
    engine: SimulatedEngine,
    budget: int,
    *,
    id: int = 0,
    prompt: Sequence[int] = (1, 2, 3),
    sampling: Sampling = Sampling(),  # noqa: B008
    parked: str = "",
    end_ids: frozenset[int] = frozenset(),
) -> Request:
    slot = engine.open(prompt, sampling, 0, request=id, end_ids=end_ids)
    while not engine.prefill(slot, 64):
        pass
    return Request(id, slot, sampling, budget, parked=parked)


def finish(
    engine: SimulatedEngine, policy: DepthPolicy, *requests: Request, first_index: int = 0
) -> list[Round]:
    return list(decode(engine, policy, requests, clock=engine.clock, first_index=first_index))


def plain(count: int, **kwargs: Any) -> list[int]:
    engine = engine_of()
    request = request_on(engine, count, **kwargs)
    finish(engine, FixedDepth(0), request)
    return request.delivered
