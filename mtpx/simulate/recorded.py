"""A recorded trace as a scenario: its own costs, its acceptance as it moved. An estimate.

Cost of a depth: median time of its clean full rounds; depths that never ran lie on straight lines between
those that did, and beyond the last one on the line through the last two. Confidence: what it is worth is
calibrated on the whole run (`mtpx.policy.confidence`). Acceptance: by position over
windows of `WINDOW` rounds, each held to the whole run's by `HELD` pseudo-drafts; a position is taken to be as
good as the one before it, by `FEW` pseudo-drafts. Rounds of the widest common width count.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from mtpx.errors import PolicyError
from mtpx.policy.confidence import Calibration
from mtpx.round import Round
from mtpx.simulate.regime import Change
from mtpx.simulate.scenario import Scenario
from mtpx.trace.reader import read
from mtpx.trace.rounds import UNCLEAN
from mtpx.trace.schema import RequestRecord, RunRecord

WINDOW = 64
"""Rounds of one stretch of acceptance: long enough to tell rates, short enough to show content."""

QUANTILES, ENOUGH = 16, 8
"""Equally likely drafts that stand for a position's confidences, and how many were judged for each."""

FEW = 8.0
"""Pseudo-drafts that hold a position to the one before it: a few judged drafts say little."""

HELD = 20.0
"""Pseudo-drafts at the whole run's rate in every window."""


def recorded(path: Path) -> Scenario:
    """The scenario of a trace. Raises `TraceError` if it is none, `PolicyError` if its rounds do not say
    what at least two depths cost and how often drafts stand."""
    rounds, limit = _rounds(path)
    if not rounds:
        raise PolicyError(f"{path} holds no rounds; record a run that drafts")
    width = Counter(round.width for round in rounds).most_common(1)[0][0]
    rounds = [round for round in rounds if round.width == width]
    costs, draft, noise = _costs(rounds)
    deepest = max(costs)
    limit = max(limit, deepest)
    if len(costs) < 2 or limit < 1:
        raise PolicyError(
            f"{path} timed only depth {', '.join(map(str, sorted(costs))) or 'none'}; at least two "
            "depths are needed to price another: record a run with the adaptive policy"
        )
    overall = _rates(rounds, limit, [None] * limit)
    windows = [rounds[i : i + WINDOW] for i in range(0, len(rounds), WINDOW)]
    rates = [_rates(window, limit, list(overall)) for window in windows]
    known = sorted(costs)
    curve = [float(np.interp(d, known, [costs[k] for k in known])) for d in range(limit + 1)]
    a, b = known[-2], known[-1]
    slope = max(0.0, (costs[b] - costs[a]) / (b - a))
    for d in range(b + 1, limit + 1):
        curve[d] = costs[b] + slope * (d - b)
    verify = [max(ms - draft * d, 1e-3) for d, ms in enumerate(curve)]
    return Scenario(
        name=f"{path.name} (estimate)",
        kind="moving",
        width=width,
        acceptance=rates[0],
        cost_ms={width: verify},
        draft_ms=draft,
        noise=noise,
        sure=_sure(rounds, overall),
        changes=[
            Change(at=i * WINDOW, acceptance=after)
            for i, (before, after) in enumerate(pairwise(rates), 1)
            if before != after
        ],
    )


def _rounds(path: Path) -> tuple[list[Round], int]:
    """Rounds of drafting requests, and the head's depth limit."""
    rounds: list[Round] = []
    plain: set[int] = set()
    limit = 0
    for record in read(path):
        if isinstance(record, RunRecord):
            limit = max(limit, record.head_depth_limit)
        elif isinstance(record, RequestRecord) and record.mode == "plain":
            plain.add(record.id)
        elif isinstance(record, Round) and not any(s.request in plain for s in record.slots):
            rounds.append(record)
    return rounds, min(limit, 64)


def _costs(rounds: list[Round]) -> tuple[dict[int, float], float, float]:
    """Median ms of a full round by depth, ms of a head step, relative noise."""
    times: dict[int, list[float]] = {}
    steps: list[float] = []
    for round in rounds:
        excluded = round.decision.excluded if round.decision else ""
        if round.depth and round.draft_ms is not None and 0.0 < round.draft_ms < round.round_ms:
            steps.append(round.draft_ms / round.depth)
        full = all(s.verified == s.drafted == round.depth for s in round.slots)
        clean = not round.compiled_now and excluded not in UNCLEAN and 0.0 < round.round_ms < 1e9
        if full and clean:
            times.setdefault(round.depth, []).append(round.round_ms)
    costs = {d: float(np.median(ms)) for d, ms in times.items()}
    off = [abs(x / costs[d] - 1.0) for d, ms in times.items() for x in ms]
    # 1.4826 makes the median absolute deviation a standard deviation under normal noise.
    noise = min(0.3, 1.4826 * float(np.median(off))) if off else 0.0
    return costs, float(np.median(steps)) if steps else 0.0, noise


def _sure(rounds: list[Round], rates: list[float]) -> list[list[float]]:
    """By position, P(stands) of equally likely drafts, from unsure to sure; of as many positions as were
    judged often enough."""
    calibration = Calibration()
    said: list[list[float]] = [[] for _ in rates]
    for round in rounds:
        for slot in round.slots:
            judged = slot.confidences[: slot.judged] if slot.confidences else []
            calibration.observe(judged, len(judged), slot.accepted)
            for confidences, one in zip(said, judged, strict=False):
                confidences.append(one)
    out = []
    for j, confidences in enumerate(said):
        if len(confidences) < QUANTILES * ENOUGH:
            break
        levels = np.quantile(confidences, (np.arange(QUANTILES) + 0.5) / QUANTILES)
        out.append([calibration.accepts(j, float(c), rates[j]) for c in levels])
    return out


def _rates(rounds: list[Round], limit: int, held: list[float | None]) -> list[float]:
    seen, stood = np.zeros(limit), np.zeros(limit)
    for round in rounds:
        for slot in round.slots:
            seen[: min(limit, slot.judged)] += 1
            stood[: min(limit, slot.accepted)] += 1
    out: list[float] = []
    for i in range(limit):
        prior = held[i]
        if prior is not None:
            rate = (stood[i] + HELD * prior) / (seen[i] + HELD)
        elif out:
            rate = (stood[i] + FEW * out[-1]) / (seen[i] + FEW)
        else:
            rate = stood[i] / max(1.0, seen[i])
        out.append(float(min(1.0, max(0.0, rate))))
    return out
