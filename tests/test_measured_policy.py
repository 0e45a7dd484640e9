"""The measured planner as a depth policy: what it does in a round, and the wiring that must not slip."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from planner_makers import KEY, by_confidence, by_position, table

from mtpx.backend import EngineOptions
from mtpx.decode import Request, decode
from mtpx.errors import PolicyError
from mtpx.policy import Batch, DepthPolicy
from mtpx.policy.calibration import Calibration, HeadIdentity
from mtpx.policy.measured import MeasuredPlanner
from mtpx.policy.planner import Objective, propose_depth
from mtpx.policy.planner_files import load_planner, save_calibration, save_table
from mtpx.policy.table import CostTable, TableKey
from mtpx.round import Round, Route
from mtpx.sampling import Sampling
from mtpx.simulate import Regime, SimulatedEngine

WIDE = table({n: [10.0, 10.1, 10.2, 10.3] for n in (1, 4)}, draft=0.1)
"""Rows are nearly free."""

CLOSED = table({n: [10.0, 25.0, 40.0] for n in (1, 4)}, draft=1.0)
"""No draft pays."""


def batch(
    caps: list[int], *, greedy: list[bool] | None = None, contexts: list[int] | None = None
) -> Batch:
    n = len(caps)
    return Batch(caps, contexts or [100] * n, greedy or [True] * n, lambda k: Route())


def run(
    policy: DepthPolicy,
    width: int = 1,
    sampling: Sampling | None = None,
    parked: tuple[int, ...] = (),
) -> list[Round]:
    """Forty tokens a sequence on a simulated machine of that width."""
    regime = Regime(acceptance=(0.8, 0.7, 0.6), spread=0.5)
    engine = SimulatedEngine(regime, options=EngineOptions(max_width=width))
    requests = []
    for i in range(width):
        slot = engine.open([1, 2, 3 + i], sampling or Sampling(), seed=1, request=i)
        engine.prefill(slot, 64)
        requests.append(
            Request(i, slot, sampling or Sampling(), 40, parked="asked" if i in parked else "")
        )
    return list(decode(engine, policy, requests, clock=engine.clock))


def test_it_is_a_depth_policy() -> None:
    assert isinstance(MeasuredPlanner(WIDE, by_confidence()), DepthPolicy)


def test_it_proposes_what_the_planner_says() -> None:
    planner = MeasuredPlanner(WIDE, by_position(0.8), objective="energy", slack=0.0)
    choice = propose_depth(WIDE, by_position(0.8), 1, 0.0, 1, objective="energy")
    assert planner.propose(batch([9])) == choice.depth == 3


def test_it_decodes_on_a_machine() -> None:
    rounds = run(MeasuredPlanner(WIDE, by_confidence(priors=(0.8,))))
    assert max(r.depth for r in rounds) == 3
    assert sum(r.committed for r in rounds) == 40


# -- the public wiring flaws -----------------------------------------------------------------------


def test_the_planners_zero_is_not_clamped_up_to_one() -> None:
    planner = MeasuredPlanner(CLOSED, by_position(0.5))
    rounds = run(planner)
    assert {r.depth for r in rounds} == {0}
    assert {s.drafted for r in rounds for s in r.slots} == {0}
    assert {r.decision.reason for r in rounds[:-1] if r.decision} == {"park"}
    assert propose_depth(CLOSED, by_position(0.5), 1, 0.1, 1, objective="speed").zero == "by_cost"


def test_the_cap_and_the_cost_are_two_zeros() -> None:
    planner = MeasuredPlanner(WIDE, by_position(0.8), max_width=2)
    assert planner.propose(batch([3] * 3)) == 0
    assert (planner.explain()["zero"], planner.decision().reason) == ("by_cap", "cap")
    assert planner.propose(batch([3] * 2)) == 3


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_batch_of_sure_drafts_verifies_all_of_them(width: int) -> None:
    # A budget of target rows, of rows a sequence, or one short of the pending tokens would cut some.
    planner = MeasuredPlanner(WIDE, by_confidence([0.99] * 10, priors=(0.9,)))
    depth = planner.propose(batch([3] * width))
    assert planner.verify(np.full((width, depth), -0.01)) == [depth] * width


def test_proposing_and_cutting_use_one_width() -> None:
    # Alone, a second row costs nothing; of two sequences it costs a whole step. One of the two is
    # parked: who drafts is one sequence, but the forward is two wide in both steps.
    costs = table({1: [10.0, 10.0, 10.0], 2: [10.0, 10.5, 30.0]}, draft=0.1)
    planner = MeasuredPlanner(costs, by_confidence([0.9] * 10, priors=(0.9,)))
    seen = batch([3, 0])
    at_two = propose_depth(costs, planner.calibration, 2, 0.1, 2, objective="speed").depth
    assert planner.propose(seen) == at_two == 1
    costs = table({1: [10.0, 10.0, 30.0], 2: [10.0, 10.1, 10.2]}, draft=0.1)
    planner = MeasuredPlanner(costs, by_confidence([0.9] * 10, priors=(0.9,)))
    assert planner.propose(seen) == 2
    # At width 1 the second row of the drafting sequence would cost 20 ms and be cut.
    assert planner.verify(np.array([[-0.01, -0.01], [np.nan, np.nan]])) == [2, 0]


def test_depths_stay_with_their_sequences_after_a_reorder() -> None:
    costs = table({n: [10.0, 12.0, 14.5, 17.0] for n in (1, 4)}, draft=0.01)
    said = np.array([[-0.01] * 3, [-3.0] * 3, [-0.2] * 3])
    answers = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        planner = MeasuredPlanner(costs, by_confidence(priors=(0.9,)))
        assert planner.propose(batch([3] * 3)) == 3
        depths = planner.verify(said[order])
        answers.append([depths[order.index(i)] for i in range(3)])
    assert answers[0] == answers[1] == answers[2]
    assert len(set(answers[0])) > 1, "the example tells the sequences apart"


def test_the_loop_gives_every_slot_its_own_depth() -> None:
    costs = table({n: [10.0, 12.0, 14.5, 17.0] for n in (1, 4)}, draft=0.01)
    rounds = run(MeasuredPlanner(costs, by_confidence(priors=(0.9,))), width=3, parked=(1,))
    assert all(s.verified == 0 for r in rounds for s in r.slots if s.request == 1)
    assert any(s.verified for r in rounds for s in r.slots if s.request != 1)


# -- what may be looked at -------------------------------------------------------------------------


def test_sampled_drafts_enter_without_their_confidences() -> None:
    costs = table({n: [10.0, 12.0, 14.5, 17.0] for n in (1, 4)}, draft=0.01)
    planner = MeasuredPlanner(costs, by_confidence(priors=(0.9,)))
    answers = []
    for mine in (-0.01, -6.0):
        planner.propose(batch([3, 3], greedy=[True, False]))
        answers.append(planner.verify(np.array([[-0.2] * 3, [mine] * 3])))
    assert answers[0] == answers[1]


def test_confidences_are_not_read_where_they_may_not_be_used() -> None:
    planner = MeasuredPlanner(WIDE, by_confidence(priors=(0.9,)))
    planner.propose(batch([3], greedy=[False]))
    assert not planner.wants_confidence
    planner.propose(batch([3], greedy=[True]))
    assert planner.wants_confidence


def test_confidences_are_not_read_where_they_say_nothing() -> None:
    planner = MeasuredPlanner(WIDE, by_position(0.9))
    planner.propose(batch([3]))
    assert not planner.wants_confidence


def test_a_sampled_run_verifies_every_draft() -> None:
    rounds = run(MeasuredPlanner(WIDE, by_confidence()), sampling=Sampling(temperature=1.0))
    assert all(s.verified == s.drafted for r in rounds for s in r.slots)


def test_what_was_cut_is_told() -> None:
    costs = table({1: [10.0, 14.0, 19.0, 24.0]}, draft=0.01)
    rounds = run(MeasuredPlanner(costs, by_confidence(priors=(0.9,))))
    cut = [sum(s.drafted - s.verified for s in r.slots) for r in rounds]
    assert [r.decision.cut for r in rounds if r.decision] == cut
    assert any(cut)


def test_greedy_text_does_not_depend_on_the_policy() -> None:
    texts = []
    for costs in (WIDE, CLOSED, table({1: [10.0, 14.0, 19.0, 24.0]}, draft=0.01)):
        engine = SimulatedEngine(Regime(acceptance=(0.8, 0.7, 0.6), spread=0.5))
        slot = engine.open([1, 2, 3], Sampling(), 0)
        engine.prefill(slot, 64)
        request = Request(0, slot, Sampling(), 40)
        for _ in decode(engine, MeasuredPlanner(costs, by_confidence()), [request]):
            pass
        texts.append(request.delivered)
    assert texts[0] == texts[1] == texts[2]


# -- contexts, widths, refusals --------------------------------------------------------------------


def test_every_context_is_planned_with_its_own_table() -> None:
    far = table({1: [10.0, 25.0]}, key=msgspec.structs.replace(KEY, context=4096))
    planner = MeasuredPlanner([WIDE, far], by_position(0.8))
    assert planner.propose(batch([3], contexts=[512])) == 3
    assert planner.propose(batch([3], contexts=[513])) == 0


def test_a_context_without_a_table_decodes_plain_and_says_so_once() -> None:
    said: list[str] = []
    planner = MeasuredPlanner(WIDE, by_position(0.8), warn=said.append)
    assert [planner.propose(batch([3], contexts=[600])) for _ in range(3)] == [0, 0, 0]
    assert len(said) == 1
    assert "no cost table covers a context of 4096 tokens" in said[0]


def test_a_width_beyond_the_table_is_said_once() -> None:
    said: list[str] = []
    planner = MeasuredPlanner(WIDE, by_position(0.8), warn=said.append)
    assert [planner.propose(batch([3] * 6)) for _ in range(3)] == [3, 3, 3]
    assert said == ["the cost table was measured at widths 1, 4; width 6 is read from the nearest"]


def test_a_budgets_end_is_planned_for() -> None:
    # Depth 2 costs more than it brings, depth 3 is the best; with room for two, one is.
    costs = table({1: [10.0, 10.5, 25.0, 11.0]}, draft=0.01)
    planner = MeasuredPlanner(costs, by_position(0.8))
    assert planner.propose(batch([3])) == 3
    assert planner.propose(batch([2])) == 1


def test_nobody_with_room_is_no_draft() -> None:
    planner = MeasuredPlanner(WIDE, by_position(0.8))
    assert planner.propose(batch([0, 0])) == 0
    assert planner.decision().reason == "cap"


@pytest.mark.parametrize("objective", ["energy", "balanced"])
def test_an_objective_in_joules_is_refused_at_once_without_them(objective: Objective) -> None:
    bare = table({1: [10.0, 11.0]}, metered=False)
    with pytest.raises(PolicyError, match="needs joules"):
        MeasuredPlanner(bare, by_position(0.8), objective=objective)


def test_a_slack_outside_its_range_is_refused_at_once() -> None:
    with pytest.raises(PolicyError, match="slack"):
        MeasuredPlanner(WIDE, by_position(0.8), slack=1.0)


# -- the files it is made from ---------------------------------------------------------------------


def here(context: int = 512) -> tuple[SimulatedEngine, CostTable]:
    engine = SimulatedEngine(Regime(acceptance=(0.8, 0.7)))
    return engine, table({1: [10.0, 10.1, 10.2]}, key=TableKey.of(engine.info, context))


def test_a_planner_is_made_from_the_files_of_this_machine(tmp_path: Path) -> None:
    engine, costs = here()
    _, far = here(4096)
    other = table({1: [1.0]}, key=msgspec.structs.replace(costs.key, device="elsewhere"))
    for one in (costs, far, other):
        save_table(one, tmp_path)
    save_calibration(by_confidence(), tmp_path)
    planner = load_planner(engine.info, "energy", 0.05, folder=tmp_path)
    assert planner.tables == {512: costs, 4096: far}
    assert (planner.objective, planner.slack) == ("energy", 0.05)


def test_measuring_again_takes_the_place_of_the_older_table(tmp_path: Path) -> None:
    engine, costs = here()
    save_table(costs, tmp_path)
    newer = table({1: [20.0, 20.1]}, key=costs.key)
    save_table(newer, tmp_path)
    save_calibration(by_confidence(), tmp_path)
    assert load_planner(engine.info, folder=tmp_path).tables == {512: newer}


def test_without_a_table_the_command_that_makes_one_is_named(tmp_path: Path) -> None:
    engine, _ = here()
    with pytest.raises(PolicyError, match=r"no cost table of simulated:.*`mtpx measure simulated:"):
        load_planner(engine.info, folder=tmp_path / "nothing here")


def test_a_table_of_another_machine_is_refused_by_field(tmp_path: Path) -> None:
    engine, costs = here()
    save_table(table({1: [1.0]}, key=msgspec.structs.replace(costs.key, device="X")), tmp_path)
    with pytest.raises(PolicyError, match="measured for device 'X', not 'virtual'"):
        load_planner(engine.info, folder=tmp_path)


def test_without_a_calibration_of_this_head_the_command_is_named(tmp_path: Path) -> None:
    engine, costs = here()
    save_table(costs, tmp_path)
    with pytest.raises(PolicyError, match="no calibration of the head"):
        load_planner(engine.info, folder=tmp_path)
    other = msgspec.structs.replace(HeadIdentity.of(engine.info), sha256="another")
    save_calibration(by_confidence().__class__(other, (0.5,)), tmp_path)
    with pytest.raises(PolicyError, match=r"1 of other heads .*--calibrate"):
        load_planner(engine.info, folder=tmp_path)


def test_a_damaged_file_is_told_where_nothing_else_is_there(tmp_path: Path) -> None:
    engine, costs = here()
    path = save_table(costs, tmp_path)
    path.write_text("half a tab")
    with pytest.raises(
        PolicyError, match=r"no cost table .*half|no cost table .*is not a cost table"
    ):
        load_planner(engine.info, folder=tmp_path)


def test_it_says_why_nothing_is_drafted() -> None:
    planner = MeasuredPlanner(CLOSED, by_position(0.5))
    assert planner.propose(batch([9])) == 0
    assert planner.explain()["parked"] == (
        "its cost table expects 57.7 tok/s at depth 1 and 100 of plain decode"
    )
    planner.propose(batch([9], contexts=[5000]))
    assert planner.explain()["parked"] == "there is no cost table for a context this long"
    assert "parked" not in MeasuredPlanner(WIDE, by_position(0.8)).explain()


def test_named_files_are_used_in_place_of_those_in_the_folder(tmp_path: Path) -> None:
    info = SimulatedEngine().info
    right = table({1: [10.0, 10.1]}, key=TableKey.of(info, 512))
    wrong = table({1: [10.0, 10.1]})
    fitted = by_confidence()
    mine = Calibration(HeadIdentity.of(info), fitted.priors)
    theirs = Calibration(HeadIdentity("of another head"), fitted.priors)
    for name, one in (("right", right), ("wrong", wrong), ("mine", mine), ("theirs", theirs)):
        one.write(tmp_path / f"{name}.toml")
    named = {"tables": [tmp_path / "right.toml"], "calibration": tmp_path / "mine.toml"}
    empty = tmp_path / "none"
    assert load_planner(info, folder=empty, **named).tables[512] == right  # type: ignore[arg-type]
    for part, file, said in (
        ("tables", [tmp_path / "wrong.toml"], "was measured for pack 'pack', not 'simulated"),
        ("calibration", tmp_path / "theirs.toml", "is of another head"),
        ("tables", [tmp_path / "none.toml"], "cannot read"),
    ):
        with pytest.raises(PolicyError, match=said):
            load_planner(info, folder=empty, **(named | {part: file}))  # type: ignore[arg-type]
