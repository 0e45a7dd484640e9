"""Requests of a run and their totals by arm: tokens, rates, time to the first token, how they ended."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import msgspec

from mtpx.round import SlotRound
from mtpx.trace.anomalies import Anomalies
from mtpx.trace.schema import EndRecord, RequestRecord

MOST_TOKENS = 2**53
"""Larger counts are damaged numbers, and not exact as floating point."""


class RequestTotals(msgspec.Struct):
    """One request. `reuse` is why not more of the prompt was reused, `carry` what became of the head's
    rows, both in words. `rounds`, `drafted`, `verified` and `accepted` are counted from its round records;
    `tokens_per_s` is over `rated_tokens` in `decode_s` (see the end record). `stop` is empty for a
    request that was cut without an end record. `precision`: another one than the run's."""

    id: int
    arm: str
    mode: str
    suite: str
    prompt: str
    warmup: bool
    parked: str
    prompt_tokens: int
    reused_tokens: int
    prefill_ms: float | None
    session: int = 0
    reuse: str = ""
    carry: str = ""
    carry_ms: float | None = None
    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    committed: int = 0
    tokens: int | None = None
    rated_tokens: int = 0
    decode_s: float | None = None
    tokens_per_s: float | None = None
    ttft_ms: float | None = None
    stop: str = ""
    looped: bool | None = None
    error: str = ""
    energy_j: float | None = None
    precision: str = ""


class ArmTotals(msgspec.Struct, frozen=True):
    """The requests of one arm, warm-up left out. `tokens_per_s` is Σ rated tokens / Σ `decode_s`
    over the requests that have a rate; `ttft_ms` and `prefill_ms` are medians over those that have
    one; `accepted_share` is accepted / verified drafts. `energy_j` is absent unless all of them were
    metered, `token_energy_j` is that over their tokens. `weights_gb_s`, for plain runs only: the bytes of
    weights a plain step reads times steps a second, in GB/s, to be held against the memory's bandwidth.
    `stops` counts requests by how they ended,
    `parked` by why they did not speculate."""

    arm: str
    mode: str
    requests: int
    cut: int
    looped: int
    prompt_tokens: int
    reused_tokens: int
    tokens: int
    rounds: int
    decode_s: float
    tokens_per_s: float | None
    ttft_ms: float | None
    prefill_ms: float | None
    tokens_per_round: float | None
    accepted_share: float | None
    energy_j: float | None
    token_energy_j: float | None
    weights_gb_s: float | None
    stops: dict[str, int]
    parked: dict[str, int]


class RequestsTally:
    """Requests of one run, in the order they began."""

    def __init__(self) -> None:
        self.all: list[RequestTotals] = []
        self._open: dict[int, RequestTotals] = {}
        self._index: dict[int, int] = {}

    def begin(self, record: RequestRecord, anomalies: Anomalies) -> None:
        if record.id in self._open:
            anomalies.add("cut request", record.id)
        totals = RequestTotals(
            id=record.id,
            arm=record.arm or record.mode,
            mode=record.mode,
            suite=record.suite,
            prompt=record.prompt,
            warmup=record.warmup,
            parked=record.parked,
            prompt_tokens=record.prompt_tokens,
            reused_tokens=record.reused_tokens,
            prefill_ms=_time(record.prefill_ms),
            session=record.session,
            reuse=record.reuse,
            carry=str(record.carry) if record.carry is not None else "",
            carry_ms=_time(record.carry_ms),
            precision=record.precision,
        )
        self.all.append(totals)
        self._open[record.id] = totals
        self._index.pop(record.id, None)

    def follows(self, index: int, slot: SlotRound, anomalies: Anomalies) -> bool:
        """Whether this round is a new one of its request, later than those before; notes gaps."""
        last = self._index.get(slot.request)
        if last is not None and index <= last:
            anomalies.add("repeated round", index)
            return False
        if last is not None and index > last + 1:
            anomalies.add("missing rounds", last + 1, index - last - 1)
        self._index[slot.request] = index
        return True

    def round(self, slot: SlotRound) -> RequestTotals | None:
        """Count one sequence's share of a round; its request, if that is running."""
        totals = self._open.get(slot.request)
        if totals is not None:
            totals.rounds += 1
            totals.drafted += slot.drafted
            totals.verified += slot.verified
            totals.accepted += slot.accepted
            totals.committed += slot.committed
        return totals

    def end(self, record: EndRecord, anomalies: Anomalies) -> None:
        totals = self._open.pop(record.request, None)
        if totals is None:
            anomalies.add("unknown end", record.request)
            return
        totals.stop = record.stop or "unknown"
        totals.error = record.error
        totals.looped = record.looped
        if record.looped and not totals.warmup:
            anomalies.add("looping output", record.request)
        totals.energy_j = _time(record.energy_j)
        counts = (record.tokens, record.first_tokens, record.tail_tokens)
        times = (record.decode_s, record.ttft_ms)
        if not all(0 <= n <= MOST_TOKENS for n in counts) or any(
            t is not None and _time(t) is None for t in times
        ):
            anomalies.add("bad totals", record.request)
            return
        totals.tokens = record.tokens
        totals.rated_tokens = record.rated_tokens
        totals.decode_s = record.decode_s
        totals.tokens_per_s = _time(record.rate)
        totals.ttft_ms = record.ttft_ms
        if record.tokens > totals.committed:
            anomalies.add("missing tokens", record.request)

    def close(self, anomalies: Anomalies) -> None:
        """The run is over: what is still open was cut."""
        for request in self._open:
            anomalies.add("cut request", request)

    def arms(self, step_bytes: Mapping[str, int | None] | None = None) -> list[ArmTotals]:
        """By arm, the plain ones first, then in the order they appeared. `step_bytes`: bytes of weights one
        plain step reads, by precision ("" is the run's)."""
        sizes = step_bytes or {}
        groups: dict[tuple[str, str], list[RequestTotals]] = {}
        for totals in self.all:
            if not totals.warmup:
                groups.setdefault((totals.mode, totals.arm), []).append(totals)
        return [
            _arm(arm, mode, group, sizes.get(group[0].precision))
            for (mode, arm), group in sorted(groups.items(), key=lambda item: item[0][0] != "plain")
        ]


def _arm(arm: str, mode: str, group: list[RequestTotals], step_bytes: int | None) -> ArmTotals:
    rated = [r for r in group if r.tokens_per_s is not None and r.decode_s is not None]
    seconds = math.fsum(r.decode_s or 0.0 for r in rated)
    rounds = sum(r.rounds for r in group)
    verified = sum(r.verified for r in group)
    joules = [r.energy_j for r in group if r.energy_j is not None]
    tokens = sum(r.tokens if r.tokens is not None else r.committed for r in group)
    energy = math.fsum(joules) if joules and len(joules) == len(group) else None
    speed = sum(r.rated_tokens for r in rated) / seconds if seconds else None
    return ArmTotals(
        arm=arm,
        mode=mode,
        requests=len(group),
        cut=sum(not r.stop for r in group),
        looped=sum(bool(r.looped) for r in group),
        prompt_tokens=sum(r.prompt_tokens for r in group),
        reused_tokens=sum(r.reused_tokens for r in group),
        tokens=tokens,
        rounds=rounds,
        decode_s=seconds,
        tokens_per_s=speed,
        ttft_ms=_median([r.ttft_ms for r in group]),
        prefill_ms=_median([r.prefill_ms for r in group]),
        tokens_per_round=sum(r.committed for r in group) / rounds if rounds else None,
        accepted_share=sum(r.accepted for r in group) / verified if verified else None,
        energy_j=energy,
        token_energy_j=energy / tokens if energy is not None and tokens else None,
        weights_gb_s=(
            speed * step_bytes / 1e9 if mode == "plain" and speed and step_bytes else None
        ),
        stops=_count([r.stop or "cut" for r in group]),
        parked=_count([r.parked for r in group if r.parked]),
    )


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _count(words: list[str]) -> dict[str, int]:
    return {word: words.count(word) for word in sorted(set(words))}


def _time(value: float | None) -> float | None:
    """A time, rate or energy that can be one; `None` for what cannot."""
    return value if value is not None and 0.0 <= value <= 1e12 else None
