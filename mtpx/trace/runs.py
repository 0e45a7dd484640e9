"""The record that opens a trace."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib import metadata

from mtpx.backend import EngineInfo
from mtpx.energy import Meter, NoMeter
from mtpx.policy import DepthPolicy
from mtpx.trace.schema import SCHEMA, RunRecord


def run_record(
    info: EngineInfo,
    policy: DepthPolicy,
    *,
    command: str = "",
    meter: Meter | NoMeter | None = None,
) -> RunRecord:
    """What is about to run: the engine, the policy with every parameter, the versions, and what energy
    is measured with or why it is not."""
    return RunRecord(
        schema=SCHEMA,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"mtpx": version(), "python": platform.python_version(), **info.libraries},
        pack=info.pack,
        weights_digest=info.weights_digest,
        head_digest=info.head_digest,
        backend=info.backend,
        device=info.device,
        dtype=info.dtype,
        quantisation=info.quantisation,
        tier=info.tier,
        policy=policy.name,
        policy_parameters=policy.parameters(),
        head_depth_limit=info.head_depth_limit,
        context_limit=info.context_limit,
        threads=int(info.details["threads"]) if "threads" in info.details else None,
        plain_step_bytes=info.plain_step_bytes or None,
        details=dict(info.details),
        command=command,
        meter=meter.rail if isinstance(meter, Meter) else "",
        no_meter=meter.reason if isinstance(meter, NoMeter) else "",
    )


def version() -> str:
    """mtpx's own version."""
    try:
        return metadata.version("mtpx-lm")
    except metadata.PackageNotFoundError:
        return "not installed"
