"""Short ways to make trace records in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mtpx.round import Round, SlotRound
from mtpx.sampling import Sampling
from mtpx.trace.schema import SCHEMA, EndRecord, Record, RequestRecord, RunRecord
from mtpx.trace.writer import TraceWriter


def run_record(**fields: Any) -> RunRecord:
    known: dict[str, Any] = {
        "schema": SCHEMA,
        "started": "2026-01-01T12:00:00+00:00",
        "versions": {"mtpx": "0.1.0"},
        "pack": "tiny",
        "weights_digest": "0123456789abcdef",
        "head_digest": "",
        "backend": "simulated",
        "device": "virtual",
        "dtype": "float32",
        "quantisation": "",
        "tier": "standard",
        "policy": "fixed",
        "policy_parameters": {"depth": 1},
    }
    return RunRecord(**(known | fields))


def request(id: int = 0, mode: str = "mtp", **fields: Any) -> RequestRecord:
    known: dict[str, Any] = {
        "prompt_tokens": 5,
        "prompt_sha256": "aa",
        "max_tokens": 64,
        "sampling": Sampling(),
        "seed": 0,
    }
    return RequestRecord(id=id, mode=mode, **(known | fields))


def slot(
    verified: int, accepted: int, *, id: int = 0, ended: bool = False, **fields: Any
) -> SlotRound:
    """A slot all of whose drafts are verified; `ended` ends it inside the accepted ones."""
    known = {"drafted": verified, "committed": accepted + (not ended)}
    return SlotRound(
        request=id,
        position=5,
        verified=verified,
        accepted=accepted,
        ended=ended,
        **(known | fields),
    )


def a_round(index: int, *slots: SlotRound, ms: float = 10.0, **fields: Any) -> Round:
    depth = fields.pop("depth", max((s.drafted for s in slots), default=0))
    return Round(
        index=index, start_ns=index * 1000, depth=depth, slots=list(slots), round_ms=ms, **fields
    )


def small_trace() -> list[Record]:
    """One MTP request at depth 1 (accepted 1, 0, 1, 1) and one plain request of five rounds."""
    accepted = [1, 0, 1, 1]
    return [
        run_record(),
        request(0),
        *(a_round(i, slot(1, a), ms=15.0) for i, a in enumerate(accepted)),
        EndRecord(0, tokens=7, stop="length", decode_s=0.045, first_tokens=2, ttft_ms=20.0),
        request(1, "plain"),
        *(a_round(i, slot(0, 0, id=1), ms=10.0) for i in range(5)),
        EndRecord(1, tokens=5, stop="length", decode_s=0.04, first_tokens=1, ttft_ms=15.0),
    ]


def bench_trace(prompts: int = 12) -> list[Record]:
    """A bench in which depth 1 delivers twice the plain rate, with a little spread over prompts."""
    records: list[Record] = [run_record()]
    id = 0
    for pair in range(prompts):
        for place, arm in enumerate(("plain", "depth-1", "depth-1", "plain")):
            mtp = arm != "plain"
            where = {"pair": pair, "place": place, "suite": "chat", "prompt": f"p{pair}"}
            records.append(request(id, "mtp" if mtp else "plain", arm=arm, **where))
            records += [a_round(i, slot(int(mtp), int(mtp), id=id)) for i in range(10)]
            tokens = 20 if mtp else 10
            seconds = 0.09 * (1 + 0.001 * (pair % 3) * mtp)
            records.append(
                EndRecord(
                    id,
                    tokens=tokens,
                    stop="length",
                    decode_s=seconds,
                    first_tokens=tokens // 10,
                    ttft_ms=10.0,
                    sha256="same",
                )
            )
            id += 1
    return records


def written(path: Path, records: list[Record]) -> Path:
    with TraceWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path
