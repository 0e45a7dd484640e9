"""A backend on a virtual clock: policies, the loop and the conformance kit without a model.

`Regime` says what rounds cost and how well the head drafts; `SimulatedEngine` is a whole
`mtpx.backend.Engine` over it; `simulated_model` dresses it as a loaded model.

    engine = SimulatedEngine(Regime(acceptance=[0.8, 0.6], cost_ms={1: [10, 11, 12]}))
    slot = engine.open([1, 2, 3], Sampling(), seed=0)
    while not engine.prefill(slot, 64): pass
    for round in decode(engine, FixedDepth(2), [Request(0, slot, Sampling(), 100)], clock=engine.clock): ...

`python -m mtpx.simulate --overhead` prints what the loop costs the host.
"""

from mtpx.simulate.clock import VirtualClock
from mtpx.simulate.engine import SimulatedEngine
from mtpx.simulate.head import SimulatedDrafts
from mtpx.simulate.language import Language
from mtpx.simulate.model import SimulatedModel, simulated_model
from mtpx.simulate.regime import Change, Regime, load_regime

__all__ = [
    "Change",
    "Language",
    "Regime",
    "SimulatedDrafts",
    "SimulatedEngine",
    "SimulatedModel",
    "VirtualClock",
    "load_regime",
    "simulated_model",
]
