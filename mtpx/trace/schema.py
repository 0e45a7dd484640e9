"""What a trace holds: JSON Lines, one tagged record a line.

`SCHEMA` is (major, minor). A reader refuses a newer major and ignores unknown fields of a newer
minor. Token ids and text are only there when asked for (`--trace-text`); a prompt is otherwise
known by its hash. Missing is never zero.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mtpx.round import Decision, Round, Route, SlotRound
from mtpx.sampling import Sampling

__all__ = [
    "SCHEMA",
    "BeliefRecord",
    "Decision",
    "EndRecord",
    "Record",
    "RequestRecord",
    "Round",
    "Route",
    "RunRecord",
    "SlotRound",
]

SCHEMA = (1, 0)


class RunRecord(msgspec.Struct, tag="run", omit_defaults=True):
    """Once, first: what ran, where, with what. `started` is wall-clock, ISO 8601 with zone."""

    schema: tuple[int, int]
    started: str
    versions: dict[str, str]
    pack: str
    weights_digest: str
    head_digest: str
    backend: str
    device: str
    dtype: str
    quantisation: str
    tier: str
    policy: str
    policy_parameters: dict[str, Any]
    head_depth_limit: int = 0
    context_limit: int = 0
    threads: int | None = None
    plain_step_bytes: int | None = None
    details: dict[str, str] = {}
    command: str = ""
    margin: float | None = None
    design: dict[str, Any] | None = None


class RequestRecord(msgspec.Struct, tag="request", omit_defaults=True):
    """A request, written when its prefill is done. `mode` is "mtp" or "plain".

    `arm` names the bench arm, `depth` its fixed depth if it has one; `pair` is the id of the
    matched block it belongs to, `suite` and `prompt` name its prompt, `place` its place in the
    block (0..3), `warmup` marks runs outside the verdict. `parked` says why speculation is not
    running if it is not. Every field that must match between the arms of a pair is here.
    """

    id: int
    mode: str
    prompt_tokens: int
    prompt_sha256: str
    max_tokens: int
    sampling: Sampling
    seed: int
    prefill_ms: float | None = None
    session: int = 0
    reused_tokens: int = 0
    carry: str = ""
    parked: str = ""
    arm: str = ""
    depth: int | None = None
    pair: int | None = None
    suite: str = ""
    prompt: str = ""
    place: int | None = None
    warmup: bool = False
    ignore_eos: bool = False
    text: str | None = None


class BeliefRecord(msgspec.Struct, tag="belief", omit_defaults=True):
    """What the policy believed at a round: its own `explain()`, every 64 rounds and at the end."""

    round: int
    policy: str
    belief: dict[str, Any]


class EndRecord(msgspec.Struct, tag="end", omit_defaults=True):
    """A request's end. `tokens` delivered, `decode_s` from first to last delivered token (absent
    under two tokens), `ttft_ms` from opening to the first one. `stop` as `mtpx.decode.Stop`.
    `sha256` is of the delivered token ids, so that two arms' texts compare without being stored.
    `looped` flags repeating output. `error` is the sentence, if one ended it."""

    request: int
    tokens: int
    stop: str
    decode_s: float | None = None
    ttft_ms: float | None = None
    sha256: str = ""
    looped: bool | None = None
    energy_j: float | None = None
    error: str = ""
    text: str | None = None


Record = RunRecord | RequestRecord | Round | BeliefRecord | EndRecord
