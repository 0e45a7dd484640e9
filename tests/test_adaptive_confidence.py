"""The adaptive policy where the head says how sure it is: cuts, and chains that stop."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from decode_makers import request_on
from regime_makers import regime

from mtpx.decode import decode
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.trial import Trial
from mtpx.sampling import Sampling
from mtpx.simulate import Regime, SimulatedEngine
from mtpx.simulate.light import play

DEAR = regime(
    acceptance=[0.5, 0.5, 0.5], cost_ms={1: [10.0, 13.0, 16.0, 19.0]}, spread=1.0, stall=0.01
)
"""Rows are dear, the head knows when it errs, and a change of shape costs nothing."""


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_cuts_pay_where_rows_are_dear_and_the_head_knows_when_it_errs(
    greedy: bool, apart: bool
) -> None:
    def rate(*, cuts: bool) -> float:
        runs = [
            play(AdaptiveDepth(cuts=cuts), DEAR, seed=seed, greedy=greedy, timed_apart=apart)
            for seed in range(2)
        ]
        return float(np.mean([run.rate for run in runs]))

    assert rate(cuts=True) > 1.005 * rate(cuts=False)


def test_confidence_is_not_read_where_a_row_is_free() -> None:
    flat = regime(spread=1.0, cost_ms={1: [10.0, 10.0, 10.0, 10.0]})
    policy = AdaptiveDepth()
    play(policy, flat, rounds=1500)
    assert not policy.cutting.reading


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_loop_runs_the_policy_with_its_cuts(temperature: float) -> None:
    engine = SimulatedEngine(
        Regime(acceptance=DEAR.acceptance, cost_ms=DEAR.cost_ms, draft_ms=0.2, spread=1.0)
    )
    policy = AdaptiveDepth()
    request = request_on(engine, 3000, sampling=Sampling(temperature=temperature))
    cut = 0
    for round in decode(engine, policy, [request], clock=engine.clock):
        cut += round.decision.cut if round.decision else 0
    assert request.stop == "length"
    assert len(request.delivered) == 3000
    assert cut > 20


STEPS = regime(
    acceptance=[0.5, 0.5, 0.5],
    cost_ms={1: [10.0, 10.2, 10.9, 11.6]},
    draft_ms=1.5,
    spread=1.0,
    stall=0.01,
    noise=0.02,
)
"""Head steps are dear, rows are not, and a change of shape costs nothing."""


@pytest.mark.parametrize("greedy", [True, False])
def test_stopping_early_pays_where_head_steps_are_dear_and_the_head_knows_when_it_errs(
    greedy: bool,
) -> None:
    def rate(*, cuts: bool) -> float:
        runs = [
            play(AdaptiveDepth(cuts=cuts), STEPS, seed=seed, greedy=greedy) for seed in range(3)
        ]
        return float(np.mean([run.rate for run in runs]))

    assert rate(cuts=True) > 1.005 * rate(cuts=False)


def test_a_reading_a_draft_that_costs_more_than_it_saves_is_given_up() -> None:
    slow = msgspec.structs.replace(STEPS, read_ms=1.0)
    policy = AdaptiveDepth()
    play(policy, slow, rounds=2500)
    assert not policy.cutting.reading


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_loop_runs_the_policy_with_chains_that_stop(temperature: float) -> None:
    engine = SimulatedEngine(msgspec.structs.replace(STEPS, noise=0.0, stall=0.0))
    policy = AdaptiveDepth()
    request = request_on(engine, 4000, sampling=Sampling(temperature=temperature))
    stopped = 0
    for round in decode(engine, policy, [request], clock=engine.clock):
        assert round.decision is not None
        if round.decision.stopped:
            stopped += 1
            assert round.slots[0].drafted > 0
            assert round.slots[0].drafted + round.decision.stopped <= 3
    assert len(request.delivered) == 4000
    assert stopped > 20


def test_what_was_learned_of_confidence_is_kept() -> None:
    first = AdaptiveDepth()
    play(first, STEPS, rounds=3000)
    assert first.cutting.reading
    second = AdaptiveDepth()
    second.restore(json.loads(json.dumps(first.state())))
    assert second.cutting.explain() == first.cutting.explain()
    assert "selected" in play(second, STEPS, rounds=20).reasons


DEEP = regime(
    acceptance=[0.7, 0.7, 0.7, 0.7, 0.7],
    cost_ms={1: [10.0, 10.2, 10.9, 13.0, 14.0, 15.0]},
    draft_ms=1.0,
    spread=1.0,
)


@pytest.mark.parametrize("known", [True, False])
def test_chains_of_a_trial_end_where_confidence_says_so_once_its_depth_was_timed(
    *, known: bool
) -> None:
    engine = SimulatedEngine(DEEP)
    policy = AdaptiveDepth()
    request = request_on(engine, 6000)
    lengths: list[int] = []
    trial = None
    for round in decode(engine, policy, [request], clock=engine.clock):
        if trial is not None and policy.asking.trial is trial:
            lengths.append(round.slots[0].drafted)
            assert round.decision is not None
            assert lengths[-1] + round.decision.stopped == 5
        elif trial is None and len(request.delivered) > 3000 and policy.cutting.stepwise:
            assert policy.cutting.reading
            trial = Trial(5, known=known, loss=1.0, moving=3.0, value=0.0)
            trial.plan(0.1)
            policy.asking.trial = trial
            policy._hurry()
    assert len(lengths) > 10
    assert (min(lengths) < 5) == known
    assert max(lengths) > 3
