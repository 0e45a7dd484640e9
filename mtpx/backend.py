"""The contract between the round loop and a backend.

Shapes use n = width (sequences decoded together) and k = depth (drafts verified). A lone chat is a
batch of one. No module state: two engines may live in one process.

What a slot holds between two calls. `tokens` are all committed token ids, prompt first; the last of
them is *pending*: its own state (KV row, recurrent state) is not computed yet, it is the first row of
the next target forward. With t = len(tokens) the target's state covers positions 0..t-2, and head
pairs (embedding of token j+1, hidden state at j) exist for j = 0..t-2. After a round that accepts a
drafts, a + 1 tokens are committed and the same statement holds again: a rejection leaves the state a
plain run would have.

`mtpx.testing` is the kit that checks an implementation against this page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mtpx.round import Route

if TYPE_CHECKING:
    from mtpx.packs import Pack
    from mtpx.reuse import Reused
    from mtpx.sampling import Sampling

FloatArray = npt.NDArray[np.floating[Any]]

GoOn = Callable[[FloatArray], Sequence[bool]]
"""Confidences of the drafts made so far, (n, j), NaN where a slot has no such draft → whether each slot
makes another."""

COMPILE = ("auto", "now", "background", "off")
"""What can be asked of a backend that compiles: what is kept from before, that or made at once, that or
made beside the decoding, nothing."""

PAIR_QUEUE_LIMIT = 256
"""Head pairs a parked slot may queue before they are flushed into the head's KV."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a backend can run here: `device` in words, or `reason`, the sentence why it cannot.

    `memory` and `memory_free`: bytes of a device that has memory of its own, else `None`. `lacks`: what
    it can do without, in a sentence.
    """

    available: bool
    device: str = ""
    reason: str = ""
    memory: int | None = None
    memory_free: int | None = None
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to load. `None` leaves the choice to the backend.

    `device`: "auto", "cpu", "cuda", ...; `threads`: host threads; `context`: tokens to make room
    for, at most the pack's limit; `max_width`: sequences decoded together (the only width cap);
    `precision`: "auto" or one of `mtpx.precision.PRECISIONS`; `tier`: "standard", "row-invariant", or
    "auto" for the second where it costs next to nothing; `pipeline`: launch the next plain step before this token
    is read (`None`: where the device runs beside the host); `carry`: adopt the head's rows of a session's
    turn before (`mtpx.carry`; never armed with `max_width` above 1); `compile`: one of `COMPILE`, looked at by
    backends that compile ahead; `on_compile(done, total, what)` hears how far that is; `extra`: backend-specific
    settings.
    """

    device: str = "auto"
    threads: int | None = None
    context: int | None = None
    max_width: int = 1
    precision: str = "auto"
    tier: str = "auto"
    pipeline: bool | None = None
    carry: bool = True
    compile: str = "auto"
    on_compile: Callable[[int, int, str], None] | None = None
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is. `dtype` is the precision it runs in, `quantisation` how the file holds the
    weights. `head_depth_limit` is 0 without a head; `plain_step_bytes` counts the bytes of weights
    one plain step reads (the memory roofline's numerator); `details` holds backend facts worth a
    line in a trace (thread counts, kernels chosen)."""

    pack: str
    backend: str
    device: str
    dtype: str
    quantisation: str
    tier: str
    vocab_size: int
    context_limit: int
    head_depth_limit: int
    recurrent: bool
    plain_step_bytes: int
    weights_digest: str = ""
    head_digest: str = ""
    libraries: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)


class Slot(Protocol):
    """One sequence inside an engine."""

    @property
    def tokens(self) -> Sequence[int]:
        """Committed token ids, prompt first; the last one is pending."""
        ...

    @property
    def reused(self) -> Reused:
        """What was taken over from `reuse` when it was opened; the head's part once prefill is done."""
        ...

    def rewind(self, position: int) -> int:
        """Shorten to at most `position` tokens; returns the length reached (≤ position, ≥ 1).

        An engine that cannot restore the exact state at `position` goes further back.
        """
        ...

    def snapshot(self) -> object:
        """A handle that `Engine.open(reuse=...)` accepts; it outlives the slot's later rounds."""
        ...

    def close(self) -> None:
        """Release the slot's state. Closing twice is harmless."""
        ...


class Drafts(Protocol):
    """What `propose` made: `counts[i]` drafts for slot i, k = max(counts)."""

    @property
    def counts(self) -> list[int]: ...

    @property
    def confidence(self) -> FloatArray:
        """(n, k) top-1 of log-softmax over the head's raw logits (temperature 1, before filters and
        penalties), NaN where a slot has no such draft. Reading it synchronises with the device."""
        ...


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a delivered token under the target's raw distribution, and the `top` K."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Forward:
    """How one target forward ran; times in ms, `None` where they would have cost a synchronisation.

    `ask_ms`: of `draft_ms`, what asking between head steps took (0: nobody was asked); `None` where the
    device works beside the host, so that a question waits for it."""

    route: Route = Route()
    compiled_now: bool = False
    draft_ms: float | None = None
    verify_ms: float | None = None
    ask_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One slot's result of a round. `committed` holds `accepted` drafts and one more token (the
    residual or the bonus), or ends with the first end-of-sequence id: then `ended` is true and
    `accepted` counts the drafts up to that id. `logprobs` has one entry a committed token
    where the slot's sampling asks for them."""

    accepted: int
    committed: list[int]
    forward: Forward
    ended: bool = False
    confidences: list[float] | None = None
    logprobs: list[TokenLogprob] | None = None


class Engine(Protocol):
    """A loaded pack on a device."""

    @property
    def info(self) -> EngineInfo: ...

    def open(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        seed: int,
        *,
        request: int = 0,
        end_ids: frozenset[int] = frozenset(),
        head: bool = True,
        session: int = 0,
        reuse: object | None = None,
    ) -> Slot:
        """A slot for this prompt (at least one token); computes nothing.

        `seed` and `request` name the stream of uniforms. A round stops at the first of `end_ids`.
        `head=False` makes a plain run: nothing is queued for the head and nothing flushed.
        `reuse` (a snapshot) lends what it holds of the target for the common prefix of the tokens; the
        head's rows are lent within a `session` only (0: none). Where they are not, the head starts
        with the first position the target computes.
        Raises `MtpxError` when `EngineOptions.max_width` slots are open or the prompt does not fit.
        """
        ...

    def prefill(self, slot: Slot, max_tokens: int) -> bool:
        """Compute at most `max_tokens` further prompt tokens, the head's pairs included; True once
        all but the pending token are in. One interruptible chunk."""
        ...

    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> Drafts:
        """Head steps: up to caps[i] drafts for slot i (0: none). Rows the head wrote from its own
        hidden states are provisional and never survive the next propose.

        `go_on`, where given, is asked after head step j while a slot has room for draft j + 1, with all
        confidences so far; a slot it does not let go on makes no more drafts, and keeps those it has.
        Asking synchronises with the device. `mtpx.chain` is the host's side of it.
        """
        ...

    def verify(self, slots: Sequence[Slot], drafts: Drafts, depths: Sequence[int]) -> list[Outcome]:
        """One target forward over depths[i] + 1 rows a slot, acceptance, commit; one device-to-host
        synchronisation. depths[i] ≤ drafts.counts[i]. Raises `NonFiniteLogits`."""
        ...

    def plain(self, slots: Sequence[Slot]) -> list[Outcome]:
        """Depth 0 for all slots, pipelined where the device allows: at most one step in flight."""
        ...

    def drain(self, slots: Sequence[Slot]) -> None:
        """Discard a step in flight. Engines do this themselves before propose, rewind, snapshot and
        close."""
        ...

    def route(self, rows: Sequence[int]) -> Route:
        """What a target forward over these rows (one entry a slot) would run as now."""
        ...

    def warm(self, shapes: Sequence[Sequence[int]]) -> None:
        """Compile or capture these row shapes now, outside any measured round."""
        ...

    def close(self) -> None:
        """Release the weights and every slot."""
        ...


@runtime_checkable
class Backend(Protocol):
    """What an entry point of the group `mtpx.backends` names: an object, or a class without
    constructor arguments.

    One that computes architectures the core does not know may also have a method
    `reads(model_type: str) -> bool`, asked of a folder's config.json before anything is loaded.
    """

    name: str

    def probe(self, device: str = "auto") -> Probe: ...

    def load(self, pack: Pack, options: EngineOptions) -> Engine: ...


Clock = Callable[[], int]
"""Monotonic nanoseconds. The loop takes one, so that the simulated backend runs on a virtual clock."""
