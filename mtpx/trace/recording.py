"""A trace turned into something a policy can be driven over: what rounds cost, how often drafts stood.

Only rounds of one sequence are taken (width 1). Costs are those of rounds that followed one of the same
depth. What moves in the course of a run (content, context, a throttling machine) is kept by taking
acceptances and the pace from the rounds nearby.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mtpx.errors import TraceError
from mtpx.round import Round, Route
from mtpx.trace.hindsight import cost_at
from mtpx.trace.rounds import UNCLEAN, valid
from mtpx.trace.schema import EndRecord, Record, RequestRecord, RunRecord

NEARBY = 64
"""Rounds on either side from which acceptance and pace are taken: content changes over paragraphs."""

ANCHOR = 24.0
"""Observations the whole run's acceptance counts for beside those nearby."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recording:
    """The MTP rounds of one run, in order: (R,) arrays, and what was learned from them.

    `offset[i]` tokens had been delivered before round i (over all requests); `stood[i, j]` and
    `judged[i, j]` are acceptance and pace-free counts around round i; `pace[i]` is how slow rounds nearby
    were against their depth's cost. `requests` holds (id, tokens, context at its start, greedy).
    """

    run: RunRecord | None
    requests: list[tuple[int, int, int, bool]]
    offset: Ints
    rates: Floats
    pace: Floats
    costs: dict[int, float]
    draft_ms: dict[int, float]
    routes: dict[int, Route]
    transition: float
    limit: int
    confidences: list[list[tuple[float, bool]]]
    ms: float
    notes: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens, _, _ in self.requests)

    def at(self, token: int) -> int:
        """The recorded round that was under way when this many tokens had been delivered."""
        return max(0, int(np.searchsorted(self.offset, token, side="right")) - 1)

    def cost(self, drafted: int, verified: int) -> tuple[float, bool]:
        """ms of a round that drafts and verifies this many, and whether that is an estimate."""
        ms, estimated = cost_at(self.costs, verified)
        if drafted > verified and self.draft_ms:
            more, _ = cost_at(self.draft_ms, drafted)
            fewer, _ = cost_at(self.draft_ms, verified)
            ms += max(0.0, more - fewer)
        return ms, estimated or drafted > verified


def recording(records: Iterable[Record]) -> Recording:
    """The last run of a trace that has MTP rounds of one sequence, as something to drive over.

    Raises `TraceError` where there are too few of them, or only one depth was run.
    """
    run: RunRecord | None = None
    kept: tuple[RunRecord | None, list[Round], dict[int, RequestRecord]] | None = None
    requests: dict[int, RequestRecord] = {}
    rounds: list[Round] = []
    for record in records:
        if isinstance(record, RunRecord):
            if rounds:
                kept = (run, rounds, requests)
            run, rounds, requests = record, [], {}
        elif isinstance(record, RequestRecord):
            requests[record.id] = record
        elif isinstance(record, EndRecord):
            pass
        elif isinstance(record, Round) and _usable(record, requests):
            rounds.append(record)
    if not rounds and kept is not None:
        run, rounds, requests = kept
    if not rounds:
        raise TraceError(
            "the trace holds no MTP round of a single sequence; there is nothing to replay"
        )
    return _recording(run, rounds, requests)


def _usable(round: Round, requests: dict[int, RequestRecord]) -> bool:
    if len(round.slots) != 1 or not valid(round):
        return False
    slot = round.slots[0]
    request = requests.get(slot.request)
    counts = 0 <= slot.accepted <= slot.verified <= slot.drafted <= round.depth <= 1024
    return (
        counts
        and slot.committed >= 1
        and not (request is not None and (request.warmup or request.mode == "plain"))
    )


def _recording(
    run: RunRecord | None, rounds: list[Round], requests: dict[int, RequestRecord]
) -> Recording:
    depth = np.array([r.slots[0].verified for r in rounds])
    ms = np.array([r.round_ms for r in rounds])
    committed = np.array([r.slots[0].committed for r in rounds])
    ids = np.array([r.slots[0].request for r in rounds])
    compiled = np.array([r.compiled_now for r in rounds])
    settled = np.zeros(len(rounds), dtype=bool)
    settled[1:] = (depth[1:] == depth[:-1]) & (ids[1:] == ids[:-1]) & ~compiled[1:]
    clean = settled & ~np.array(
        [bool(r.decision and r.decision.excluded in UNCLEAN) for r in rounds]
    )
    typical = {
        int(d): float(np.median(ms[of] if (of := clean & (depth == d)).any() else ms[depth == d]))
        for d in np.unique(depth[~compiled])
    }
    if len(typical) < 2:
        only = next(iter(typical), 0)
        raise TraceError(
            f"the trace ran at depth {only} only, so what other depths cost is not in it; "
            "record one that tries several (`--depth auto`)"
        )
    expected = np.array([typical.get(int(d), np.nan) for d in depth])
    ratio = ms / expected
    # Stalls and noise happen to whatever runs; the median does not see them.
    added = float(np.mean(ratio[settled])) if settled.any() else 1.0
    moved = np.zeros(len(rounds), dtype=bool)
    moved[1:] = (depth[1:] != depth[:-1]) & (ids[1:] == ids[:-1]) & ~compiled[1:]
    limit = max(int(depth.max()), run.head_depth_limit if run else 0)
    rates, notes = _rates(rounds, limit)
    drafts = {
        int(d): float(np.median(found))
        for d in np.unique(depth)
        if (found := [r.draft_ms for r in rounds if r.depth == d and r.draft_ms is not None])
    }
    return Recording(
        run=run,
        requests=_requests(rounds, requests),
        offset=np.concatenate([[0], np.cumsum(committed)[:-1]]),
        rates=rates,
        pace=_pace(np.where(settled, ratio, np.nan)),
        costs={d: cost * added for d, cost in typical.items()},
        draft_ms=drafts,
        routes={int(r.slots[0].verified): r.route for r in rounds},
        transition=float(np.median(ratio[moved])) if moved.sum() >= 8 else 1.0,
        limit=limit,
        confidences=_confidences(rounds, limit),
        ms=float(ms[~compiled].sum() + expected[compiled & np.isfinite(expected)].sum()),
        notes=notes,
    )


def _requests(
    rounds: list[Round], requests: dict[int, RequestRecord]
) -> list[tuple[int, int, int, bool]]:
    """(id, tokens, context at the start, greedy) of each stretch of one request's rounds."""
    out: list[tuple[int, int, int, bool]] = []
    for round in rounds:
        slot = round.slots[0]
        if not out or out[-1][0] != slot.request:
            known = requests.get(slot.request)
            greedy = known.sampling.greedy if known is not None else True
            out.append((slot.request, 0, max(0, slot.position), greedy))
        id, tokens, context, greedy = out[-1]
        out[-1] = (id, tokens + slot.committed, context, greedy)
    return out


def _rates(rounds: list[Round], limit: int) -> tuple[Floats, list[str]]:
    """(R, limit) conditional acceptance around each round, and what had to be assumed."""
    judged = np.zeros((len(rounds), limit))
    stood = np.zeros((len(rounds), limit))
    for i, round in enumerate(rounds):
        slot = round.slots[0]
        judged[i, : max(slot.judged, 0)] = 1.0
        stood[i, : slot.accepted] = 1.0
    total, hits = judged.sum(axis=0), stood.sum(axis=0)
    whole = np.zeros(limit)
    notes: list[str] = []
    for j in range(limit):
        if total[j]:
            whole[j] = hits[j] / total[j]
        else:
            whole[j] = whole[j - 1] if j else 0.0
            if not notes:
                notes.append(
                    f"no draft was judged at position {j + 1} or deeper: "
                    f"taken to stand as often as at position {j}"
                    if j
                    else "no draft was judged at all: taken never to stand"
                )
    near_judged, near_stood = _nearby(judged), _nearby(stood)
    return (near_stood + ANCHOR * whole) / (near_judged + ANCHOR), notes


def _nearby(values: Floats) -> Floats:
    """Sums over up to `NEARBY` rows on either side."""
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    i = np.arange(len(values))
    high = np.minimum(i + NEARBY + 1, len(values))
    low = np.maximum(i - NEARBY, 0)
    near: Floats = total[high] - total[low]
    return near


def _pace(ratio: Floats) -> Floats:
    """Median of the ratios nearby, round by round, against that of the run; 1 where none is known."""
    out = np.ones(len(ratio))
    for start in range(0, len(ratio), NEARBY):
        window = ratio[max(0, start - NEARBY // 2) : start + NEARBY + NEARBY // 2]
        known = window[np.isfinite(window)]
        if len(known) >= 8:
            out[start : start + NEARBY] = np.median(known)
    return out / max(float(np.mean(out)), 1e-9)


def _confidences(rounds: list[Round], limit: int) -> list[list[tuple[float, bool]]]:
    """By position: (confidence, whether the draft stood) of the drafts that were judged."""
    pools: list[list[tuple[float, bool]]] = [[] for _ in range(limit)]
    for round in rounds:
        slot = round.slots[0]
        for j, confidence in enumerate((slot.confidences or [])[: max(slot.judged, 0)]):
            if np.isfinite(confidence):
                pools[j].append((confidence, j < slot.accepted))
    return pools
