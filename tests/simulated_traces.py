"""Traces of simulated runs: real rounds of the real loop on the virtual clock."""

from __future__ import annotations

from mtpx.decode import Request, decode
from mtpx.policy import DepthPolicy
from mtpx.sampling import Sampling
from mtpx.simulate import Regime, SimulatedEngine
from mtpx.trace.ends import end_record
from mtpx.trace.runs import run_record
from mtpx.trace.schema import Record, RequestRecord


def simulated_trace(
    regime: Regime, policy: DepthPolicy, *, tokens: int = 2000, requests: int = 2, seed: int = 0
) -> list[Record]:
    """`requests` answers of `tokens` tokens under `policy`."""
    engine = SimulatedEngine(regime, seed=seed)
    out: list[Record] = [run_record(engine.info, policy)]
    index = 0
    for id in range(requests):
        slot = engine.open([1, 2, 3 + id], Sampling(), seed=seed, request=id)
        while not engine.prefill(slot, 512):
            pass
        out.append(RequestRecord(id, "mtp", 3, "aa", tokens, Sampling(), seed, prefill_ms=1.0))
        request = Request(id, slot, Sampling(), tokens)
        arrivals = []
        for round in decode(engine, policy, [request], clock=engine.clock, first_index=index):
            out.append(round)
            index = round.index + 1
            arrivals.append((engine.clock(), len(request.delivered)))
        out.append(end_record(id, request.delivered, arrivals, stop=request.stop or "error"))
        slot.close()
    return out


def tokens_per_ms(records: list[Record]) -> float:
    """What the rounds delivered over what they took."""
    from mtpx.round import Round

    rounds = [r for r in records if isinstance(r, Round)]
    return sum(r.committed for r in rounds) / sum(r.round_ms for r in rounds)
