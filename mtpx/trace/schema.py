"""What a trace holds: JSON Lines, one tagged record a line.

`SCHEMA` is (major, minor). A reader refuses a newer major and ignores unknown fields of a newer
minor. Token ids and text are only there when asked for (`--trace-text`); a prompt is otherwise
known by its hash. Missing is never zero.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mtpx.carry import CarryOutcome
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

SHORTEST_S = 1e-9
"""What clocks count in. Rates over less overflow."""

SCHEMA = (1, 0)


class RunRecord(msgspec.Struct, tag="run", omit_defaults=True):
    """Once, first: what ran, where, with what. `started` is wall-clock, ISO 8601 with zone. `meter` is the
    rail that joules are of, `no_meter` the reason why there are none."""

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
    meter: str = ""
    no_meter: str = ""
    margin: float | None = None
    design: dict[str, Any] | None = None


class RequestRecord(msgspec.Struct, tag="request", omit_defaults=True):
    """A request, written when its prefill is done. `mode` is "mtp" or "plain".

    `arm` names the bench arm, `depth` its fixed depth if it has one; `pair` is the id of the
    matched block it belongs to, `suite` and `prompt` name its prompt, `place` its place in the
    block (0..3, or 0..5 where plain decode in the fastest precision runs in it), `warmup` marks runs outside
    the verdict. `precision` is what it was decoded in where that is not the run's `dtype`. `parked` says why
    speculation is not running if it is not. In a `session` (a hash; 0: none) `reused_tokens` of the prompt
    were not computed again, `reuse` says why not more; `carry` is what became of the head's rows of the turn
    before and `carry_ms` the time that took, where the host knows it. Every field that must match between
    the arms of a pair is here.
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
    reuse: str = ""
    carry: CarryOutcome | None = None
    carry_ms: float | None = None
    parked: str = ""
    arm: str = ""
    depth: int | None = None
    pair: int | None = None
    suite: str = ""
    prompt: str = ""
    place: int | None = None
    warmup: bool = False
    ignore_eos: bool = False
    precision: str = ""
    text: str | None = None


class BeliefRecord(msgspec.Struct, tag="belief", omit_defaults=True):
    """What the policy believed at a round: its own `explain()`, every 64 rounds and at the end."""

    round: int
    policy: str
    belief: dict[str, Any]


class EndRecord(msgspec.Struct, tag="end", omit_defaults=True):
    """A request's end. `tokens` delivered, `first_tokens` of them by the first round and
    `tail_tokens` after an end of sequence that was ignored. `decode_s` is the time from the arrival
    of the first round to the arrival of the last one that is not tail (absent with a single such
    round), so that `rate` counts exactly the tokens that arrived in it. `ttft_ms` is the time from
    opening to the first token. `stop` as `mtpx.decode.Stop`, or "guard": cut by a bench.
    `differs_at` is the index of the first token that is not the one the first run of its block
    delivered there, `differs_gap` how far apart the two candidates' logits are.
    `energy_j` are the joules of all its rounds, prefill left out.
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
    first_tokens: int = 0
    tail_tokens: int = 0
    differs_at: int | None = None
    differs_gap: float | None = None

    @property
    def rated_tokens(self) -> int:
        """Tokens that arrived in `decode_s`: after the first round, before any tail."""
        return max(0, self.tokens - self.first_tokens - self.tail_tokens)

    @property
    def rate(self) -> float | None:
        """Decode rate in tokens/s; `None` where the run was too short to have one."""
        if self.decode_s is None or self.decode_s < SHORTEST_S or self.rated_tokens == 0:
            return None
        return self.rated_tokens / self.decode_s


Record = RunRecord | RequestRecord | Round | BeliefRecord | EndRecord
