"""Calibrating a head: decode some prompts with drafts on and count which drafts stood.

Also from what was recorded before: `calibrate_traces`. And the check of a plan: what it predicts for
prompts it was not fitted on, against what is then measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from mtpx.backend import Clock
from mtpx.bench.models import BenchModel
from mtpx.bench.timed import PREFILL_CHUNK, settled_heap
from mtpx.decode import Request, decode
from mtpx.errors import PolicyError
from mtpx.measure_prompts import CALIBRATION, CHECK
from mtpx.policy import DepthPolicy, FixedDepth
from mtpx.policy.calibration import Calibration, CalibrationTally, HeadIdentity
from mtpx.policy.measured import MeasuredPlanner
from mtpx.policy.planner import propose_depth
from mtpx.policy.table import context_bucket
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.trace.reader import read
from mtpx.trace.schema import RequestRecord, RunRecord

TOKENS = 96
"""Decoded a prompt: where answers of small models still say something."""

WITHIN = 0.1
"""Relative difference of predicted and measured tokens/s that a check allows."""

Report = Callable[[int, int], None]


def calibrate(
    model: BenchModel,
    depth: int | None = None,
    *,
    prompts: Sequence[str] = CALIBRATION,
    tokens: int = TOKENS,
    progress: Report = lambda done, total: None,
) -> Calibration:
    """The calibration of the model's head: greedy answers at `depth` (default: the head's limit).

    `progress(prompts done, of all)`. Raises `PolicyError` without a head and with too few outcomes.
    """
    info = model.engine.info
    limit = info.head_depth_limit
    if not limit:
        raise PolicyError(f"{model.pack.name} has no MTP head, so there is nothing to calibrate")
    deepest = limit if depth is None else depth
    if not 1 <= deepest <= limit:
        raise PolicyError(
            f"a head that drafts 1 to {limit} tokens cannot be calibrated at {deepest}"
        )
    tally = CalibrationTally()
    for number, prompt in enumerate(prompts):
        progress(number, len(prompts))
        for round in _answer(model, FixedDepth(deepest), prompt, tokens, time.perf_counter_ns):
            tally.add(round)
    progress(len(prompts), len(prompts))
    about = {
        "how": f"greedy, depth {deepest}, {len(prompts)} prompts of up to {tokens} tokens each",
        "pack": info.pack,
    }
    return tally.fit(HeadIdentity.of(info), about)


def calibrate_traces(
    paths: Iterable[str | os.PathLike[str]], progress: Report | None = None
) -> Calibration:
    """The calibration that recorded rounds give, warm-ups left out.

    `progress(bytes read, of all)`, file by file. Raises `PolicyError` where the traces are of
    different heads, of no head, or hold too few judged drafts, and `TraceError` for what is no trace.
    """
    tally = CalibrationTally()
    head: HeadIdentity | None = None
    pack = ""
    names = [str(path) for path in paths]
    for name in names:
        warmups: set[int] = set()
        known = False
        for record in read(name, progress=progress):
            if isinstance(record, RunRecord):
                found = _head_of(record, name)
                if head is not None and found != head:
                    raise PolicyError(
                        f"{name} was recorded with another head than what came before it; calibrate "
                        "one head at a time"
                    )
                head, pack, known = found, record.pack, True
                warmups.clear()
            elif isinstance(record, RequestRecord):
                (warmups.add if record.warmup else warmups.discard)(record.id)
            elif isinstance(record, Round):
                if not known:
                    raise PolicyError(f"{name} does not say which head it was recorded with")
                if not any(slot.request in warmups for slot in record.slots):
                    tally.add(record)
    if head is None:
        raise PolicyError("no trace was given to calibrate from")
    traces = f"{len(names)} trace{'' if len(names) == 1 else 's'}"
    return tally.fit(head, {"how": f"from {traces}", "pack": pack})


class PlanCheck(msgspec.Struct, frozen=True):
    """What the plan predicts and what was measured, over all prompts of the check.

    Tokens/s; tokens a round; ms a round. `difference` is relative: measured / predicted - 1.
    """

    depth: int
    predicted_tokens_per_s: float
    measured_tokens_per_s: float
    predicted_tokens: float
    measured_tokens: float
    predicted_ms: float
    measured_ms: float
    rounds: int

    @property
    def difference(self) -> float:
        return self.measured_tokens_per_s / self.predicted_tokens_per_s - 1.0

    @property
    def holds(self) -> bool:
        return abs(self.difference) <= WITHIN


def check_plan(
    model: BenchModel,
    planner: MeasuredPlanner,
    *,
    prompts: Sequence[str] = CHECK,
    tokens: int = TOKENS,
    clock: Clock = time.perf_counter_ns,
    progress: Report = lambda done, total: None,
) -> PlanCheck:
    """Decode the check's prompts under `planner` and compare with what it predicts for one sequence.

    Only rounds in the bucket of the shortest context count, so that one table says all; the first
    round of every answer is not timed, and the first answer warms up. Raises `PolicyError` where
    there is no table for that bucket or no round left.
    """
    bucket = context_bucket(1)
    table = planner.tables.get(bucket)
    if table is None:
        raise PolicyError(
            f"the check needs the cost table of contexts up to {bucket} tokens; "
            f"`mtpx measure --context {bucket}` makes it"
        )
    limit = model.engine.info.head_depth_limit
    choice = propose_depth(
        table,
        planner.calibration,
        1,
        planner.slack,
        planner.max_width or 1,
        objective=planner.objective,
        limit=limit,
    )
    option = choice.options[choice.depth]
    model.engine.warm([[rows] for rows in range(1, min(limit, table.max_k) + 2)])
    committed = rounds = 0
    ms = 0.0
    with settled_heap():
        for number, prompt in enumerate([prompts[0], *prompts]):
            progress(number, len(prompts) + 1)
            arrived: int | None = None
            for round in _answer(model, planner, prompt, tokens, clock):
                now = round.start_ns + round.round_ms * 1e6
                short = max(s.position for s in round.slots) <= bucket
                if number and arrived is not None and short and not round.compiled_now:
                    committed += round.committed
                    rounds += 1
                    ms += (now - arrived) / 1e6
                arrived = int(now)
    progress(len(prompts) + 1, len(prompts) + 1)
    if not rounds or ms <= 0.0:
        raise PolicyError("the check's answers were too short to be timed")
    return PlanCheck(
        depth=choice.depth,
        predicted_tokens_per_s=option.tokens_per_s,
        measured_tokens_per_s=committed / ms * 1e3,
        predicted_tokens=option.tokens,
        measured_tokens=committed / rounds,
        predicted_ms=option.ms,
        measured_ms=ms / rounds,
        rounds=rounds,
    )


def _answer(
    model: BenchModel, policy: DepthPolicy, prompt: str, tokens: int, clock: Clock
) -> Iterator[Round]:
    """The rounds of a greedy answer, ended by the model or by its budget."""
    engine = model.engine
    ids = _encoded(model, prompt)
    slot = engine.open(ids, Sampling(), 0, end_ids=model.end_ids)
    try:
        while not engine.prefill(slot, PREFILL_CHUNK):
            pass
        room = engine.info.context_limit - len(ids)
        request = Request(0, slot, Sampling(), min(tokens, room))
        yield from decode(engine, policy, [request], clock=clock)
    finally:
        slot.close()


def _encoded(model: BenchModel, prompt: str) -> list[int]:
    """The prompt as a chat, or as text where the model has no chat template."""
    if getattr(model, "template", True) is None:
        return list(model.encode(prompt))
    return list(model.encode([{"role": "user", "content": prompt}]))


def _head_of(record: RunRecord, name: str) -> HeadIdentity:
    if not record.head_depth_limit:
        raise PolicyError(f"{name} was recorded with a pack that has no MTP head")
    return HeadIdentity(record.head_digest, None, record.quantisation)
