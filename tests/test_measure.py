"""Measuring: the simulated machine's costs come back as scripted, and what is not clean is not counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from simulated_bench import Model, model_of

from mtpx.backend import Drafts, EngineOptions, Forward, Outcome, Slot
from mtpx.calibrate import calibrate, calibrate_traces, check_plan
from mtpx.energy import GPU_RAIL, Meter
from mtpx.errors import BackendError, PolicyError
from mtpx.measure import FEWEST, MeasureOptions, Progress, blocks_of, measure_table
from mtpx.policy import FixedDepth
from mtpx.policy.calibration import HeadIdentity
from mtpx.policy.measured import MeasuredPlanner
from mtpx.policy.planner import propose_depth
from mtpx.policy.table import CostTable, TableKey
from mtpx.simulate import Change, Language, Regime, SimulatedEngine

SCRIPT = Regime(
    acceptance=(0.8, 0.6, 0.5),
    cost_ms={1: (10.0, 11.0, 13.0, 12.0), 2: (10.0, 15.0, 20.0, 25.0)},
    draft_ms=0.5,
    spread=0.5,
)
"""Not monotone in depth, and another shape at another width."""


def model(regime: Regime = SCRIPT, width: int = 1, **options: Any) -> Model:
    engine = SimulatedEngine(
        regime,
        language=Language(vocab=32, bias={31: -1e9}),
        options=EngineOptions(max_width=width),
        **options,
    )
    return Model(engine, frozenset({31}))


def measured(made: Model, depth: int = 3, context: int = 512, **options: Any) -> CostTable:
    return measure_table(made, context, depth, clock=made.engine.clock, **options)


def costs(table: CostTable, n: int = 1) -> tuple[list[float], list[float]]:
    at = table.costs(n)
    return at.verify_ms.tolist(), at.draft_ms.tolist()


def test_the_scripted_costs_come_back() -> None:
    verify, draft = costs(measured(model()))
    assert verify == pytest.approx([10.0, 11.0, 13.0, 12.0])
    assert draft == pytest.approx([0.0, 0.5, 1.0, 1.5])


def test_the_scripted_costs_come_back_where_the_engine_times_no_parts() -> None:
    verify, draft = costs(measured(model(timed_apart=False)))
    assert verify == pytest.approx([10.0, 11.0, 13.0, 12.0])
    assert draft == pytest.approx([0.0, 0.5, 1.0, 1.5])


def test_every_width_has_its_own_costs() -> None:
    table = measured(model(width=2), widths=(1, 2))
    assert costs(table, 1)[0] == pytest.approx([10.0, 11.0, 13.0, 12.0])
    assert costs(table, 2)[0] == pytest.approx([10.0, 15.0, 20.0, 25.0])


def test_noise_and_stalls_leave_the_medians_where_they_are() -> None:
    regime = Regime(
        acceptance=SCRIPT.acceptance, cost_ms=SCRIPT.cost_ms, noise=0.02, stall=0.05, spread=0.5
    )
    table = measured(model(regime, seed=4))
    assert costs(table)[0] == pytest.approx([10.0, 11.0, 13.0, 12.0], rel=0.03)
    assert all(
        cell.p10_ms is not None
        and cell.p10_ms < cell.verify_ms + cell.draft_ms < (cell.p90_ms or 0)
        for cell in table.cells
    )


def test_the_round_after_a_change_of_shape_is_not_counted() -> None:
    regime = Regime(acceptance=SCRIPT.acceptance, cost_ms=SCRIPT.cost_ms, transition=3.0)
    table = measured(model(regime), options=MeasureOptions(rounds=4, repeats=3))
    assert all(cell.p90_ms == pytest.approx(cell.verify_ms + cell.draft_ms) for cell in table.cells)


def test_compiling_is_outside_the_measurement() -> None:
    regime = Regime(
        acceptance=SCRIPT.acceptance,
        cost_ms=SCRIPT.cost_ms,
        compile_after=1,
        compile_ms=500.0,
        eager_factor=4.0,
    )
    verify, _ = costs(measured(model(regime)))
    assert verify == pytest.approx([10.0, 11.0, 13.0, 12.0])


def test_a_machine_that_slows_down_slows_every_depth_alike() -> None:
    # Twice as slow over the whole measurement. Depth by depth the last would look twice as dear.
    rounds = (3 + 1) * (4 + 1) * 10
    regime = Regime(
        acceptance=SCRIPT.acceptance,
        cost_ms={1: (10.0, 10.0, 10.0, 10.0)},
        changes=[Change(at=0, over=rounds, cost_factor=2.0)],
    )
    verify, _ = costs(measured(model(regime), options=MeasureOptions(repeats=4)))
    assert max(verify) / min(verify) < 1.03


def test_a_long_context_is_measured_in_its_own_bucket() -> None:
    regime = Regime(acceptance=(0.8,), cost_ms={1: (10.0, 11.0)}, context_ms=1.0)
    made = model(regime)
    near, far = (measured(made, 1, context) for context in (512, 4096))
    assert (near.key.context, far.key.context) == (512, 4096)
    assert costs(near)[0][0] == pytest.approx(10.5, abs=0.05)
    assert costs(far)[0][0] == pytest.approx(14.08, abs=0.05)


def test_the_key_is_the_engines() -> None:
    made = model()
    assert measured(made).key == TableKey.of(made.engine.info, 512)


def test_a_recurrent_engine_that_cannot_rewind_exactly_is_measured_too() -> None:
    verify, _ = costs(measured(model(checkpoint=16)))
    assert verify == pytest.approx([10.0, 11.0, 13.0, 12.0])


def test_progress_reaches_its_end() -> None:
    seen: list[Progress] = []
    measured(model(), progress=seen.append)
    assert {p.total for p in seen} == {blocks_of(3, (1,))}
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert seen[-1].done == seen[-1].total - 1


# -- cells that are left out -----------------------------------------------------------------------


@dataclass
class Meddled(SimulatedEngine):
    """An engine whose verify goes through `meddle(rows, outcomes)`."""

    def __init__(self, meddle: Callable[[int, list[Outcome]], list[Outcome]]) -> None:
        super().__init__(SCRIPT, language=Language(vocab=32, bias={31: -1e9}))
        self.meddle = meddle

    def verify(self, slots: Sequence[Slot], drafts: Drafts, depths: Sequence[int]) -> list[Outcome]:
        return self.meddle(depths[0], super().verify(slots, drafts, depths))


def test_a_depth_that_never_stops_compiling_is_left_out_with_what_lies_behind_it() -> None:
    from dataclasses import replace

    def compiling(depth: int, outcomes: list[Outcome]) -> list[Outcome]:
        if depth != 2:
            return outcomes
        return [replace(o, forward=replace(o.forward, compiled_now=True)) for o in outcomes]

    table = measured(Model(Meddled(compiling), frozenset({31})))
    assert [cell.k for cell in table.cells] == [0, 1]
    assert [(cell.k, cell.reason) for cell in table.left_out] == [
        (2, "only 0 clean full rounds; 32 compiled something"),
        (3, "depth 2 of this width is missing"),
    ]


def test_a_depth_that_fails_is_left_out_and_the_rest_is_measured() -> None:
    def failing(depth: int, outcomes: list[Outcome]) -> list[Outcome]:
        if depth == 3:
            raise BackendError("out of memory at 4 rows")
        return outcomes

    table = measured(Model(Meddled(failing), frozenset({31})))
    assert [cell.k for cell in table.cells] == [0, 1, 2]
    assert [(cell.k, cell.reason) for cell in table.left_out] == [(3, "out of memory at 4 rows")]
    assert costs(table)[0] == pytest.approx([10.0, 11.0, 13.0])


def test_a_depth_missing_at_one_width_is_missing_at_all() -> None:
    made = model(width=2)
    real = made.engine.verify

    def failing(slots: Sequence[Slot], drafts: Drafts, depths: Sequence[int]) -> list[Outcome]:
        if list(depths) == [3, 3]:
            raise BackendError("out of memory at 8 rows")
        return real(slots, drafts, depths)

    made.engine.verify = failing  # type: ignore[method-assign, assignment]
    table = measured(made, widths=(1, 2))
    assert table.max_k == 2
    assert [(c.n, c.k, c.reason) for c in table.left_out] == [
        (2, 3, "out of memory at 8 rows"),
        (1, 3, "depth 3 of another width is missing"),
    ]


def test_where_nothing_can_be_measured_the_reason_is_given() -> None:
    made = model()

    def failing(slots: Sequence[Slot]) -> list[Outcome]:
        raise BackendError("the device is gone")

    made.engine.plain = failing  # type: ignore[method-assign, assignment]
    with pytest.raises(PolicyError, match="nothing could be measured: the device is gone"):
        measured(made)


def test_too_few_rounds_for_a_median_are_not_enough() -> None:
    def rarely(depth: int, outcomes: list[Outcome]) -> list[Outcome]:
        rarely.seen += depth == 1  # type: ignore[attr-defined]
        keep = rarely.seen % 8 == 0  # type: ignore[attr-defined]
        forward = Forward(compiled_now=not keep, draft_ms=0.5, verify_ms=11.0)
        return [o if depth != 1 else _with(o, forward) for o in outcomes]

    rarely.seen = 0  # type: ignore[attr-defined]
    table = measured(Model(Meddled(rarely), frozenset({31})))
    (left, *_) = table.left_out
    assert left.k == 1
    assert int(left.reason.split()[1]) < FEWEST


def _with(outcome: Outcome, forward: Forward) -> Outcome:
    from dataclasses import replace

    return replace(outcome, forward=forward)


# -- energy ----------------------------------------------------------------------------------------


class Rail:
    """A rail that draws 40 W while the virtual clock runs: told as power, or by a counter in steps of
    `grain_j`."""

    rail = GPU_RAIL
    modulus_j: float | None = None

    def __init__(self, made: Model, grain_j: float | None = None) -> None:
        self.clock, self.grain_j = made.engine.clock, grain_j

    def counter_j(self) -> float | None:
        if self.grain_j is None:
            return None
        return 40.0 * self.clock() / 1e9 // self.grain_j * self.grain_j

    def watts(self) -> float | None:
        return 40.0 if self.grain_j is None else None


def test_joules_are_the_power_times_the_time_and_split_by_it() -> None:
    made = model()
    table = measured(made, meter=Meter(Rail(made), clock=lambda: made.engine.clock() / 1e9))
    assert table.rail == GPU_RAIL
    at = table.costs(1)
    assert at.verify_j is not None
    assert at.draft_j is not None
    assert at.verify_j.tolist() == pytest.approx([0.40, 0.44, 0.52, 0.48], rel=0.02)
    assert at.draft_j.tolist() == pytest.approx([0.0, 0.02, 0.04, 0.06], rel=0.02)
    assert table.about["joules"] == "split between draft and verify by time"


def test_a_sensor_too_coarse_for_a_block_leaves_no_joules_at_all() -> None:
    made = model()
    table = measured(made, meter=Meter(Rail(made, grain_j=8.0)))
    assert not table.has_joules
    assert table.about["joules"].startswith("absent: ")


def test_without_a_meter_there_are_no_joules_but_the_reason() -> None:
    table = measured(model(), no_meter="zeus is not installed")
    assert (table.has_joules, table.rail) == (False, "")
    assert table.about["joules"] == "absent: zeus is not installed"


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "context", "sentence"),
    [
        (4, 512, "drafts up to 3 tokens a round, asked for depth 4"),
        (0, 512, "needs depth 1 at least"),
        (3, 40, "leaves no room to measure depth 3"),
        (3, 2**21, "does not fit"),
        (3, 520, "leaves no room"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    depth: int, context: int, sentence: str
) -> None:
    with pytest.raises(PolicyError, match=sentence):
        measured(model(), depth, context)


def test_a_pack_without_a_head_has_nothing_to_measure() -> None:
    with pytest.raises(PolicyError, match="no MTP head"):
        measured(model(Regime(acceptance=())), 1)
    with pytest.raises(PolicyError, match="no MTP head"):
        calibrate(model(Regime(acceptance=())))


# -- calibrating, and the check of a plan ----------------------------------------------------------


def test_the_scripted_acceptance_comes_back() -> None:
    made = model()
    fitted = calibrate(made, 3)
    assert fitted.priors == pytest.approx(SCRIPT.acceptance, abs=0.08)
    assert fitted.head == HeadIdentity.of(made.engine.info)
    # The simulated head is calibrated: its confidence is the probability that the draft stands.
    seen = [r for r in fitted.reliability() if r.reached >= 100]
    assert len({r.predicted for r in seen}) > 1


def test_a_trace_gives_the_calibration_its_rounds_do(tmp_path: Path) -> None:
    from mtpx.bench.design import design, gather, mtp_arm
    from mtpx.bench.records import BenchOptions
    from mtpx.bench.run import run_bench
    from mtpx.trace.writer import TraceWriter

    made = model()
    path = tmp_path / "a.jsonl"
    prompts = gather(("chat",), (), 6, 0)
    with TraceWriter(path) as writer:
        run_bench(
            made,
            design(prompts, [mtp_arm(3)], repeats=2, seed=0, baseline=True),
            prompts,
            BenchOptions(max_tokens=64),
            write=writer.write,
            clock=made.engine.clock,
        )
    fitted = calibrate_traces([path])
    assert fitted.priors == pytest.approx(SCRIPT.acceptance, abs=0.1)
    assert fitted.head.differences(HeadIdentity.of(made.engine.info)) == []


def test_no_trace_is_no_calibration() -> None:
    with pytest.raises(PolicyError, match="no trace was given"):
        calibrate_traces([])


def test_what_the_plan_predicts_is_what_is_then_measured() -> None:
    made = model()
    planner = MeasuredPlanner(measured(made), calibrate(made, 3))
    found = check_plan(made, planner, clock=made.engine.clock)
    assert found.holds
    assert found.predicted_ms == pytest.approx(found.measured_ms, rel=0.05)


def test_a_plan_for_another_machine_does_not_hold() -> None:
    made = model()
    slow = Regime(
        acceptance=SCRIPT.acceptance, cost_ms={1: [2 * ms for ms in SCRIPT.cost_ms[1]]}, spread=0.5
    )
    planner = MeasuredPlanner(measured(model(slow)), calibrate(made, 3))
    assert not check_plan(made, planner, clock=made.engine.clock).holds


def test_planned_speed_is_at_least_that_of_the_best_fixed_depth() -> None:
    made = model()
    planner = MeasuredPlanner(measured(made), calibrate(made, 3))
    speeds = {}
    for depth in range(4):
        fixed = _speed(made, FixedDepth(depth))
        speeds[depth] = fixed
    assert _speed(made, planner) >= 0.98 * max(speeds.values())


def _speed(made: Model, policy: Any) -> float:
    from mtpx.decode import Request, decode
    from mtpx.sampling import Sampling

    tokens, began = 0, made.engine.clock()
    for seed in range(6):
        slot = made.engine.open([1 + seed, 2, 3], Sampling(), seed)
        made.engine.prefill(slot, 64)
        request = Request(0, slot, Sampling(), 200)
        for round in decode(made.engine, policy, [request], clock=made.engine.clock):
            tokens += round.committed
        slot.close()
    return tokens / (made.engine.clock() - began)


def test_the_planner_finds_the_regimes_own_best_depth() -> None:
    made = model()
    choice = propose_depth(measured(made), calibrate(made, 3), 1, 0.0, 1, objective="speed")
    assert choice.depth == SCRIPT.best_depth()


def test_models_of_a_bench_are_models_to_measure() -> None:
    assert measured(model_of(SCRIPT)).max_k == 3
