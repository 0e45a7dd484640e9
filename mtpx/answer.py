"""An answer and its figures, as programs get them and `mtpx run --json` prints them."""

from __future__ import annotations

from typing import Literal

import msgspec

from mtpx.decode import Stop
from mtpx.reuse import Reused
from mtpx.sampling import Sampling


class Position(msgspec.Struct, frozen=True):
    """Acceptance at one draft position: `reached` drafts were judged there (all before them stood),
    `accepted` of them stood; `rate` is accepted / reached."""

    reached: int
    accepted: int
    rate: float | None


class Logprob(msgspec.Struct, frozen=True):
    """A delivered token, its log-probability under the target's raw distribution, its rivals."""

    token: int
    text: str
    logprob: float
    top: list[tuple[int, str, float]]


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer and its figures. Also the JSON of `mtpx run --json`, key by key (docs/json.md).

    - `text`; `token_ids` it is made of and `tokens`, how many. An end-of-sequence token is one of
      them; what a stop string cut off is not, though the token the cut falls into is.
    - `prompt_tokens`, the chat template's included.
    - `tok_s`: every token decoded after the first round, over the time from the first round's
      arrival to the last one's; absent where there is only one. Tokens after an ignored end of
      sequence do not count. `prefill_ms`; `ttft_ms`: opening to first token.
    - `rounds`: target forwards. `accepted_per_position`: see `Position`; empty without drafts.
    - `stop`: "end", "length" (the token budget), "context" (it is full), "stop" (a stop string),
      "interrupt" (Ctrl-C, or nobody asked for more) or "error".
    - `depth` asked for, a number or "auto"; the `policy` that chose; `mean_depth`, drafts verified a
      round (absent without rounds). `speculation`: "on", or why nothing was drafted.
    - `pack`, `backend`, `device`, `seed`, `sampling`.
    - `energy_j`: joules of all rounds, prefill left out; absent without a meter.
    - `looped`: the text repeats itself. `logprobs` where asked for, one a token.
    - `reused`: what of an earlier turn was not computed again; absent outside conversations.
    """

    text: str
    tokens: int
    token_ids: list[int]
    prompt_tokens: int
    tok_s: float | None
    prefill_ms: float | None
    ttft_ms: float | None
    rounds: int
    accepted_per_position: list[Position]
    stop: Stop
    depth: int | Literal["auto"]
    speculation: str
    pack: str
    backend: str
    device: str
    seed: int
    sampling: Sampling
    policy: str = ""
    mean_depth: float | None = None
    energy_j: float | None = None
    looped: bool = False
    logprobs: list[Logprob] | None = None
    reused: Reused | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def token_energy_j(self) -> float | None:
        """Joules a token; `None` without a meter."""
        return self.energy_j / self.tokens if self.energy_j is not None and self.tokens else None
