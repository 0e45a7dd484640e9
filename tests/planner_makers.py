"""Cost tables and calibrations for tests, by hand and by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from mtpx.policy.calibration import EDGES, Calibration, HeadIdentity
from mtpx.policy.table import Cell, CostTable, TableKey

KEY = TableKey("pack", "device", "backend", "float32", "none", "standard", 512)


def table(
    verify: dict[int, Sequence[float]],
    draft: float = 1.0,
    joules: dict[int, Sequence[float]] | None = None,
    *,
    metered: bool = True,
    key: TableKey = KEY,
) -> CostTable:
    """Verify costs by width and depth in ms; `draft` ms a head step. Joules are a tenth of the ms
    unless given (verify joules; a head step then takes a tenth of `draft`)."""
    cells = []
    for n, row in verify.items():
        for k, ms in enumerate(row):
            verify_j = joules[n][k] if joules else ms / 10
            cells.append(
                Cell(
                    n=n,
                    k=k,
                    verify_ms=ms,
                    draft_ms=draft * k,
                    verify_j=verify_j if metered else None,
                    draft_j=draft * k / 10 if metered else None,
                )
            )
    return CostTable(key, tuple(cells))


def by_position(*priors: float) -> Calibration:
    """A calibration that knows positions only."""
    return Calibration(HeadIdentity(""), priors)


def by_confidence(
    accept: Sequence[float] | None = None, priors: Sequence[float] = (0.7,)
) -> Calibration:
    """A calibration whose buckets accept as given (default: 0.05 to 0.95 in ten steps)."""
    rates = accept or [0.05 + 0.1 * i for i in range(10)]
    return Calibration(
        HeadIdentity(""), tuple(priors), EDGES, tuple(rates), (100,) * 10, (50,) * 10
    )


costs = st.floats(0.1, 100.0)
rates = st.floats(0.0, 1.0)
confidence = st.floats(-6.0, 0.0)


@st.composite
def tables(draw: st.DrawFn, metered: bool = True) -> CostTable:
    """Tables with costs that need not rise with anything."""
    widths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True))
    depth = draw(st.integers(0, 4))
    cells = [
        Cell(
            n=n,
            k=k,
            verify_ms=draw(costs),
            draft_ms=draw(costs) if k else 0.0,
            verify_j=draw(costs) if metered else None,
            draft_j=(draw(costs) if k else 0.0) if metered else None,
        )
        for n in widths
        for k in range(depth + 1)
    ]
    return CostTable(KEY, tuple(cells))


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    priors = draw(st.lists(rates, min_size=1, max_size=4))
    accept = sorted(draw(st.lists(rates, min_size=10, max_size=10)))
    return Calibration(
        HeadIdentity("head"), tuple(priors), EDGES, tuple(accept), (0,) * 10, (0,) * 10
    )


drafts_of_a_batch = st.lists(
    st.one_of(
        st.lists(confidence, max_size=4).map(lambda said: (said, len(said))),
        st.integers(0, 4).map(lambda count: ([], count)),
    ),
    min_size=1,
    max_size=4,
)
"""For every sequence its confidences and how many drafts it has."""
