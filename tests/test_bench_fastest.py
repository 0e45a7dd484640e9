"""Benches in one precision beside plain decode in the fastest, on the simulated machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_bench import NOISY, PAYS, Model, model_in

from mtpx.bench import models
from mtpx.bench.blocks import blocks
from mtpx.bench.design import NULL_ARM, Design, against_fastest, design, mtp_arm
from mtpx.bench.fastest import Fastest, fastest_in, leading
from mtpx.bench.models import Models, beside_fastest, fastest_of
from mtpx.bench.records import BenchOptions
from mtpx.bench.result import BenchResult, Progress
from mtpx.bench.run import run_bench
from mtpx.bench.suites import BenchPrompt
from mtpx.bench.verdict import Answer, Verdict
from mtpx.errors import BackendError, BenchError
from mtpx.memory import HostMemory
from mtpx.simulate import Regime, VirtualClock
from mtpx.trace.schema import EndRecord, Record, RequestRecord, RunRecord
from mtpx.trace.summary import RunSummary, summarise

PROMPTS = [
    BenchPrompt(f"p{i}", suite, prompt=f"{suite} prompt number {i}")
    for suite in ("chat", "code")
    for i in range(6)
]

INT4 = Fastest("int4", "standard", 5)

SLOW = Regime(acceptance=(0.8, 0.6, 0.5), cost_ms={1: (20.0, 22.0, 24.0, 26.0)}, noise=0.01)
"""Twice as slow as `PAYS`, whose plain rate its head at depth 1 does not reach."""


def pair(own: Regime = SLOW, fast: Regime = PAYS) -> Models:
    """int8 and int4 on one machine."""
    clock = VirtualClock()
    return Models(model_in("int8", own, clock), model_in("int4", fast, clock))


def fast(held: Models) -> Model:
    assert isinstance(held.fastest, Model)
    return held.fastest


def plan(*depths: int, null: bool = False, **kwargs: Any) -> Design:
    arms = [*map(mtp_arm, depths or (1,)), *([NULL_ARM] if null else [])]
    return against_fastest(design(PROMPTS, arms, **kwargs), INT4)


def bench(
    held: Models, wanted: Design, options: BenchOptions | None = None, **kwargs: Any
) -> tuple[BenchResult, list[Record]]:
    assert isinstance(held.model, Model)
    records: list[Record] = []
    result = run_bench(
        held.model,
        wanted,
        PROMPTS,
        options,
        fastest=held.fastest,
        write=records.append,
        clock=held.model.engine.clock,
        **kwargs,
    )
    return result, records


def summary(records: list[Record]) -> RunSummary:
    (found,) = summarise(records)
    return found


# -- the design --------------------------------------------------------------------------------------

plans = st.builds(
    lambda depths, repeats, seed, count: design(
        PROMPTS[:count], [mtp_arm(d) for d in depths], repeats=repeats, seed=seed
    ),
    st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True),
    st.integers(1, 3),
    st.integers(0, 2**32),
    st.integers(1, 12),
)


@given(plans)
def test_every_block_runs_all_three_twice_around_one_middle(plain: Design) -> None:
    wanted = against_fastest(plain, INT4)
    for block in wanted.blocks:
        names = [arm.name for arm in wanted.runs(block)]
        assert Counter(names) == {"plain": 2, block.arm: 2, "plain in int4": 2}
        assert names == names[::-1]


@given(plans)
def test_without_the_third_the_design_is_the_one_it_was_made_from(plain: Design) -> None:
    orders = [block.order.replace("C", "") for block in against_fastest(plain, INT4).blocks]
    assert orders == [block.order for block in plain.blocks]


@given(plans)
def test_the_third_stands_first_between_and_last_equally_often(plain: Design) -> None:
    wanted = against_fastest(plain, INT4)
    for arm in wanted.arms:
        for order in ("AB", "BA"):
            halves = [b.order[:3] for b in wanted.blocks if b.arm == arm.name]
            places = Counter(h.index("C") for h in halves if h.replace("C", "") == order)
            counts = [places[at] for at in range(3)]
            assert max(counts) - min(counts) <= 1


def test_a_null_controls_blocks_stay_as_they_are() -> None:
    wanted = plan(1, null=True)
    assert {b.order for b in wanted.blocks if b.arm == "null"} == {"ABBA", "BAAB"}


def test_a_damaged_entry_in_a_design_is_refused_in_a_sentence() -> None:
    with pytest.raises(BenchError, match="design in the trace's run record cannot be read"):
        fastest_in({"fastest": {"precision": 4}})


# -- the verdicts ------------------------------------------------------------------------------------


def test_a_head_that_pays_in_its_precision_may_not_pay_against_the_fastest() -> None:
    result, _ = bench(pair(), plan())
    assert [(v.against, v.verdict) for v in result.verdicts] == [("", "pays")]
    assert [(v.against, v.verdict) for v in result.against_fastest] == [
        ("plain in int4", "does not pay")
    ]


def test_the_ratio_is_that_of_the_arm_to_the_other_precisions_plain_rate() -> None:
    result, _ = bench(pair(), plan(), BenchOptions(max_tokens=256))
    expected = SLOW.expected_rate(1) / PAYS.expected_rate(0)
    assert result.against_fastest[0].ratio == pytest.approx(expected, rel=0.02)


def test_the_verdict_in_the_same_precision_is_judged_on_the_same_runs_as_ever() -> None:
    result, records = bench(pair(), plan())
    without = blocks(
        [
            r
            for r in records
            if not (isinstance(r, RequestRecord) and r.precision)
            and not (isinstance(r, EndRecord) and r.request in elsewhere(records))
        ]
    )
    assert [b.log_ratio for b in without if not b.against] == [
        b.log_ratio for b in blocks(records) if not b.against
    ]
    assert result.verdicts[0].blocks == 12


def elsewhere(records: list[Record]) -> set[int]:
    return {r.id for r in records if isinstance(r, RequestRecord) and r.precision}


def test_several_arms_are_each_held_against_it() -> None:
    result, _ = bench(pair(), plan(1, 2))
    assert sorted(v.arm for v in result.against_fastest) == ["depth 1", "depth 2"]


def test_the_two_precisions_texts_are_not_expected_to_be_equal() -> None:
    result, _ = bench(pair(), plan())
    assert (result.verdicts[0].texts_equal, result.verdicts[0].texts_compared) == (12, 12)
    assert result.against_fastest[0].texts_equal is None


def test_the_fastest_is_run_on_its_own_model_with_the_head_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = pair()
    opened: list[bool] = []
    real = fast(held).engine.open

    def recording(*args: Any, **kwargs: Any) -> Any:
        opened.append(kwargs["head"])
        return real(*args, **kwargs)

    monkeypatch.setattr(fast(held).engine, "open", recording)
    _, records = bench(held, plan())
    assert len(opened) == len(elsewhere(records))
    assert not any(opened)


def test_rates_are_told_of_both_plain_decodes_first() -> None:
    held = pair()
    fast(held).engine.step_bytes = 10**8  # type: ignore[attr-defined]
    wanted = plan()
    result, _ = bench(held, wanted)
    assert [rate.arm for rate in result.rates] == ["plain", "plain in int4", "depth 1"]


def test_a_design_without_the_model_for_it_is_refused() -> None:
    with pytest.raises(BenchError, match="go together"):
        bench(Models(pair().model), plan())


def test_a_noisy_null_control_takes_this_verdict_away_too() -> None:
    result, _ = bench(pair(NOISY, NOISY), plan(null=True), BenchOptions(guard=1e9))
    assert result.against_fastest[0].verdict == "none"
    assert "too noisy" in result.against_fastest[0].reason


@pytest.mark.parametrize("done", [30, 37, 52])
def test_an_interrupted_bench_has_neither_verdict(done: int) -> None:
    def stop(progress: Progress) -> None:
        if progress.done == done:
            raise KeyboardInterrupt

    result, _ = bench(pair(), plan(), progress=stop)
    assert result.stopped == "interrupted"
    assert {v.verdict for v in (*result.verdicts, *result.against_fastest)} == {"none"}
    assert result.against_fastest[0].ratio is not None


def stalled(model: Model, at: int) -> None:
    """Makes this plain step of the model take a minute."""
    real, steps = model.engine.plain, iter(range(10**9))

    def plain(slots: Any) -> Any:
        if next(steps) == at:
            model.engine.clock.advance(60_000.0)
        return real(slots)

    model.engine.plain = plain  # type: ignore[method-assign]


def test_a_run_of_the_fastest_cut_by_the_guard_leaves_the_other_verdict_alone() -> None:
    held = pair()
    stalled(fast(held), 400)
    result, _ = bench(held, plan())
    assert result.verdicts[0].verdict == "pays"
    assert "cut by the guard" in result.against_fastest[0].reason


def test_a_run_of_the_arms_own_plain_cut_by_the_guard_leaves_the_fastests_verdict_alone() -> None:
    held = pair()
    assert isinstance(held.model, Model)
    stalled(held.model, 400)
    result, _ = bench(held, plan())
    assert "cut by the guard" in result.verdicts[0].reason
    assert result.against_fastest[0].verdict == "does not pay"


def test_looks_go_on_until_both_verdicts_are_settled() -> None:
    even = Regime(acceptance=(0.8,), cost_ms={1: (16.5, 17.65)}, noise=0.01)
    result, records = bench(pair(even), plan(looks=2))
    timed = [r for r in records if isinstance(r, RequestRecord) and not r.warmup]
    assert result.verdicts[0].reason.endswith("at look 1 of 2")
    assert len(timed) == 72


def test_looks_stop_where_both_are_settled() -> None:
    result, records = bench(pair(), plan(looks=2))
    timed = [r for r in records if isinstance(r, RequestRecord) and not r.warmup]
    assert len(timed) == 36
    assert result.against_fastest[0].reason.endswith("at look 1 of 2")


def test_a_policy_learns_from_block_to_block_as_without_it() -> None:
    from mtpx.bench.design import policy_arm

    held = pair()
    wanted = against_fastest(design(PROMPTS, [policy_arm("auto")]), INT4)
    result, _ = bench(held, wanted)
    assert result.against_fastest[0].arm == "auto"
    assert result.verdicts[0].verdict == "pays"


verdict_of = st.sampled_from(["pays", "does not pay", "inconclusive", "none"])


@given(verdict_of, verdict_of)
def test_mtp_pays_here_only_where_it_pays_against_both(own: Answer, other: Answer) -> None:
    one = Verdict("auto", own, "", 0.02)
    two = Verdict("auto", other, "", 0.02, against="plain in int4")
    found = leading(one, two)
    assert (found.verdict == "pays") == (own == other == "pays")
    assert (found.verdict == "does not pay") == ("does not pay" in (own, other))
    assert leading(one, None) is one


# -- the trace ---------------------------------------------------------------------------------------


def test_the_trace_gives_the_same_verdicts() -> None:
    result, records = bench(pair(), plan())
    found = summary(records)
    assert found.verdicts == result.verdicts
    assert found.against_fastest == result.against_fastest


def test_a_trace_that_lost_its_design_never_mixes_the_precisions() -> None:
    _, records = bench(pair(), plan())
    found = summary([r for r in records if not isinstance(r, RunRecord)])
    assert (found.verdicts, found.against_fastest) == ([], [])
    assert found.no_verdict.startswith("pair 0 has its runs at places")


def test_rounds_of_the_fastest_are_counted_by_themselves_and_price_nothing() -> None:
    _, records = bench(pair(), plan())
    found = summary(records)
    costs = {(r.mode, r.depth): r.full_cost_ms for r in found.rounds}
    assert costs["plain", 0] == pytest.approx(20.0, rel=0.02)
    assert costs["plain in int4", 0] == pytest.approx(10.0, rel=0.02)
    assert found.break_even[0].cost_plain == pytest.approx(22.5 / 20.0, rel=0.02)
    assert {row.mode for row in found.context} == {"plain", "plain in int4", "mtp"}


def test_weights_read_a_second_are_those_of_each_precision() -> None:
    held = pair()
    assert isinstance(held.model, Model)
    held.model.engine.step_bytes = 200  # type: ignore[attr-defined]
    _, records = bench(held, plan())
    read = {arm.arm: arm.weights_gb_s for arm in summary(records).arms}
    assert read["plain"] == pytest.approx(200 * 50 / 1e9, rel=0.02)
    assert read["plain in int4"] == pytest.approx(5 * 100 / 1e9, rel=0.02)


def test_blocks_against_the_fastest_are_told_from_the_others() -> None:
    _, records = bench(pair(), plan())
    assert Counter(b.against for b in summary(records).blocks) == {"": 12, "plain in int4": 12}


# -- the models --------------------------------------------------------------------------------------

GOOD = ("float32", "int8", "int4")


class Loading:
    """Loads simulated models; `auto` is what "auto" takes, what `refused` names cannot be had."""

    def __init__(self, auto: str = "int4", refused: dict[str, str] | None = None) -> None:
        self.auto, self.refused = auto, refused or {}
        self.asked: list[str] = []
        self.open: list[str] = []
        self.bytes = 0

    @contextmanager
    def __call__(self, precision: str) -> Iterator[Model]:
        self.asked.append(precision)
        if precision in self.refused:
            raise BackendError(self.refused[precision])
        name = self.auto if precision == "auto" else precision
        model = model_in(name, PAYS, VirtualClock())
        model.engine.step_bytes = self.bytes  # type: ignore[attr-defined]
        self.open.append(name)
        try:
            yield model
        finally:
            self.open.remove(name)


def test_a_named_precision_that_is_not_the_fastest_is_held_beside_it() -> None:
    load = Loading()
    with beside_fastest(load, "int8", GOOD) as held:
        assert held.model.engine.info.dtype == "int8"
        assert held.fastest is not None
        assert fastest_of(held) == Fastest("int4", "standard", 0)
    assert load.open == []


def test_a_named_precision_that_is_the_fastest_is_loaded_once() -> None:
    load = Loading()
    with beside_fastest(load, "int4", GOOD) as held:
        assert held.fastest is None
        assert held.no_fastest == (
            "plain decode is in int4, the fastest precision here that simulated declares good"
        )
    assert load.asked == ["auto"]


@pytest.mark.parametrize(
    ("auto", "good", "sentence"),
    [
        ("int4", GOOD, "plain decode is in int4, the fastest precision here"),
        ("int4", ("int4",), "plain decode is in int4, the only precision here"),
        ("float16", GOOD, "plain decode is in float16, which auto takes here as the fastest"),
        ("float32", (), "simulated does not say which precisions it is good in"),
    ],
)
def test_nothing_more_is_loaded_for_auto(auto: str, good: tuple[str, ...], sentence: str) -> None:
    load = Loading(auto)
    with beside_fastest(load, "auto", good) as held:
        assert held.no_fastest.startswith(sentence)
        assert not held.missed
    assert load.asked == ["auto"]


def test_a_pack_that_declares_no_precision_good_has_no_fastest() -> None:
    load = Loading()
    with beside_fastest(load, "int8", ()) as held:
        assert held.no_fastest.startswith("simulated does not say which precisions")
    assert load.asked == ["int8"]


def test_a_fastest_that_cannot_be_loaded_leaves_the_model_with_a_sentence() -> None:
    with beside_fastest(Loading(refused={"auto": "it does not fit"}), "int8", GOOD) as held:
        assert (held.fastest, held.missed) == (None, True)
        assert held.no_fastest.endswith("was not timed beside it: it does not fit")


def test_a_model_that_cannot_be_loaded_is_refused_as_without_the_fastest() -> None:
    load = Loading(refused={"int8": "int8 needs another processor"})
    with (
        pytest.raises(BackendError, match="int8 needs another processor"),
        beside_fastest(load, "int8", GOOD),
    ):
        pass
    assert load.open == []


def test_a_precision_nobody_knows_is_for_the_backend_to_refuse() -> None:
    load = Loading(refused={"int5": "there is no precision int5"})
    with (
        pytest.raises(BackendError, match="no precision int5"),
        beside_fastest(load, "int5", GOOD),
    ):
        pass
    assert load.asked == ["int5"]


def test_two_copies_that_do_not_fit_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "host_memory", lambda: HostMemory(8 * 10**9, 3 * 10**9))
    load = Loading()
    load.bytes = 2 * 10**9
    with beside_fastest(load, "int8", GOOD) as held:
        assert load.open == ["int8"]
        assert (held.fastest, held.missed) == (None, True)
        assert "the second takes about 4.0 GB and 3.0 GB are free" in held.no_fastest


def test_models_of_different_weights_are_not_compared() -> None:
    held = pair()
    fast(held).engine.weights = "others"  # type: ignore[attr-defined]
    with pytest.raises(BenchError, match="their weights digest differs"):
        fastest_of(held)
