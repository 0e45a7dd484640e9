"""`mtpx bench --rows`: scripted costs come back, and the tiny pack shows what it has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import Command
from simulated_bench import Model

from mtpx.backend import EngineOptions
from mtpx.bench.rows import Load, RowsOptions, RowsResult, Setup, bench_rows
from mtpx.errors import BackendError, BenchError
from mtpx.precision import TIERS
from mtpx.round import Route
from mtpx.simulate import Language, Regime, SimulatedEngine

STANDARD = Regime(acceptance=(0.8, 0.6, 0.5), cost_ms={1: (10.0, 11.0, 13.0, 12.0)}, draft_ms=7.0)
FIXED = Regime(acceptance=(0.8, 0.6, 0.5), cost_ms={1: (12.0, 12.0, 12.0, 12.0)}, draft_ms=7.0)


class Simulated:
    """Loads of engines that share one clock, each slower by tier as scripted."""

    def __init__(self, refuse: tuple[str, ...] = (), **options: Any) -> None:
        self.refuse, self.options, self.loaded = refuse, options, list[Setup]()
        self.now = 0

    def clock(self) -> int:
        return self.now

    def __call__(self, setup: Setup) -> AbstractContextManager[Model]:
        for refused in self.refuse:
            if refused in (setup.precision, setup.tier):
                raise BackendError(f"no {refused} here")
        self.loaded.append(setup)
        engine = SimulatedEngine(
            STANDARD if setup.tier == "standard" else FIXED,
            language=Language(vocab=32, bias={31: -1e9}),
            options=EngineOptions(tier=setup.tier, **self.options),
        )
        return self._entered(engine)

    @contextmanager
    def _entered(self, engine: SimulatedEngine) -> Iterator[Model]:
        for name in ("plain", "verify", "propose"):
            self._advance(engine, name)
        with Model(engine, frozenset({31})) as model:
            yield model

    def _advance(self, engine: SimulatedEngine, name: str) -> None:
        run = getattr(engine, name)

        def timed(*args: Any) -> Any:
            start = engine.clock()
            found = run(*args)
            self.now += engine.clock() - start
            return found

        setattr(engine, name, timed)


def measured(load: Simulated, most: int = 4, **options: Any) -> RowsResult:
    typed: Load = load
    return bench_rows(typed, RowsOptions(most, **options), clock=load.clock)


def test_the_scripted_cost_of_every_row_comes_back_without_the_heads_share() -> None:
    found = measured(Simulated(), precision="int4", tier="standard")
    (arm,) = found.arms
    assert [cell.rows for cell in arm.cells] == [1, 2, 3, 4]
    assert [cell.ms for cell in arm.cells] == pytest.approx([10.0, 11.0, 13.0, 12.0])
    assert [cell.relative.ratio for cell in arm.cells] == pytest.approx([1.0, 1.1, 1.3, 1.2])


def test_the_row_invariant_tiers_price_is_a_plain_round_of_it_in_standard_ones() -> None:
    (price,) = measured(Simulated(), precision="int4").prices
    assert (price.precision, price.route) == ("int4", "eager")
    assert price.price.ratio == pytest.approx(1.2)


def test_auto_measures_every_precision_there_is_and_says_why_others_are_not() -> None:
    load = Simulated(refuse=("int8", "bfloat16"))
    found = measured(load, most=1)
    assert {(a.precision, a.tier) for a in found.arms} == {
        (precision, tier) for precision in ("float32", "int4") for tier in TIERS
    }
    assert found.left_out == ["bfloat16: no bfloat16 here", "int8: no int8 here"]


def test_a_machine_without_the_row_invariant_tier_shows_the_standard_one() -> None:
    found = measured(Simulated(refuse=("row-invariant",)), most=1, precision="int4")
    assert [arm.tier for arm in found.arms] == ["standard"]
    assert found.prices == []
    assert found.left_out == ["int4, row-invariant: no row-invariant here"]


def test_a_precision_that_was_asked_for_and_is_not_there_is_an_error() -> None:
    with pytest.raises(BackendError, match="no int8 here"):
        measured(Simulated(refuse=("int8",)), precision="int8")


def test_rows_beyond_the_heads_limit_are_left_out_with_the_reason() -> None:
    found = measured(Simulated(), most=8, precision="int4", tier="standard")
    assert [cell.rows for cell in found.arms[0].cells] == [1, 2, 3, 4]
    assert found.left_out == ["int4, more than 4 rows: the head drafts up to 3 tokens a round"]


def test_a_backend_without_a_compiled_route_says_so_and_shows_the_eager_one() -> None:
    found = measured(Simulated(), most=1, precision="int4", tier="standard", compiled=True)
    assert [arm.route for arm in found.arms] == ["eager"]
    assert found.left_out == ["int4, standard, compiled: this backend has no such route"]


def test_rounds_that_ran_by_another_route_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SimulatedEngine,
        "route",
        lambda self, rows: Route("compiled"),
    )
    found = measured(Simulated(), most=1, precision="int4", tier="standard")
    assert found.arms[0].cells == []
    assert "no clean round of one row" in found.left_out[0]


def test_a_context_without_room_is_refused() -> None:
    with pytest.raises(BenchError, match="a context of 16 tokens leaves no room to time 4 rows"):
        measured(Simulated(context=16), precision="int4")


@pytest.fixture
def bench(mtpx: Command, tiny_pack: Path) -> Any:
    def bench(*options: str) -> Any:
        return mtpx("bench", str(tiny_pack), "--quiet", *options)

    return bench


def test_json_has_every_row_of_both_tiers(bench: Any) -> None:
    done = bench("--rows", "1..3", "--precision", "float32", "--repeats", "2", "--json")
    assert done.status == 0
    found = json.loads(done.out)
    assert [(a["precision"], a["tier"], a["route"]) for a in found["arms"]] == [
        ("float32", tier, "eager") for tier in TIERS
    ]
    for arm in found["arms"]:
        assert [cell["rows"] for cell in arm["cells"]] == [1, 2, 3]
        for cell in arm["cells"]:
            assert 0 < cell["p10_ms"] <= cell["ms"] <= cell["p90_ms"]
            assert cell["rounds"] == 8
    assert found["prices"][0]["price"]["low"] > 0


def test_the_table_shows_rows_the_tiers_price_and_what_the_pack_cannot_do(bench: Any) -> None:
    done = bench("--rows", "6", "--repeats", "1")
    assert done.status == 0
    for said in (
        "float32, eager",
        "p10–p90",
        "What the row-invariant tier costs a plain round",
        "Left out: float32, more than 5 rows: the head drafts up to 4 tokens a round",
        "Left out: int4:",
    ):
        assert said in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines() if not line.startswith("Left"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--plain-baseline",), "--rows is a bench of its own, without --plain-baseline"),
        (("--max-tokens", "9"), "--rows is a bench of its own, without --max-tokens"),
        (("--repeats", "0"), "--repeats is 1 or more, got 0"),
        (("--rows", "2..8"), "'2..8' is not a range of rows from 1, such as 1..8"),
        (("--precision", "int3"), "there is no precision 'int3'"),
    ],
)
def test_what_cannot_be_benched_by_rows_is_a_sentence(
    bench: Any, options: tuple[str, ...], said: str
) -> None:
    done = bench("--rows", "2", *options)
    assert done.status == 2
    assert said in done.err
