"""Benches on the simulated engine's virtual clock."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
from simulated_bench import COSTS, NOISY, PAYS, Model, model_of

import mtpx.bench.runs
from mtpx.bench.blocks import blocks
from mtpx.bench.design import NULL_ARM, PLAIN, Design, design, mtp_arm, policy_arm
from mtpx.bench.policies import policy_named
from mtpx.bench.records import BenchOptions
from mtpx.bench.result import BenchResult, Progress
from mtpx.bench.run import run_bench
from mtpx.bench.suites import BenchPrompt
from mtpx.bench.timed import Task, first_difference, logit_gap, timed_run
from mtpx.bench.verdict import NO_PLAIN, verdicts
from mtpx.errors import BenchError, NonFiniteLogits
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.simulate import Regime
from mtpx.trace.reader import read
from mtpx.trace.schema import EndRecord, Record, RequestRecord, RunRecord
from mtpx.trace.writer import TraceWriter

PROMPTS = [
    BenchPrompt(f"p{i}", suite, prompt=f"{suite} prompt number {i}")
    for suite in ("chat", "code")
    for i in range(6)
]


def bench(
    model: Model, plan: Design, options: BenchOptions | None = None
) -> tuple[BenchResult, list[Record]]:
    records: list[Record] = []
    result = run_bench(
        model, plan, PROMPTS, options, write=records.append, clock=model.engine.clock
    )
    return result, records


def depth_plan(depth: int = 1, **kwargs: Any) -> Design:
    return design(PROMPTS, [mtp_arm(depth)], **kwargs)


def test_a_head_that_pays_is_found_to_pay() -> None:
    result, _ = bench(model_of(PAYS), depth_plan())
    assert result.verdicts[0].verdict == "pays"


def test_the_ratio_is_that_of_the_machine() -> None:
    result, _ = bench(model_of(PAYS), depth_plan(), BenchOptions(max_tokens=256))
    expected = PAYS.expected_rate(1) / PAYS.expected_rate(0)
    assert result.verdicts[0].ratio == pytest.approx(expected, rel=0.02)


def test_a_head_that_costs_more_than_it_brings_is_found_not_to_pay() -> None:
    result, _ = bench(model_of(COSTS), depth_plan())
    assert result.verdicts[0].verdict == "does not pay"


def test_plain_against_plain_on_a_quiet_machine_contains_one() -> None:
    result, _ = bench(model_of(PAYS), design(PROMPTS, [NULL_ARM]))
    control = result.verdicts[0].null_control
    assert control is not None
    assert control.quiet


def test_plain_against_plain_on_a_noisy_machine_is_called_too_noisy() -> None:
    result, _ = bench(model_of(NOISY), design(PROMPTS, [NULL_ARM]), BenchOptions(guard=1e9))
    assert "too noisy" in result.verdicts[0].reason


def test_a_failed_null_control_takes_the_other_arms_verdict_away() -> None:
    plan = design(PROMPTS, [NULL_ARM, mtp_arm(1)])
    result, _ = bench(model_of(NOISY), plan, BenchOptions(guard=1e9))
    assert {v.arm: v.verdict for v in result.verdicts}["depth 1"] == "none"


def test_two_depths_get_a_verdict_each() -> None:
    result, _ = bench(model_of(PAYS), design(PROMPTS, [mtp_arm(1), mtp_arm(3)]))
    assert sorted(v.arm for v in result.verdicts) == ["depth 1", "depth 3"]


def test_without_a_baseline_there_is_no_verdict() -> None:
    result, _ = bench(model_of(PAYS), depth_plan(baseline=False))
    assert [(v.verdict, v.reason) for v in result.verdicts] == [("none", NO_PLAIN)]


def test_without_a_baseline_the_arm_is_still_timed() -> None:
    result, _ = bench(model_of(PAYS), depth_plan(baseline=False))
    assert result.rates[0].tokens_per_s == pytest.approx(PAYS.expected_rate(1) * 1e3, rel=0.05)


def test_the_trace_read_back_gives_the_same_verdicts(tmp_path: Any) -> None:
    model = model_of(PAYS)
    path = tmp_path / "bench.jsonl"
    with TraceWriter(path) as writer:
        result = run_bench(
            model, depth_plan(), PROMPTS, write=writer.write, clock=model.engine.clock
        )
    assert verdicts(blocks(read(path))) == result.verdicts


def test_equal_texts_at_temperature_zero_are_counted_as_equal() -> None:
    result, _ = bench(model_of(PAYS), depth_plan())
    assert (result.verdicts[0].texts_equal, result.verdicts[0].texts_compared) == (12, 12)


def test_a_plain_run_has_the_head_off(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(PAYS)
    opened: list[bool] = []
    real = model.engine.open

    def recording(*args: Any, **kwargs: Any) -> Any:
        opened.append(kwargs["head"])
        return real(*args, **kwargs)

    monkeypatch.setattr(model.engine, "open", recording)
    _, records = bench(model, depth_plan())
    requests = [r for r in records if isinstance(r, RequestRecord)]
    assert opened == [r.mode == "mtp" for r in requests]


def test_first_token_times_are_told_apart_from_the_rate() -> None:
    slow = Regime(acceptance=(0.8,), cost_ms={1: (10.0, 11.0)}, prefill_ms=50.0)
    result, _ = bench(model_of(slow), depth_plan())
    plain = next(rate for rate in result.rates if rate.arm == PLAIN)
    assert plain.tokens_per_s == pytest.approx(100.0)
    assert plain.ttft_ms is not None
    assert plain.ttft_ms > 500.0


def test_a_run_in_which_something_compiled_is_made_again() -> None:
    compiling = Regime(
        acceptance=(0.8,), cost_ms={1: (10.0, 11.0)}, compile_after=70, compile_ms=900.0
    )
    model = model_of(compiling)
    model.engine.warm = lambda shapes: None  # type: ignore[method-assign]
    _, records = bench(model, depth_plan())
    warmups = {r.id for r in records if isinstance(r, RequestRecord) and r.warmup}
    compiled = {
        slot.request for r in records if isinstance(r, Round) and r.compiled_now for slot in r.slots
    }
    assert compiled
    assert compiled <= warmups


def test_an_interrupted_bench_never_says_pays() -> None:
    model = model_of(PAYS)
    records: list[Record] = []

    def stop(progress: Progress) -> None:
        if progress.done == 40:
            raise KeyboardInterrupt

    result = run_bench(
        model, depth_plan(), PROMPTS, write=records.append, progress=stop, clock=model.engine.clock
    )
    assert result.stopped == "interrupted"
    assert result.verdicts[0].verdict == "none"
    assert result.verdicts[0].low is not None
    assert result.verdicts[0].low > 1.02


def test_a_run_stopped_by_hand_gets_an_end_record_that_says_so() -> None:
    model = model_of(PAYS)
    real, rounds = model.engine.plain, iter(range(10**9))

    def interrupted(slots: Any) -> Any:
        if next(rounds) == 400:
            raise KeyboardInterrupt
        return real(slots)

    model.engine.plain = interrupted  # type: ignore[method-assign]
    _, records = bench(model, depth_plan())
    assert isinstance(records[-1], EndRecord)
    assert records[-1].stop == "interrupt"


def test_an_error_of_the_engine_ends_the_bench_without_a_verdict() -> None:
    model = model_of(PAYS)
    real, rounds = model.engine.plain, iter(range(10**9))

    def failing(slots: Any) -> Any:
        if next(rounds) == 400:
            raise NonFiniteLogits("the target's logits are not finite")
        return real(slots)

    model.engine.plain = failing  # type: ignore[method-assign]
    result, _ = bench(model, depth_plan())
    assert result.stopped == "the target's logits are not finite"
    assert result.verdicts[0].verdict == "none"


def test_a_run_far_beyond_its_time_is_cut_and_voids_the_verdict() -> None:
    model = model_of(PAYS)
    real, rounds = model.engine.plain, iter(range(10**9))

    def stalling(slots: Any) -> Any:
        if next(rounds) == 400:
            model.engine.clock.advance(60_000.0)
        return real(slots)

    model.engine.plain = stalling  # type: ignore[method-assign]
    result, _ = bench(model, depth_plan())
    assert result.verdicts[0].void_blocks == 1
    assert result.verdicts[0].verdict == "none"
    assert "cut by the guard" in result.verdicts[0].reason


def test_the_time_left_after_the_warm_up_is_the_time_it_then_takes() -> None:
    model = model_of(PAYS)
    clock = model.engine.clock
    seen: list[tuple[Progress, float]] = []
    run_bench(
        model,
        depth_plan(),
        PROMPTS,
        progress=lambda p: seen.append((p, clock() / 1e9)),
        clock=clock,
    )
    progress, at = next((p, at) for p, at in seen if p.left_s is not None)
    assert progress.left_s == pytest.approx(clock() / 1e9 - at, rel=0.1)


def test_progress_counts_every_timed_run() -> None:
    model = model_of(PAYS)
    seen: list[Progress] = []
    run_bench(model, depth_plan(), PROMPTS, progress=seen.append, clock=model.engine.clock)
    assert [p.done for p in seen if p.left_s is not None] == list(range(48))


def test_every_slot_is_closed_when_the_bench_is_over() -> None:
    model = model_of(PAYS)
    bench(model, depth_plan())
    model.engine.open([1], Sampling(), 0)  # the only place there is


def test_the_run_record_holds_the_whole_design() -> None:
    plan = depth_plan(repeats=2, seed=5)
    _, records = bench(model_of(PAYS), plan)
    assert isinstance(records[0], RunRecord)
    assert records[0].design is not None
    assert len(records[0].design["blocks"]) == len(plan.blocks)


# -- policies ----------------------------------------------------------------------------------------


def policy_plan(name: str = "auto", **kwargs: Any) -> Design:
    return design(PROMPTS, [policy_arm(name)], **kwargs)


def test_the_adaptive_policy_is_found_to_pay_where_a_depth_does() -> None:
    result, _ = bench(model_of(PAYS), policy_plan())
    assert (result.verdicts[0].arm, result.verdicts[0].verdict) == ("auto", "pays")


NEAR_TIES = Regime(
    acceptance=(0.6, 0.55, 0.5), cost_ms={1: (10.0, 12.4, 14.6, 16.6)}, draft_ms=0.4, noise=0.02
)
"""Depths so near to one another that telling them apart takes trials for ever."""


def states_at_start(
    monkeypatch: pytest.MonkeyPatch, policy: str = "ollama", machine: Regime = PAYS, **options: Any
) -> list[dict[str, Any]]:
    """What the policy of each timed run had learned before it began."""
    found: list[dict[str, Any]] = []
    real = mtpx.bench.runs.timed_run

    def spying(engine: Any, task: Any, arm: Any, **kwargs: Any) -> Any:
        if kwargs.get("policy") is not None and kwargs.get("limit_s") is not None:
            found.append(copy.deepcopy(kwargs["policy"].state()))
        return real(engine, task, arm, **kwargs)

    monkeypatch.setattr(mtpx.bench.runs, "timed_run", spying)
    bench(model_of(machine), policy_plan(policy), BenchOptions(**options))
    return found


def test_both_runs_of_a_block_start_alike_and_the_next_block_knows_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = states_at_start(monkeypatch)
    assert len(states) == 24
    assert states[0::2] == states[1::2]
    reached = [sum(state["acceptance"]["counts"]) for state in states[0::2]]
    assert reached[0] > 0
    assert all(after > before for before, after in pairwise(reached))


def test_credit_for_trials_is_not_handed_out_anew_in_every_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = states_at_start(monkeypatch, "auto", NEAR_TIES)
    credit = [state["credit"] for state in states[0::2]]
    assert any(after < before for before, after in pairwise(credit))


def test_a_cold_bench_starts_every_run_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    states = states_at_start(monkeypatch, cold=True)
    assert all(state == policy_named("ollama").state() for state in states)


@pytest.mark.parametrize(("cold", "words"), [(True, "cold"), (False, "learned on 8 prompts")])
def test_the_trace_declares_where_a_policy_started(cold: bool, words: str) -> None:
    _, records = bench(model_of(PAYS), policy_plan("ollama"), BenchOptions(cold=cold))
    assert isinstance(records[0], RunRecord)
    assert records[0].policy_parameters["ollama"]["start"].startswith(words)


def test_what_a_policy_learned_on_is_no_part_of_the_verdict() -> None:
    _, records = bench(model_of(PAYS), policy_plan("ollama"))
    timed = [r for r in records if isinstance(r, RequestRecord) and not r.warmup]
    assert len(timed) == 48
    assert all(r.pair is not None for r in timed)


def test_a_look_that_is_not_sure_goes_on() -> None:
    even = Regime(acceptance=(0.21,), cost_ms={1: (10.0, 11.5)}, noise=0.01)
    result, records = bench(model_of(even), depth_plan(looks=2))
    assert len([r for r in records if isinstance(r, RequestRecord) and not r.warmup]) == 48
    assert result.verdicts[0].prompts == 12


# -- one run -----------------------------------------------------------------------------------------


def a_task(budget: int = 40, **kwargs: Any) -> Task:
    return Task([1, 2, 3], Sampling(), 0, budget, frozenset(), **kwargs)


def test_the_rate_leaves_the_first_round_out_at_either_end() -> None:
    sure = Regime(acceptance=(1.0, 1.0, 1.0), cost_ms={1: (10.0,) * 4}, draft_ms=0.0)
    engine = model_of(sure).engine
    run = timed_run(engine, a_task(), mtp_arm(3), request=0, clock=engine.clock)
    # Ten rounds of four tokens in 10 ms each: nine of them lie between the first and the last arrival.
    assert (run.end.first_tokens, run.end.rated_tokens) == (4, 36)
    assert run.end.rate == pytest.approx(400.0)


def test_tokens_after_an_ignored_end_stay_out_of_the_rate() -> None:
    engine = model_of(PAYS).engine
    whole = timed_run(engine, a_task(), mtp_arm(1), request=0, clock=engine.clock)
    end = whole.tokens[20]
    at = whole.tokens.index(end)
    task = Task([1, 2, 3], Sampling(), 0, 40, frozenset({end}), ignore_eos=True)
    run = timed_run(engine, task, mtp_arm(1), request=0, clock=engine.clock)
    assert run.end.tokens == 40
    assert run.end.tail_tokens == 40 - (at + 1)


def test_the_rate_up_to_an_ignored_end_is_the_rate_of_the_run_that_stops_there() -> None:
    quiet = Regime(acceptance=(0.8,), cost_ms={1: (10.0, 11.0)})
    engine = model_of(quiet).engine
    whole = timed_run(engine, a_task(), mtp_arm(1), request=0, clock=engine.clock)
    ends = frozenset({whole.tokens[20]})
    rates = []
    for ignore in (False, True):
        task = Task([1, 2, 3], Sampling(), 0, 40, ends, ignore_eos=ignore)
        rates.append(timed_run(engine, task, mtp_arm(1), request=0, clock=engine.clock).end.rate)
    assert rates[0] == pytest.approx(rates[1])


def test_texts_part_at_the_first_token_that_differs() -> None:
    assert first_difference([1, 2, 3], [1, 2, 4]) == 2
    assert first_difference([1, 2], [1, 2, 4]) == 2
    assert first_difference([1, 2], [1, 2]) is None


def test_the_gap_between_two_candidates_is_that_of_their_logits() -> None:
    engine = model_of(PAYS).engine
    task = a_task()
    run = timed_run(engine, task, mtp_arm(1), request=0, clock=engine.clock)
    slot = engine.open([*task.tokens, *run.tokens[:5]], Sampling(), 0)
    while not engine.prefill(slot, 64):
        pass
    logits = engine.logits(slot)
    slot.close()
    rival = int(logits.argsort()[-2])
    other = [*run.tokens[:5], rival, *run.tokens[6:]]
    assert logit_gap(engine, task, run.tokens, other) == pytest.approx(logits.max() - logits[rival])


# -- refusals ----------------------------------------------------------------------------------------


def test_a_depth_the_head_does_not_have_is_refused() -> None:
    with pytest.raises(BenchError, match="drafts up to 3 tokens a round, asked for depth 4"):
        bench(model_of(PAYS), depth_plan(4))


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(BenchError, match="no MTP head"):
        bench(model_of(Regime(acceptance=())), depth_plan())


def test_a_budget_too_small_for_a_rate_is_refused() -> None:
    with pytest.raises(BenchError, match="--max-tokens must be 16 or more"):
        bench(model_of(PAYS), depth_plan(), BenchOptions(max_tokens=8))


def test_a_prompt_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(BenchError, match="chat/p0 has"):
        bench(model_of(PAYS), depth_plan(), BenchOptions(max_tokens=2**20))
