"""The simulated backend: costs, acceptance, the virtual clock, what it refuses."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpx.backend import EngineOptions
from mtpx.decode import Request, decode
from mtpx.errors import BackendError, MtpxError, PolicyError, PromptError
from mtpx.policy import FixedDepth
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.simulate import Change, Language, Regime, SimulatedEngine, load_regime, simulated_model
from mtpx.simulate.head import draft_distribution
from mtpx.simulate.language import mix

FLAT = {1: [10.0, 11.0, 12.0, 13.0]}


def decode_rounds(
    engine: SimulatedEngine, depth: int, budget: int, *, temperature: float = 0.0
) -> list[Round]:
    sampling = Sampling(temperature=temperature)
    slot = engine.open([1, 2, 3], sampling, seed=1)
    engine.prefill(slot, 8)
    request = Request(0, slot, sampling, budget)
    rounds = list(decode(engine, FixedDepth(depth), [request], clock=engine.clock))
    slot.close()
    return rounds


def ready(engine: SimulatedEngine, **kwargs: Any) -> Any:
    slot = engine.open([1, 2, 3], Sampling(), seed=1, **kwargs)
    engine.prefill(slot, 8)
    return slot


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spread", [0.0, 0.9])
def test_drafts_stand_as_often_as_the_regime_says_at_every_position(
    temperature: float, spread: float
) -> None:
    rates = [0.8, 0.5, 0.7]
    engine = SimulatedEngine(Regime(acceptance=rates, spread=spread))
    rounds = decode_rounds(engine, 3, 2000, temperature=temperature)
    reached, stood = np.zeros(3), np.zeros(3)
    for round in rounds:
        slot = round.slots[0]
        reached[: slot.judged] += 1
        stood[: slot.accepted] += 1
    # Five standard deviations of a binomial: one false alarm in a million.
    margin = 5 * np.sqrt(np.array(rates) * (1 - np.array(rates)) / reached)
    assert np.all(np.abs(stood / reached - rates) < margin)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_confidence_is_the_probability_that_a_draft_stands(temperature: float) -> None:
    engine = SimulatedEngine(Regime(acceptance=[0.5], spread=1.0))
    rounds = decode_rounds(engine, 1, 3000, temperature=temperature)
    slots = [r.slots[0] for r in rounds if r.depth]
    sure = np.exp([s.confidences[0] for s in slots if s.confidences])
    stood = np.array([s.accepted for s in slots])
    for low in (0.1, 0.3, 0.5, 0.7, 0.9):
        inside = np.abs(sure - low) < 0.1
        error = stood[inside].mean() - sure[inside].mean()
        assert abs(error) < 5 * 0.5 / np.sqrt(inside.sum())


@given(
    weights=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8).filter(lambda w: sum(w) > 0.1),
    rate=st.floats(0.0, 1.0),
)
def test_a_draft_distribution_overlaps_the_target_as_asked(
    weights: list[float], rate: float
) -> None:
    p = np.array(weights) / sum(weights)
    q = draft_distribution(p, rate)
    assert q.sum() == pytest.approx(1.0)
    assert q.min() >= 0.0
    assert np.minimum(p, q).sum() == pytest.approx(max(rate, float(p.min())), abs=1e-9)


def test_the_language_depends_on_the_whole_prefix_and_on_its_seed() -> None:
    language = Language(vocab=16)
    long, other = language.start, mix(language.start, 1)
    for token in range(100):
        long, other = mix(long, token % 7), mix(other, token % 7)
    assert not np.array_equal(language.logits(long), language.logits(other))
    assert Language(seed=1).start != Language(seed=2).start


def test_the_clock_shows_the_sum_of_what_prefill_drafts_and_forwards_cost() -> None:
    engine = SimulatedEngine(Regime(cost_ms=FLAT, draft_ms=0.5, prefill_ms=0.1))
    slot = ready(engine)
    assert engine.clock() == 200_000
    drafts = engine.propose([slot], [3])
    assert engine.clock() == 1_700_000
    engine.verify([slot], drafts, [2])
    assert engine.clock() == 13_700_000
    engine.plain([slot])
    assert engine.clock.now() == 23_700_000


def test_context_makes_forwards_dearer() -> None:
    regime = Regime(cost_ms=FLAT, context_ms=2.0)
    assert regime.forward_ms(1, 0, context=500) == 11.0


@pytest.mark.parametrize(
    ("width", "depth", "ms"),
    [
        (1, 0, 10.0),
        (1, 0.5, 11.0),
        (1, 3, 16.0),
        (2, 0, 15.0),
        (3, 1, 24.0),
        (9, 1, 24.0),
    ],
)
def test_costs_between_and_beyond_the_cells(width: int, depth: float, ms: float) -> None:
    regime = Regime(cost_ms={1: [10.0, 12.0], 3: [20.0, 24.0]})
    assert regime.forward_ms(width, depth) == pytest.approx(ms)


def test_a_shorter_last_step_does_not_extrapolate_downwards() -> None:
    assert Regime(cost_ms={1: [10.0, 20.0, 14.0]}).forward_ms(1, 4) == 14.0


def test_ragged_rows_cost_their_mean_depth() -> None:
    engine = SimulatedEngine(
        Regime(cost_ms={2: [10.0, 12.0, 14.0]}), options=EngineOptions(max_width=2)
    )
    slots = [ready(engine), ready(engine)]
    drafts = engine.propose(slots, [2, 0])
    outcome = engine.verify(slots, drafts, [2, 0])[0]
    assert outcome.forward.verify_ms == 12.0


def test_changes_move_cost_and_acceptance_with_the_round() -> None:
    regime = Regime(
        acceptance=[0.8],
        cost_ms={1: [10.0]},
        changes=[Change(at=100, cost_factor=1.6), Change(at=50, over=100, acceptance=[0.2])],
    )
    assert [regime.forward_ms(1, 0, round=r) for r in (99, 100)] == [10.0, 16.0]
    rates = [regime.rates(r)[0] for r in (50, 100, 150, 999)]
    assert rates == pytest.approx([0.8, 0.5, 0.2, 0.2])


def test_the_engine_lives_through_a_change_at_its_round() -> None:
    engine = SimulatedEngine(Regime(cost_ms=FLAT, changes=[Change(at=3, cost_factor=2.0)]))
    times = [r.round_ms for r in decode_rounds(engine, 0, 5)]
    assert times == [10.0, 10.0, 10.0, 20.0, 20.0]


def test_a_transition_makes_the_first_round_of_another_shape_dearer() -> None:
    engine = SimulatedEngine(Regime(cost_ms=FLAT, draft_ms=0.0, transition=1.5))
    slot = ready(engine)
    times = []
    for depth in (0, 0, 1, 1, 0):
        drafts = engine.propose([slot], [depth])
        times.append(engine.verify([slot], drafts, [depth])[0].forward.verify_ms)
    assert times == [10.0, 10.0, 16.5, 11.0, 15.0]


def test_noise_has_the_deviation_asked_for_and_no_bias() -> None:
    engine = SimulatedEngine(Regime(cost_ms=FLAT, noise=0.02))
    times = np.array([r.round_ms for r in decode_rounds(engine, 0, 2000)])
    assert times.std() / 10.0 == pytest.approx(0.02, rel=0.1)
    assert times.mean() == pytest.approx(10.0, abs=5 * 0.2 / np.sqrt(2000))


def test_stalls_come_as_often_and_as_long_as_asked() -> None:
    engine = SimulatedEngine(Regime(cost_ms=FLAT, stall=0.1, stall_factor=(2.0, 6.0)))
    times = np.array([r.round_ms for r in decode_rounds(engine, 0, 2000)])
    stalled = times[times > 10.5]
    assert abs(stalled.size / 2000 - 0.1) < 5 * np.sqrt(0.1 * 0.9 / 2000)
    assert stalled.min() >= 20.0
    assert stalled.max() <= 60.0


def test_the_same_seed_has_the_same_noise_and_another_seed_another() -> None:
    def times(seed: int) -> list[float]:
        engine = SimulatedEngine(Regime(noise=0.1), seed=seed)
        return [r.round_ms for r in decode_rounds(engine, 1, 20)]

    assert times(1) == times(1)
    assert times(1) != times(2)


def test_a_shape_runs_eager_until_it_was_used_often_enough_to_compile() -> None:
    regime = Regime(cost_ms=FLAT, eager_factor=2.0, compile_after=2, compile_ms=100.0)
    engine = SimulatedEngine(regime)
    rounds = decode_rounds(engine, 0, 4)
    assert [r.route.kind for r in rounds] == ["eager", "eager", "compiled", "compiled"]
    assert [r.compiled_now for r in rounds] == [False, False, True, False]
    assert [r.round_ms for r in rounds] == [20.0, 20.0, 110.0, 10.0]


def test_warming_compiles_outside_any_round() -> None:
    engine = SimulatedEngine(Regime(compile_after=5, compile_ms=100.0))
    assert engine.route([3]).kind == "eager"
    engine.warm([[3], [3]])
    assert engine.route([3]).kind == "compiled"
    assert engine.clock() == 100_000_000
    assert engine.route([4]).kind == "eager"


def test_times_apart_are_absent_where_the_machine_does_not_tell_them() -> None:
    engine = SimulatedEngine(Regime(), timed_apart=False)
    round = decode_rounds(engine, 2, 6)[0]
    assert round.draft_ms is None
    assert round.verify_ms is None
    assert round.round_ms > 0.0


def test_expected_tokens_and_rates_are_those_of_a_long_run() -> None:
    regime = Regime(acceptance=[0.8, 0.7, 0.6], cost_ms=FLAT, draft_ms=0.5)
    for depth in range(4):
        engine = SimulatedEngine(regime)
        rounds = decode_rounds(engine, depth, 2000)
        rate = sum(r.committed for r in rounds) / sum(r.round_ms for r in rounds)
        assert rate == pytest.approx(regime.expected_rate(depth), rel=0.05)


def test_the_best_depth_sees_past_a_wall() -> None:
    wall = Regime(acceptance=[0.8, 0.75, 0.7], cost_ms={1: [10.0, 20.0, 20.0, 14.0]}, draft_ms=0.2)
    assert wall.best_depth() == 3
    dead = Regime(acceptance=[0.0, 0.0], cost_ms={1: [10.0, 11.0]})
    assert dead.best_depth() == 0


def test_a_recurrent_engine_rewinds_to_its_checkpoints_only() -> None:
    engine = SimulatedEngine(checkpoint=4)
    assert engine.info.recurrent
    slot = ready(engine)
    for _ in range(9):
        engine.plain([slot])
    assert slot.rewind(11) == 9
    assert slot.rewind(9) == 9
    assert slot.rewind(3) == 1


def test_a_regime_is_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "wall.toml"
    path.write_text(
        'name = "wall"\nacceptance = [0.8, 0.7]\nnoise = 0.02\n'
        "[cost_ms]\n1 = [10.0, 20.0, 14]\n8 = [20.0, 30.0]\n"
        "[[changes]]\nat = 100\ncost_factor = 1.6\n"
    )
    regime = load_regime(path)
    assert regime.forward_ms(8, 1) == 30.0
    assert regime.changes == [Change(at=100, cost_factor=1.6)]
    assert (regime.name, regime.noise, regime.depth_limit) == ("wall", 0.02, 2)


@pytest.mark.parametrize(
    "text",
    [
        "nois = 0.02",
        "noise = 'loud'",
        "acceptance = [1.2]",
        "[cost_ms]\n1 = []",
        "[cost_ms]\n1 = [0.0]",
        "[cost_ms]\n0 = [1.0]",
        "cost_ms = {}",
        "stall = 2.0",
        "spread = -1.0",
        "noise = -0.1",
        "transition = 0.0",
        "[[changes]]\nat = 1\nacceptance = [0.5]",
        "= nothing",
    ],
)
def test_a_regime_that_is_none_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=r"bad\.toml"):
        load_regime(path)


def test_a_regime_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot read the regime"):
        load_regime(tmp_path / "none.toml")


@pytest.mark.parametrize("field", ["noise", "stall", "transition", "draft_ms"])
def test_a_regime_refuses_nan(field: str) -> None:
    with pytest.raises(PolicyError, match="not usable"):
        Regime(**{field: float("nan")})


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    engine = SimulatedEngine(options=EngineOptions(context=4))
    for prompt in ([], [1] * 5, [99], [-1]):
        with pytest.raises(PromptError):
            engine.open(prompt, Sampling(), 0)


def test_a_full_context_is_refused_and_a_round_that_fits_it_exactly_is_not() -> None:
    engine = SimulatedEngine(
        Regime(acceptance=[1.0], cost_ms=FLAT), options=EngineOptions(context=5)
    )
    slot = ready(engine)
    drafts = engine.propose([slot], [1])
    assert len(engine.verify([slot], drafts, [1])[0].committed) == 2
    engine.plain([slot])
    with pytest.raises(PromptError, match="context"):
        engine.plain([slot])


def test_misuse_is_refused_with_a_sentence() -> None:
    engine = SimulatedEngine(Regime(acceptance=[0.9, 0.9]), options=EngineOptions(max_width=3))
    slot, other = ready(engine), ready(engine)
    stale = engine.propose([slot], [1])
    engine.plain([slot])
    unfilled = engine.open([1, 2, 3], Sampling(), 0)
    attempts = [
        lambda: engine.propose([slot], [3]),
        lambda: engine.verify([slot], stale, [1]),
        lambda: engine.verify([other], engine.propose([other], [1]), [2]),
        lambda: engine.verify([other], engine.propose([other], [1]), []),
        lambda: engine.plain([unfilled]),
        lambda: engine.prefill(unfilled, 0),
        lambda: slot.rewind(0),
        lambda: SimulatedEngine().plain([slot]),
        lambda: engine.open([1], Sampling(), 0),
        lambda: engine.open([1], Sampling(), 0, reuse="snapshot"),
        lambda: SimulatedEngine(checkpoint=0),
    ]
    for attempt in attempts:
        with pytest.raises(MtpxError):
            attempt()


def test_a_closed_engine_holds_no_slot() -> None:
    engine = SimulatedEngine()
    slot = ready(engine)
    engine.close()
    with pytest.raises(BackendError, match="closed"):
        engine.plain([slot])
    assert ready(engine)


def test_a_closed_engine_that_reopens_is_not_disturbed_by_closing_an_old_slot() -> None:
    engine = SimulatedEngine()
    old = ready(engine)
    old.close()
    new = ready(engine)
    old.close()
    assert engine.plain([new])


@given(text=st.text(max_size=30))
@settings(max_examples=30)
def test_a_simulated_model_encodes_any_text_without_its_end_id(text: str) -> None:
    model = simulated_model()
    ids = model.encode(text)
    assert ids == model.encode(text)
    assert len(ids) == max(1, len(text))
    assert not model.end_ids & set(ids)
    model.engine.open(ids, Sampling(), 0, end_ids=model.end_ids)


def test_a_simulated_model_ends_now_and_then() -> None:
    model = simulated_model(end_bias=0.0)
    slot = model.engine.open(
        model.encode("hello"), Sampling(temperature=1.0), 0, end_ids=model.end_ids
    )
    model.engine.prefill(slot, 99)
    request = Request(0, slot, Sampling(temperature=1.0), 2000)
    for _ in decode(model.engine, FixedDepth(2), [request], clock=model.clock):
        pass
    assert request.stop == "end"
    assert model.pack.name == "simulated:simulated"


def test_the_overhead_command_prints_a_line_a_depth(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mtpx.simulate", "--overhead", "--rounds", "5"])
    runpy.run_module("mtpx.simulate", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "depth 0",
        "depth 1",
        "depth 3",
        "adaptive policy, a head of four",
        "adaptive policy, a head of eight",
        "adaptive policy, with cuts",
        "adaptive policy, with chains that stop",
    ]
    assert all("µs a round" in line for line in lines)
