"""Cost tables: what is read between cells, what is refused, and the way to a file and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_makers import KEY, table, tables

from mtpx.errors import PolicyError
from mtpx.policy.published import parse_published, published, published_names
from mtpx.policy.table import (
    Cell,
    CostTable,
    LeftOut,
    TableKey,
    bucket_start,
    context_bucket,
    parse_table,
    read_table,
)


def cell(n: int, k: int, **fields: float) -> Cell:
    return Cell(n, k, **({"verify_ms": 10.0, "draft_ms": 1.0 if k else 0.0} | fields))


def test_a_width_between_two_measured_ones_lies_on_a_straight_line() -> None:
    costs = table({2: [10.0, 20.0], 6: [30.0, 60.0]})
    assert costs.costs(3).verify_ms.tolist() == [15.0, 30.0]


@pytest.mark.parametrize(("n", "like"), [(1, 2), (9, 6)])
def test_a_width_outside_takes_the_nearest(n: int, like: int) -> None:
    costs = table({2: [10.0, 20.0], 6: [30.0, 60.0]})
    assert costs.costs(n).verify_ms.tolist() == costs.costs(like).verify_ms.tolist()
    assert not costs.covers(n)


@given(tables(), st.integers(1, 12))
def test_a_width_never_costs_less_or_more_than_its_measured_neighbours(
    costs: CostTable, n: int
) -> None:
    columns = [costs.costs(w).verify_ms for w in costs.widths]
    for k, ms in enumerate(costs.costs(n).verify_ms):
        low, high = min(c[k] for c in columns), max(c[k] for c in columns)
        assert low * (1 - 1e-12) <= ms <= high * (1 + 1e-12)


@given(tables(), st.booleans())
def test_what_is_rendered_parses_back_equal(costs: CostTable, metered: bool) -> None:
    if not metered:
        bare = [msgspec.structs.replace(c, verify_j=None, draft_j=None) for c in costs.cells]
        costs = replace(costs, cells=tuple(bare))
    costs = replace(
        costs,
        rail="GPU rail only",
        left_out=(LeftOut(1, 9, 'a "stream" ended early\n'),),
        about={"what.is": "naïve \x7f \\ text"},
    )
    assert parse_table(costs.render().encode()) == costs


def test_a_table_is_written_and_read_back(tmp_path: Path) -> None:
    costs = table({1: [10.0, 11.0]})
    path = tmp_path / "new folder" / costs.file_name()
    costs.write(path)
    assert read_table(path, KEY) == costs
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_file_that_cannot_be_read_back_does_not_replace_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a.table.toml"
    good = table({1: [10.0, 11.0]})
    good.write(path)
    key = msgspec.structs.replace(KEY, pack="a lone surrogate \ud800")
    with pytest.raises(PolicyError):
        table({1: [10.0, 12.0]}, key=key).write(path)
    assert read_table(path) == good
    assert list(tmp_path.iterdir()) == [path]


OTHER = TableKey("p2", "d2", "b2", "f2", "q2", "row-invariant", 4096, "threads 9")


@pytest.mark.parametrize("name", TableKey.__struct_fields__)
def test_every_mismatch_of_the_key_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.table.toml"
    table({1: [10.0, 11.0]}).write(path)
    key = msgspec.structs.replace(KEY, **{name: getattr(OTHER, name)})
    with pytest.raises(PolicyError, match=f"measured for {name} ") as refused:
        read_table(path, key)
    others = set(TableKey.__struct_fields__) - {name}
    assert not any(f"; {other} " in str(refused.value) for other in others)


def test_several_mismatches_are_all_named() -> None:
    with pytest.raises(PolicyError, match=r"pack 'pack', not 'p2'; device .*; tier .*context"):
        table({1: [10.0]}).check(OTHER)


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ([], "holds no cell"),
        ([cell(1, 0), cell(1, 0)], "width 1, depth 0 twice"),
        ([cell(1, 0), cell(1, 1), cell(2, 1)], "no cell for width 2, depth 0"),
        ([cell(1, 0), cell(1, 2)], "no cell for width 1, depth 1"),
        ([cell(1, 0, verify_ms=0.0)], "verify_ms is 0.0"),
        ([cell(1, 0, verify_ms=float("nan"))], "verify_ms is nan"),
        ([cell(1, 0, verify_ms=float("inf"))], "verify_ms is inf"),
        ([cell(1, 0), cell(1, 1, draft_ms=0.0)], "draft_ms is 0.0"),
        ([cell(1, 0), cell(1, 1, draft_ms=-1.0)], "draft_ms is -1.0"),
        ([cell(1, 0, draft_ms=1.0)], "its draft cost is 0"),
        ([cell(1, 0, verify_j=-1.0, draft_j=0.0)], "verify_j is -1.0"),
        ([cell(1, 0, verify_j=1.0)], "verify_j and draft_j are there together"),
        ([cell(1, 0, verify_j=1.0, draft_j=0.0), cell(2, 0)], "joules in 1 of 2 cells"),
        ([cell(0, 0)], "a width is 1 or more"),
    ],
)
def test_a_table_that_cannot_be_is_refused(cells: list[Cell], sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        CostTable(KEY, tuple(cells))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("schema = 1", "schema = 2"), "schema 2, and this mtpx reads schema 1"),
        (("kind = \"cost table\"", 'kind = "calibration"'), "is a calibration, not a cost table"),
        (("verify_ms = 10.0", "verify_ms = nan"), "verify_ms is nan"),
        (("[key]", "[[key]]"), "is not a cost table"),
        (("k = 1", "k = 0"), "nothing is drafted at depth 0"),
        (("[key]", "[key]\nmood = 1"), "mood"),
        (("schema = 1", "schema = ["), "is not a cost table"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused_by_name(
    change: tuple[str, str], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd.table.toml"
    text = table({1: [10.0, 11.0]}).render()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(PolicyError, match=sentence) as refused:
        read_table(path)
    assert str(path) in str(refused.value)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_table_never_leave_a_traceback(data: bytes) -> None:
    with pytest.raises(PolicyError):
        parse_table(data)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot read"):
        read_table(tmp_path / "none.toml")


@given(st.integers(1, 10**6))
def test_every_context_lies_in_exactly_one_bucket(tokens: int) -> None:
    end = context_bucket(tokens)
    assert bucket_start(end) <= tokens <= end
    assert bucket_start(8 * end) == end + 1


def test_tables_of_two_keys_have_two_names() -> None:
    one = table({1: [10.0]})
    other = table({1: [10.0]}, key=msgspec.structs.replace(KEY, device="another"))
    assert one.file_name() != other.file_name()


# -- published ones --------------------------------------------------------------------------------

RAW = b"""
model = "M"
device = "D"
k_logged = 1
cells = [[1, 0, 10.0, 4.0, 0.0, 0.0], [1, 1, 11.0, 5.0, 2.0, 0.5]]
windows = [[60, 40], [50, 50]]
"""


def test_a_table_in_its_publishers_form_is_read_with_its_priors() -> None:
    costs, calibration = parse_published(RAW, "somebody's table")
    assert costs.cells[1] == Cell(1, 1, verify_ms=11.0, draft_ms=2.0, verify_j=5.0, draft_j=0.5)
    assert calibration is not None
    assert calibration.priors == (110 / 200,)


def test_a_published_table_fits_no_engine() -> None:
    costs, calibration = published("gb10-qwen3.8-27b")
    with pytest.raises(PolicyError, match="backend 'not stated', not 'torch'"):
        costs.check(
            TableKey("Qwen3.8-27B NVFP4", "GB10", "torch", "bf16", "nvfp4", "standard", 512)
        )
    with pytest.raises(PolicyError, match="of another head"):
        calibration.check(calibration.head)


@pytest.mark.parametrize("cut", [(b"[1, 0, 10.0, 4.0, 0.0, 0.0], ", b""), (b"60, 40", b"60")])
def test_a_published_table_with_a_hole_is_refused(cut: tuple[bytes, bytes]) -> None:
    with pytest.raises(PolicyError, match="somebody's table"):
        parse_published(RAW.replace(*cut), "somebody's table")


def test_every_shipped_table_says_where_it_is_from() -> None:
    assert "gb10-qwen3.8-27b" in published_names()
    for name in published_names():
        for part in published(name):
            assert part.about["source"]
