"""Scenarios, the light simulation and the bars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from trace_makers import a_round, run_record, slot, written

from mtpx.decode import Request, decode
from mtpx.errors import MtpxError, PolicyError
from mtpx.policy import DepthPolicy, FixedDepth
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.ollama import OllamaDepth
from mtpx.sampling import Sampling
from mtpx.simulate import Change, SimulatedEngine
from mtpx.simulate.drawn import drawn
from mtpx.simulate.light import play
from mtpx.simulate.recorded import recorded
from mtpx.simulate.scenario import Scenario, load_scenarios, reference, shipped
from mtpx.simulate.score import score
from mtpx_cli.policy import policy as command

LUCK = 0.008
"""What two seeds instead of five may be off: two standard errors of a run of 4,000 rounds."""

SHIPPED = shipped()


def named(name: str) -> Scenario:
    return next(s for s in SHIPPED if s.name == name)


@pytest.mark.parametrize("scenario", SHIPPED, ids=lambda s: s.name)
def test_the_adaptive_policy_holds_its_bar(scenario: Scenario) -> None:
    got = score(AdaptiveDepth, scenario, seeds=2)
    bar = float(got.bar.split()[1])
    share = got.plain if got.bar.endswith("plain") else got.static
    assert share >= bar - LUCK


@pytest.mark.parametrize(
    "name", ["wall before depth 7 of eight", "hardly worth it", "prompts of 200 rounds"]
)
def test_the_adaptive_policy_beats_the_public_controller(name: str) -> None:
    ours, theirs = (score(p, named(name), seeds=2).static for p in (AdaptiveDepth, OllamaDepth))
    assert ours > theirs + LUCK


@pytest.mark.parametrize("name", ["flat, good head", "GB10, width 4", "wall before depth 3"])
def test_the_first_200_rounds_from_cold_lose_little(name: str) -> None:
    assert score(AdaptiveDepth, named(name), rounds=400, seeds=5).first >= 0.93


def test_every_kind_of_regime_is_shipped_and_every_name_is_its_own() -> None:
    assert {s.kind for s in SHIPPED} == {"stationary", "wall", "dead", "moving"}
    assert len({s.name for s in SHIPPED}) == len(SHIPPED)


def test_the_published_table_is_best_at_the_published_depths() -> None:
    best = [reference(named(f"GB10, width {w}"), 10).best_depth for w in (1, 4, 8)]
    assert best == [3, 1, 1]


def test_expected_rates_count_stalls_and_changes() -> None:
    scenario = Scenario(
        acceptance=[0.5],
        cost_ms={1: [10.0, 15.0]},
        draft_ms=0.0,
        stall=0.1,
        stall_factor=(3.0, 5.0),
        changes=[Change(at=50, cost_factor=3.0)],
    )
    found = reference(scenario, 100)
    # A tenth of the rounds takes four times as long, half of them three times.
    assert found.plain == pytest.approx(1 / (10.0 * 1.3 * 2.0))
    assert found.static[1] == pytest.approx(1.5 / (15.0 * 1.3 * 2.0))
    assert found.oracle >= found.best


def test_a_growing_context_is_judged_at_equal_tokens() -> None:
    scenario = Scenario(acceptance=[1.0], cost_ms={1: [10.0, 10.0]}, draft_ms=0.0, context_ms=10.0)
    found = reference(scenario, 1000, tokens=1000.0)
    assert found.static[1] == pytest.approx(2.0 * found.plain, rel=0.01)


@pytest.mark.parametrize("make", [lambda: FixedDepth(2), AdaptiveDepth, OllamaDepth])
def test_the_light_simulation_agrees_with_the_real_loop(make: Any) -> None:
    scenario = Scenario(
        acceptance=[0.8, 0.7, 0.6],
        cost_ms={1: [10.0, 12.0, 14.0, 16.0]},
        draft_ms=0.3,
        noise=0.02,
        transition=1.15,
        stall=0.01,
    )
    rounds = 1200
    light = [play(make(), scenario, rounds=rounds, seed=seed) for seed in range(4)]
    real = [_real(make(), scenario, rounds, seed) for seed in range(2)]
    assert np.mean([r for r, _ in real]) == pytest.approx(
        np.mean([p.rate for p in light]), rel=0.03
    )
    assert np.mean([d for _, d in real]) == pytest.approx(
        np.mean([p.depths.mean() for p in light]), abs=0.5
    )


def _real(policy: DepthPolicy, scenario: Scenario, rounds: int, seed: int) -> tuple[float, float]:
    engine = SimulatedEngine(scenario, seed=seed, vocab=8)
    slot = engine.open([1, 2, 3], Sampling(), seed=seed)
    engine.prefill(slot, 8)
    seen = []
    for round in decode(engine, policy, [Request(0, slot, Sampling(), 10**6)], clock=engine.clock):
        seen.append(round)
        if len(seen) == rounds:
            break
    rate = sum(r.committed for r in seen) / sum(r.round_ms for r in seen)
    return rate, float(np.mean([r.depth for r in seen]))


def test_the_same_seed_plays_the_same_and_another_does_not() -> None:
    runs = [play(AdaptiveDepth(), SHIPPED[0], rounds=100, seed=seed).ms.sum() for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


# -- files -----------------------------------------------------------------------------------------


def test_a_file_holds_one_regime_or_several(tmp_path: Path) -> None:
    one, many = tmp_path / "one.toml", tmp_path / "many.toml"
    one.write_text('name = "a"\nacceptance = [0.5]\ncost_ms = { 1 = [10, 11] }\n')
    many.write_text('[[regime]]\nname = "a"\n[[regime]]\nname = "b"\nwidth = 4\n')
    assert [s.name for s in load_scenarios(one)] == ["a"]
    assert [(s.name, s.width) for s in load_scenarios(many)] == [("a", 1), ("b", 4)]


@pytest.mark.parametrize(
    "text",
    [
        "regime = []",
        "regime = 3",
        "[[regime]]\nnois = 1",
        "cost_ms = { 1 = [nan, 1.0] }",
        "cost_ms = { 1 = [0.0, 1.0] }",
        "cost_ms = { 1 = [-1.0] }",
        "cost_ms = { 1 = [] }",
        "width = 0",
        "kind = 'odd'",
        "acceptance = [1.5]",
        "= x",
        "\x00",
    ],
)
def test_a_file_without_a_usable_regime_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=r"bad\.toml"):
        load_scenarios(path)


def test_a_recorded_run_becomes_a_regime_with_its_own_costs(tmp_path: Path) -> None:
    rounds = [a_round(i, slot(2, 2 if i < 64 else 0), ms=14.0) for i in range(128)]
    rounds += [a_round(128 + i, slot(0, 0), ms=10.0) for i in range(10)]
    path = written(tmp_path / "run.jsonl", [run_record(head_depth_limit=3), *rounds])
    found = recorded(path)
    assert "estimate" in found.name
    assert found.depth_limit == 3
    assert found.forward_ms(1, 0) == 10.0
    assert found.forward_ms(1, 1) == pytest.approx(12.0)
    assert found.rates(0)[0] > found.rates(70)[0]


@pytest.mark.parametrize("depths", [[], [1] * 9], ids=["no rounds", "one depth"])
def test_a_recorded_run_that_prices_nothing_is_refused(tmp_path: Path, depths: list[int]) -> None:
    rounds = [a_round(i, slot(d, 0)) for i, d in enumerate(depths)]
    path = written(tmp_path / "run.jsonl", [run_record(head_depth_limit=1), *rounds])
    with pytest.raises(PolicyError, match="record a run"):
        recorded(path)


# -- the command -----------------------------------------------------------------------------------


def test_compare_prints_a_table_and_a_picture() -> None:
    shown = CliRunner().invoke(command, ["compare", "--only", "wall before depth 3", "--seeds", "1",
                                         "--rounds", "300"])  # fmt: skip
    assert shown.exit_code == 0
    assert "ollama" in shown.output
    assert "█" in shown.output
    assert "Bars of the adaptive policy" in shown.output


def test_compare_takes_a_trace_and_a_users_policy_as_json(tmp_path: Path) -> None:
    rounds = [a_round(i, slot(i // 9 % 3, i // 9 % 3), ms=10.0 + i // 9 % 3) for i in range(99)]
    path = written(tmp_path / "run.jsonl", [run_record(head_depth_limit=2), *rounds])
    shown = CliRunner().invoke(
        command,
        ["compare", "--trace", str(path), "--policy", "mtpx.policy.ollama:OllamaDepth",
         "--policy", "fixed:1", "--seeds", "1", "--rounds", "100", "--json"],
    )  # fmt: skip
    found = json.loads(shown.output)
    assert [one["policy"] for one in found] == ["ollama", "fixed"]
    assert found[0]["scenario"].endswith("(estimate)")


@pytest.mark.parametrize(
    "arguments",
    [["--policy", "nothing"], ["--regimes", "/nowhere.toml"], ["--only", "no such regime"]],
)
def test_compare_refuses_what_is_not_there(arguments: list[str]) -> None:
    shown = CliRunner().invoke(command, ["compare", *arguments])
    assert isinstance(shown.exception, MtpxError)


def test_random_regimes_are_the_same_for_the_same_seed_and_can_be_played() -> None:
    first, again = list(drawn(12, seed=3)), list(drawn(12, seed=3))
    assert first == again
    assert first != list(drawn(12, seed=4))
    assert {s.kind for s in drawn(60)} == {"stationary", "wall", "dead", "moving"}
    for scenario in first:
        assert play(AdaptiveDepth(), scenario, rounds=40).tokens.sum() >= 40


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_count_of_random_regimes_that_is_none_is_refused(count: int) -> None:
    with pytest.raises(PolicyError, match="1 to 10000 regimes"):
        list(drawn(count))


def test_where_nobody_chose_the_regime_the_policy_is_near_the_best_depth_all_the_same() -> None:
    shares = [score(AdaptiveDepth, s, rounds=1500, seeds=2).static for s in drawn(8)]
    assert min(shares) > 0.95
    assert float(np.mean(shares)) > 0.975
