"""The adaptive policy: what it chooses, what it learns from, what it refuses."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regime_makers import regime
from trace_makers import a_round, slot

from mtpx.errors import PolicyError
from mtpx.policy import Batch, DepthPolicy, FixedDepth
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.ollama import OllamaDepth
from mtpx.policy.registry import make_policy
from mtpx.round import Round, Route
from mtpx.simulate import Change
from mtpx.simulate.light import play
from mtpx.simulate.scenario import Scenario

EAGER = Route()


def batch(*caps: int, greedy: bool = True) -> Batch:
    return Batch(list(caps), [100] * len(caps), [greedy] * len(caps), lambda k: EAGER)


class Driver:
    """A policy, fed rounds of given cost and outcome."""

    def __init__(self, policy: DepthPolicy, costs: list[float], accepted: int = 99) -> None:
        self.policy = policy
        self.costs = costs
        self.accepted = accepted
        self.index = 0

    def round(self, cap: int = 3, **fields: Any) -> Round:
        depth = min(self.policy.propose(batch(cap)), cap)
        ms = fields.pop("ms", self.costs[depth])
        round = a_round(self.index, slot(depth, min(depth, self.accepted)), ms=ms, **fields)
        round.decision = self.policy.decision()
        self.policy.observe(round)
        self.index += 1
        return round

    def run(self, rounds: int) -> list[Round]:
        return [self.round() for _ in range(rounds)]


@pytest.mark.parametrize("make", [AdaptiveDepth, OllamaDepth])
def test_depths_0_and_1_are_seeded_two_rounds_each_before_anything_is_judged(make: Any) -> None:
    rounds = Driver(make(), [10.0, 11.0, 12.0, 13.0]).run(4)
    assert [r.depth for r in rounds] == [0, 0, 1, 1]
    decisions = [r.decision for r in rounds]
    assert [d.reason for d in decisions if d] == ["seed"] * 4
    assert [d.cost_sample for d in decisions if d] == [False, True, False, True]
    assert [d.excluded for d in decisions if d] == ["resume", "", "transition", ""]


def test_while_something_compiles_beside_every_round_drafts_are_made_all_the_same() -> None:
    """No round's time is a sample then, and waiting for one at depth 0 would decode plain all along."""
    driver = Driver(AdaptiveDepth(), [10.0, 11.0, 12.0, 13.0])
    depths = [driver.round(compiled_now=True).depth for _ in range(60)]
    assert depths[20:] == [1] * 40
    later = driver.run(60)
    assert {round.depth for round in later} >= {0, 1, 3}
    assert later[-1].depth == 3


def test_a_head_limit_of_0_is_plain_decode_that_teaches_nothing() -> None:
    driver = Driver(AdaptiveDepth(), [10.0])
    for _ in range(5):
        round = driver.round(cap=0)
        assert round.depth == 0
        assert round.decision is not None
        assert round.decision.cost_sample is False
    policy = driver.policy
    assert isinstance(policy, AdaptiveDepth)
    assert not policy.seen.costs


def test_the_last_token_of_a_budget_is_not_a_parked_depth() -> None:
    driver = Driver(AdaptiveDepth(), [10.0, 10.5, 11.0, 11.5])
    driver.run(200)
    policy = driver.policy
    assert isinstance(policy, AdaptiveDepth)
    before, interval = policy.selected, policy.asking.interval
    assert before == 3
    for cap in (2, 1, 0):
        round = driver.round(cap=cap)
        assert round.depth <= cap
    assert (policy.selected, policy.asking.interval) == (before, interval)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"compiled_now": True}, "compile"),
        ({"ms": 500.0}, "stall"),
        ({"ms": -3.0}, "clock"),
        ({"ms": math.nan}, "clock"),
    ],
)
def test_a_round_whose_time_means_nothing_says_why_and_moves_no_cost(
    fields: dict[str, Any], why: str
) -> None:
    policy = AdaptiveDepth()
    driver = Driver(policy, [10.0, 20.0, 30.0, 40.0], accepted=0)
    driver.run(150)
    while driver.round().depth or driver.round().depth:
        pass
    before = policy.explain()["cost_ms"]
    round = driver.round(**fields)
    assert round.depth == 0
    assert round.decision is not None
    assert (round.decision.cost_sample, round.decision.excluded) == (False, why)
    assert policy.explain()["cost_ms"] == before


def test_more_accepted_than_verified_is_refused_by_name() -> None:
    for policy in (AdaptiveDepth(), OllamaDepth()):
        policy.propose(batch(3))
        with pytest.raises(PolicyError, match="accepted"):
            policy.observe(a_round(0, slot(2, 3, drafted=3)))


def test_a_dip_behind_a_wall_is_found() -> None:
    wall = regime(cost_ms={1: [10.0, 20.0, 20.0, 14.0]})
    depths = play(AdaptiveDepth(), wall, rounds=300).depths
    assert np.bincount(depths[100:]).argmax() == 3


def test_a_dip_between_two_timed_depths_is_found_in_time() -> None:
    hidden = regime(
        acceptance=[0.39, 0.34, 0.27, 0.29, 0.27],
        cost_ms={1: [10.0, 13.9, 19.0, 10.3, 14.5, 10.4]},
        draft_ms=0.5,
    )
    depths = play(AdaptiveDepth(), hidden, rounds=3000).depths
    assert np.bincount(depths[2000:]).argmax() == 3


def test_a_dead_head_is_given_up_and_asked_again_now_and_then() -> None:
    dead = regime(acceptance=[0.0, 0.0, 0.0])
    depths = play(AdaptiveDepth(), dead, rounds=2000).depths
    assert np.mean(depths[200:] > 0) < 0.05
    assert np.any(depths[1000:] > 0)


def test_a_throttled_machine_is_believed_within_a_few_dozen_rounds() -> None:
    policy = AdaptiveDepth()
    driver = Driver(policy, [10.0, 10.5, 11.0, 11.5])
    driver.run(300)
    driver.costs = [ms * 1.6 for ms in driver.costs]
    driver.run(24)
    found = policy.explain()["cost_ms"]["1/1"]
    assert found["3"] == pytest.approx(18.4, rel=0.05)
    assert found["0"] == pytest.approx(16.0, rel=0.1)


def test_a_depth_whose_route_changes_is_priced_anew() -> None:
    policy = AdaptiveDepth()
    driver = Driver(policy, [10.0, 30.0, 30.0, 30.0])
    driver.run(100)
    kind = "eager"
    driver.costs = [10.0, 11.0, 12.0, 13.0]
    depths = []
    kind = "compiled"
    for _ in range(200):
        asked = Batch([3], [100], [True], lambda k: Route(kind if k else "eager"))  # type: ignore[arg-type]
        depth = policy.propose(asked)
        route = Route("compiled" if depth else "eager")
        round = a_round(driver.index, slot(depth, depth), ms=driver.costs[depth], route=route)
        round.decision = policy.decision()
        policy.observe(round)
        driver.index += 1
        depths.append(depth)
    assert depths[-1] == 3


def test_costs_of_a_batch_with_a_parked_sequence_are_kept_apart() -> None:
    policy = AdaptiveDepth()
    for index in range(20):
        depth = policy.propose(batch(3, 0))
        policy.observe(a_round(index, slot(depth, depth), slot(0, 0, id=1), ms=10.0 + depth))
    assert list(policy.explain()["cost_ms"]) == ["2/1"]
    assert len(policy.explain()["cost_ms"]["2/1"]) >= 2


def test_acceptance_is_kept_apart_for_greedy_and_sampled_text() -> None:
    policy = AdaptiveDepth()
    for index in range(30):
        depth = policy.propose(batch(3, greedy=index < 15))
        accepted = depth if index < 15 else 0
        policy.observe(a_round(index, slot(depth, accepted), ms=10.0))
    found = policy.explain()["acceptance"]
    assert found["greedy"]["rates"][0] > 0.8
    assert found["sampled"]["rates"][0] < 0.5


# -- configured prior ------------------------------------------------------------------------------


def test_without_cost_feedback_depths_are_priced_by_the_configured_costs() -> None:
    policy = AdaptiveDepth(prior_costs=[1.0, 9.0, 9.0, 1.1], cost_feedback=False)
    driver = Driver(policy, [10.0, 10.0, 10.0, 99.0])
    rounds = driver.run(60)
    assert rounds[-1].depth == 3
    assert rounds[-1].decision is not None
    assert rounds[-1].decision.excluded == "fixed"


@pytest.mark.parametrize(
    "costs", [[math.nan, 1.0], [0.0, 1.0], [-1.0, 2.0], [1.0, math.inf], [1.0], []]
)
def test_configured_costs_that_are_none_are_refused(costs: list[float]) -> None:
    with pytest.raises(PolicyError, match="cost"):
        AdaptiveDepth(prior_costs=costs, cost_feedback=False)


def test_drafts_that_fell_by_bad_luck_do_not_park_a_policy_for_long() -> None:
    """Nine rounds without an accepted draft raise an alarm where nothing changed; drafting pays by 8 %."""
    lucky = [0.63, 0.5]
    scenario = regime(
        acceptance=lucky,
        cost_ms={1: [10.0, 14.9, 19.0]},
        noise=0.02,
        transition=1.15,
        stall=0.01,
        changes=[Change(at=600, acceptance=[0.0, 0.0]), Change(at=609, acceptance=lucky)],
    )
    parked = 0
    for seed in range(16):
        depths = play(AdaptiveDepth(cuts=False), scenario, rounds=2500, seed=seed).depths
        parked += int((depths[612:] == 0).sum())
    # Where an alarm is simply believed, a third of the runs is parked until its end: 9,000.
    assert parked < 4500


# -- state -----------------------------------------------------------------------------------------

SCENARIOS = st.builds(
    lambda a, c: regime(acceptance=a, cost_ms={1: c}, spread=0.5),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5),
    st.lists(st.floats(1.0, 50.0), min_size=2, max_size=6),
)


@given(SCENARIOS, st.integers(0, 40), st.sampled_from(["adaptive", "ollama"]))
@settings(max_examples=30, deadline=None)
def test_a_state_survives_json_and_restores_to_the_same_belief(
    scenario: Scenario, rounds: int, name: str
) -> None:
    policy = make_policy(name)
    if rounds:
        play(policy, scenario, rounds=rounds)
    state = policy.state()
    other = make_policy(name)
    other.restore(json.loads(json.dumps(state)))
    assert _close(other.state(), state)
    if rounds:
        play(other, scenario, rounds=20)


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_close(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-9)))


def test_a_restored_policy_starts_at_the_scheduled_depth() -> None:
    first = AdaptiveDepth()
    play(first, regime(), rounds=500)
    second = AdaptiveDepth()
    second.restore(first.state())
    depths = play(second, regime(), rounds=10).depths
    assert list(depths[:3]) == [first.selected] * 3


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from(["adaptive", "ollama"]), st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_state_is_refused_and_changes_nothing(name: str, data: st.DataObject) -> None:
    policy = make_policy(name)
    play(policy, regime(), rounds=40)
    state = policy.state()
    before = json.dumps(state)
    key = data.draw(st.sampled_from(sorted(state)))
    value = data.draw(JSON)
    try:
        policy.restore({**state, key: value})
    except PolicyError:
        assert json.dumps(policy.state()) == before
    else:
        play(policy, regime(), rounds=10)


# -- making ----------------------------------------------------------------------------------------


def test_policies_are_made_by_name() -> None:
    assert isinstance(make_policy(), AdaptiveDepth)
    assert isinstance(make_policy("ollama"), OllamaDepth)
    fixed = make_policy("fixed", depth=2)
    assert isinstance(fixed, FixedDepth)
    assert isinstance(make_policy("mtpx.policy.ollama:OllamaDepth"), OllamaDepth)


@pytest.mark.parametrize(
    ("name", "depth", "says"),
    [
        ("nothing", None, "there is no policy"),
        ("fixed", None, "needs a depth"),
        ("ollama", 3, "depth 3 is a fixed depth"),
        ("no.such.module:Class", None, "ModuleNotFoundError"),
        ("math:nothing", None, "AttributeError"),
        ("mtpx.policy.fixed:FixedDepth", None, "TypeError"),
        ("builtins:dict", None, "lacks"),
        (":", None, "ValueError"),
    ],
)
def test_a_policy_that_is_none_is_refused(name: str, depth: int | None, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        make_policy(name, depth=depth)


class Raising(FixedDepth):
    name = "raising"

    def propose(self, batch: Batch) -> int:
        raise ZeroDivisionError("division by zero")


class Nonsense(FixedDepth):
    name = "nonsense"

    def propose(self, batch: Batch) -> int:
        return "three"  # type: ignore[return-value]


class Greedy(FixedDepth):
    name = "greedy"
    wants_confidence = True

    def verify(self, confidence: Any) -> list[int]:
        return [99]


@pytest.mark.parametrize("make", [Raising, Nonsense, Greedy])
def test_a_users_policy_that_raises_or_answers_nonsense_is_named(make: Any) -> None:
    with pytest.raises(PolicyError, match=make.name):
        play(make(1), regime(), rounds=5)
