"""Matched blocks, read from the records of a trace.

A block is four runs on one prompt in the order ABBA or BAAB: A the plain run, B the other arm. Every
field that must be the same in all four is compared here, and a difference is refused, not averaged.
Where plain decode in the fastest precision (C) ran among them, its two runs and the arm's make a second
block; the weights and the prompt are the same there too, the precision is meant to differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from mtpx.bench.design import PLAIN, PlannedBlock
from mtpx.bench.fastest import Fastest, fastest_in
from mtpx.errors import BenchError
from mtpx.trace.schema import EndRecord, Record, RequestRecord, RunRecord

CUT: dict[str, str] = {
    "guard": "a run was cut by the guard",
    "error": "a run ended in an error",
    "interrupt": "the bench was interrupted",
}
"""The stops that void a block, in words."""

NOT_RUN = "the bench ended before all its runs were made"


class BlockRun(msgspec.Struct, frozen=True):
    """One timed run. `rate` in tokens/s (absent where the run was too short for one), `rated_tokens`
    over `seconds` it is; `order` counts runs as they were made; `differs_at` is the first token in
    which it is not the block's first text, `differs_gap` how far apart the two candidates' logits are."""

    place: int
    order: int
    tokens: int
    rated_tokens: int
    seconds: float | None
    rate: float | None
    ttft_ms: float | None
    sha256: str
    looped: bool
    differs_at: int | None
    differs_gap: float | None


class Block(msgspec.Struct, frozen=True):
    """One ABBA or BAAB on one prompt. `against` names the plain arm where that is in another precision, the
    fastest; `void` says why it holds no measurement, if so."""

    pair: int
    arm: str
    suite: str
    prompt: str
    plain: list[BlockRun]
    mtp: list[BlockRun]
    greedy: bool = False
    null: bool = False
    void: str = ""
    against: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The prompt, the unit of the statistics."""
        return self.suite, self.prompt

    @property
    def log_ratio(self) -> float | None:
        """Mean of log(B) minus mean of log(A) over the two runs of each: a linear drift of the
        machine's speed cancels. `None` if the block is void or a run was too short to have a rate."""
        if self.void or len(self.plain) != 2 or len(self.mtp) != 2:
            return None
        logs: list[float] = []
        for plain, mtp in zip(self.plain, self.mtp, strict=True):
            if not plain.rate or not mtp.rate:
                return None
            logs.append(math.log(mtp.rate / plain.rate))
        return math.fsum(logs) / 2

    @property
    def looped(self) -> bool:
        return any(run.looped for run in [*self.plain, *self.mtp])

    @property
    def runs(self) -> list[BlockRun]:
        """All runs in the order of their places."""
        return sorted([*self.plain, *self.mtp], key=lambda run: run.place)


class _Seen(msgspec.Struct):
    process: int
    run: RunRecord | None
    request: RequestRecord
    order: int
    end: EndRecord | None = None


Field = Callable[[_Seen], Any]


def _of_run(name: str) -> Field:
    return lambda seen: getattr(seen.run, name, None)


def _of_request(name: str) -> Field:
    return lambda seen: getattr(seen.request, name)


MATCHED: dict[str, Field] = {
    "pack": _of_run("pack"),
    "weights digest": _of_run("weights_digest"),
    "head digest": _of_run("head_digest"),
    "backend": _of_run("backend"),
    "device": _of_run("device"),
    "dtype": _of_run("dtype"),
    "quantisation": _of_run("quantisation"),
    "process": lambda seen: seen.process,
    "suite": _of_request("suite"),
    "prompt": _of_request("prompt"),
    "prompt hash": _of_request("prompt_sha256"),
    "prompt tokens": _of_request("prompt_tokens"),
    "sampling": _of_request("sampling"),
    "seed": _of_request("seed"),
    "token budget": _of_request("max_tokens"),
    "ignore-eos": _of_request("ignore_eos"),
    "reused tokens": _of_request("reused_tokens"),
}
"""What must be the same in all runs of a block, by the name a refusal gives it."""


def blocks(records: Iterable[Record]) -> list[Block]:
    """The matched blocks of one bench's trace, warm-up runs left out, planned but unmade ones void; those
    against plain decode in the fastest precision after the others.

    Raises `BenchError` when runs that claim to be a pair are not alike (the field is named), when
    places are doubled, or when the design in the trace cannot be read.
    """
    planned: list[PlannedBlock] = []
    pairs: dict[int, list[_Seen]] = {}
    running: dict[int, _Seen] = {}
    run: RunRecord | None = None
    fastest: Fastest | None = None
    process = order = 0
    for record in records:
        if isinstance(record, RunRecord):
            run, process = record, process + 1
            running = {}
            planned += _planned(record)
            fastest = fastest_in(record.design) or fastest
        elif isinstance(record, RequestRecord):
            seen = _Seen(process, run, record, order)
            running[record.id] = seen
            order += 1
            if record.pair is not None and not record.warmup:
                pairs.setdefault(record.pair, []).append(seen)
        elif isinstance(record, EndRecord) and record.request in running:
            running[record.request].end = record
    if fastest is None:
        return _against(PLAIN, None, pairs, planned)
    thirds = [p for p in planned if "C" in p.order]
    return [
        *_against(PLAIN, fastest.arm, pairs, planned),
        *_against(fastest.arm, PLAIN, pairs, thirds),
    ]


def _against(
    base: str, other: str | None, pairs: dict[int, list[_Seen]], planned: list[PlannedBlock]
) -> list[Block]:
    """The blocks of `base` and the arm, sorted, without the runs of `other`."""
    plans = {p.pair: p for p in planned}
    against = "" if base == PLAIN else base
    found = [
        _block(pair, seen, plans.get(pair), base, other)
        for pair, seen in pairs.items()
        if pair in plans or not against
    ]
    found += [
        Block(p.pair, p.arm, p.suite, p.prompt, plain=[], mtp=[], void=NOT_RUN, against=against)
        for p in planned
        if p.pair not in pairs
    ]
    return sorted(found, key=lambda block: block.pair)


def _planned(run: RunRecord) -> list[PlannedBlock]:
    if not run.design:
        return []
    try:
        return msgspec.convert(run.design.get("blocks", []), list[PlannedBlock])
    except msgspec.ValidationError as error:
        raise BenchError(f"the design in the trace's run record cannot be read: {error}") from None


def _block(
    pair: int, every: list[_Seen], plan: PlannedBlock | None, base: str, other: str | None
) -> Block:
    first = every[0]
    for name, value in MATCHED.items():
        values = [value(s) for s in every]
        differing = next((v for v in values if v != values[0]), values[0])
        if differing != values[0]:
            raise BenchError(
                f"the runs of pair {pair} cannot be compared: their {name} differs "
                f"({values[0]!r} and {differing!r}); a pair is the same request, decoded two ways, "
                "by one process"
            )
    places = [s.request.place for s in every]
    allowed = range(len(plan.order) if plan else 4)
    if len(set(places)) != len(places) or not set(places) <= set(allowed):
        raise BenchError(
            f"pair {pair} has its runs at places {places}; a block has places "
            f"{', '.join(map(str, allowed[:-1]))} and {allowed[-1]}, once each"
        )
    seen = [s for s in every if s.request.arm != other]
    arms = {s.request.arm for s in seen} - {base}
    if len(arms) > 1:
        raise BenchError(f"pair {pair} mixes the arms {', '.join(sorted(arms))}; a pair has one")
    plain = [s for s in seen if s.request.arm == base]
    mtp = [s for s in seen if s.request.arm != base]
    return Block(
        pair=pair,
        arm=arms.pop() if arms else plan.arm if plan else "",
        suite=first.request.suite,
        prompt=first.request.prompt,
        plain=[_run(s) for s in sorted(plain, key=lambda s: s.request.place or 0)],
        mtp=[_run(s) for s in sorted(mtp, key=lambda s: s.request.place or 0)],
        greedy=first.request.sampling.greedy,
        null=bool(mtp) and all(s.request.mode == "plain" for s in mtp),
        void=_void(every, seen, len(plain), len(mtp)),
        against="" if base == PLAIN else base,
    )


def _void(every: list[_Seen], seen: list[_Seen], plain: int, mtp: int) -> str:
    """The bench ends with an interrupt or an error, so that either voids whatever else its block holds."""
    for s in every:
        if s.end is None:
            return "a run has no end record: the process was killed"
        if s.end.stop in CUT and (s in seen or s.end.stop != "guard"):
            return CUT[s.end.stop] + (f" ({s.end.error})" if s.end.error else "")
    return "" if plain == mtp == 2 else NOT_RUN


def _run(seen: _Seen) -> BlockRun:
    end = seen.end or EndRecord(request=seen.request.id, tokens=0, stop="")
    return BlockRun(
        place=seen.request.place or 0,
        order=seen.order,
        tokens=end.tokens,
        rated_tokens=end.rated_tokens,
        seconds=end.decode_s,
        rate=end.rate,
        ttft_ms=end.ttft_ms,
        sha256=end.sha256,
        looped=bool(end.looped),
        differs_at=end.differs_at,
        differs_gap=end.differs_gap,
    )
