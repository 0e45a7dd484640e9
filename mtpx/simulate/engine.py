"""A backend without a model: `mtpx.backend.Engine` on a virtual clock.

The target is `Language`, the machine is `Regime`. State is really state: a slot keeps one row a
position for the target and for the head, verify writes rows that a rejection must trim, and propose
writes provisional head rows that must not outlive it. A wrong trim changes every later token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtpx.backend import (
    PAIR_QUEUE_LIMIT,
    Drafts,
    EngineInfo,
    EngineOptions,
    Forward,
    GoOn,
    Outcome,
    Slot,
)
from mtpx.carry import carry_armed
from mtpx.chain import Chain
from mtpx.errors import BackendError, NonFiniteLogits, PromptError
from mtpx.precision import choose_tier
from mtpx.round import Route
from mtpx.sampling import USE_COMMIT, Array, Sampling, accept, distribution, draw, uniforms
from mtpx.simulate.clock import VirtualClock
from mtpx.simulate.head import Draft, Drafting, SimulatedDrafts
from mtpx.simulate.language import Language, mix, token_logprob
from mtpx.simulate.machine import Machine
from mtpx.simulate.regime import Regime
from mtpx.simulate.slot import SimulatedSlot, Snapshot, Step

CONTEXT_LIMIT = 2**20
"""Tokens a slot may hold unless the options say less; a virtual machine has room."""


class SimulatedEngine:
    """An engine over `language` (by default `vocab` tokens of the default one) whose head accepts
    and whose machine costs as `regime` says.

    `checkpoint` > 1 behaves like a recurrent model that can rewind only to every
    `checkpoint`-th position. `seed` is that of the machine's noise and stalls. `timed_apart` says whether
    rounds report draft and verify times. Everything it does advances `clock` and nothing else does.

    For the conformance kit it also answers `force`, `drafted`, `logits`, `pairs` and `poison`.
    """

    def __init__(
        self,
        regime: Regime | None = None,
        *,
        vocab: int = 32,
        clock: VirtualClock | None = None,
        options: EngineOptions | None = None,
        language: Language | None = None,
        seed: int = 0,
        checkpoint: int = 1,
        timed_apart: bool = True,
    ) -> None:
        self.regime = regime or Regime()
        self.language = language or Language(vocab=vocab)
        self.clock = clock or VirtualClock()
        self.options = options or EngineOptions()
        self.checkpoint = checkpoint
        self.timed_apart = timed_apart
        self.carry = carry_armed(self.options.carry, self.options.max_width > 1)
        self.machine = Machine(self.regime, self.clock, seed)
        self._slots: list[SimulatedSlot] = []
        if self.options.max_width < 1 or checkpoint < 1:
            raise BackendError("max_width and checkpoint are 1 or more")

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            pack=f"simulated:{self.regime.name}",
            backend="simulated",
            device="virtual",
            dtype="float64",
            quantisation="none",
            tier=choose_tier(self.options.tier, free=False),
            vocab_size=self.language.vocab,
            context_limit=self.options.context or CONTEXT_LIMIT,
            head_depth_limit=self.regime.depth_limit,
            recurrent=self.checkpoint > 1,
            plain_step_bytes=0,
        )

    # -- slots ---------------------------------------------------------------------------------

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
    ) -> SimulatedSlot:
        ids = [int(t) for t in tokens]
        limit = self.info.context_limit
        if not ids:
            raise PromptError("the prompt holds no tokens; give at least one")
        if len(ids) > limit:
            raise PromptError(f"the prompt holds {len(ids)} tokens, the context {limit}")
        if not all(0 <= t < self.language.vocab for t in ids):
            raise PromptError(f"the prompt holds ids outside 0..{self.language.vocab - 1}")
        if len(self._slots) >= self.options.max_width:
            raise BackendError(
                f"{len(self._slots)} sequences are open and max_width is "
                f"{self.options.max_width}; close one or load with a larger max_width"
            )
        if reuse is not None and not isinstance(reuse, Snapshot):
            raise BackendError("reuse must be a snapshot of this kind of engine")
        slot = SimulatedSlot(self, ids, sampling, seed, request, frozenset(end_ids), head, session)
        slot.adopt(reuse)
        self._slots.append(slot)
        return slot

    def prefill(self, slot: Slot, max_tokens: int) -> bool:
        mine = self._own(slot)
        if max_tokens < 1:
            raise BackendError(f"prefill needs room for 1 token or more, got {max_tokens}")
        missing = len(mine.ids) - 1 - len(mine.states)
        for _ in range(min(missing, max_tokens)):
            self._append_row(mine, mine.ids[len(mine.states)])
        if mine.head:
            for j in range(mine.valid + mine.skipped, len(mine.states)):
                mine.write_pair(mine.ids[j + 1], mine.states[j])
        self.machine.spend(self.regime.prefill_ms * min(missing, max_tokens))
        return len(mine.states) == len(mine.ids) - 1

    def release(self, slot: SimulatedSlot) -> None:
        """Forget a slot; a slot calls this when it is closed."""
        if slot in self._slots:
            self._slots.remove(slot)

    # -- a round -------------------------------------------------------------------------------

    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> SimulatedDrafts:
        mine = self._ready(slots)
        if any(cap < 0 or cap > self.regime.depth_limit for cap in caps):
            raise BackendError(f"caps {list(caps)} leave 0..{self.regime.depth_limit}")
        chain = Chain(caps, go_on)
        drafting = {
            i: Drafting(mine[i], caps[i], self.language, self.regime, self.machine.rounds)
            for i in chain.live
        }
        while chain.live:
            sure = [drafting[i].step() for i in chain.live]
            chain.step(lambda: self._read(sure))  # noqa: B023
        made = [drafting[i].made if i in drafting else Draft([], [], []) for i in range(len(mine))]
        return SimulatedDrafts(
            tokens=[one.tokens for one in made],
            q=[one.q for one in made],
            log_confidence=[one.log_confidence for one in made],
            lengths=[len(slot.ids) for slot in mine],
            draft_ms=self.machine.draft(chain.steps),
            reading=lambda: self._read([]),
        )

    def _read(self, sure: list[float]) -> list[float]:
        """Confidences, on the host: that takes `regime.read_ms`."""
        self.machine.spend(self.regime.read_ms)
        return sure

    def verify(self, slots: Sequence[Slot], drafts: Drafts, depths: Sequence[int]) -> list[Outcome]:
        mine = self._ready(slots)
        if not isinstance(drafts, SimulatedDrafts) or drafts.lengths != [len(s.ids) for s in mine]:
            raise BackendError("these drafts were not proposed for these sequences as they are now")
        if len(depths) != len(mine) or any(
            d < 0 or d > n for d, n in zip(depths, drafts.counts, strict=True)
        ):
            raise BackendError(f"cannot verify {list(depths)} of {drafts.counts} drafts")
        forward = self._forward([d + 1 for d in depths], mine, drafts.draft_ms)
        judged = [
            self._judge(slot, drafts.tokens[i][:depth], drafts.q[i][:depth])
            for i, (slot, depth) in enumerate(zip(mine, depths, strict=True))
        ]
        return [
            self._commit(slot, accepted, committed, rows, forward, drafts.log_confidence[i] or None)
            for i, (slot, (accepted, committed, rows)) in enumerate(zip(mine, judged, strict=True))
        ]

    def plain(self, slots: Sequence[Slot]) -> list[Outcome]:
        mine = self._ready(slots, draining=False)
        forward = self._forward([1] * len(mine), mine, None)
        for slot in mine:
            if slot.flight is None:
                self._launch(slot)
        steps = [slot.flight for slot in mine]
        if any(step is None or not np.isfinite(step.logits).all() for step in steps):
            self.drain(mine)
            raise NonFiniteLogits(self._poisoned_sentence())
        outcomes = []
        for slot, step in zip(mine, steps, strict=True):
            assert step is not None
            slot.flight = None
            outcomes.append(self._commit(slot, 0, [step.token], [step.logits], forward, None))
        if self.options.pipeline:
            for slot, outcome in zip(mine, outcomes, strict=True):
                if len(slot.ids) < self.info.context_limit:
                    self._launch(slot)
                if outcome.ended:
                    slot.discard_flight()
        return outcomes

    def drain(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            self._own(slot).discard_flight()

    # -- routes --------------------------------------------------------------------------------

    def route(self, rows: Sequence[int]) -> Route:
        return self.machine.route(rows)

    def warm(self, shapes: Sequence[Sequence[int]]) -> None:
        for rows in shapes:
            self.machine.compile(rows)

    def close(self) -> None:
        for slot in list(self._slots):
            slot.close()

    # -- what the conformance kit asks for -------------------------------------------------------

    def force(self, slots: Sequence[Slot], drafts: Sequence[Sequence[int]]) -> SimulatedDrafts:
        """Drafts given from outside, each from a point mass, after a real propose of as many."""
        made = self.propose(slots, [len(row) for row in drafts])
        eye = np.eye(self.language.vocab)
        return SimulatedDrafts(
            tokens=[[int(t) for t in row] for row in drafts],
            q=[[eye[t] for t in row] for row in drafts],
            log_confidence=made.log_confidence,
            lengths=made.lengths,
            draft_ms=made.draft_ms,
        )

    def drafted(self, drafts: Drafts) -> list[list[int]]:
        """The token ids of these drafts, one list a slot."""
        if not isinstance(drafts, SimulatedDrafts):
            raise BackendError("these drafts are not the simulated engine's")
        return [list(row) for row in drafts.tokens]

    def logits(self, slot: Slot) -> Array:
        """(V,) raw logits of the next token, from the state the slot holds."""
        (mine,) = self._ready([slot])
        return self.language.logits(mix(mine.last_state(self.language.start), mine.ids[-1]))

    def pairs(self, slot: Slot) -> tuple[int, int, int]:
        """Head rows of this slot: (valid, provisional, queued)."""
        mine = self._own(slot)
        return mine.valid, len(mine.head_rows) - mine.valid, len(mine.queue)

    def poison(self, slot: Slot) -> None:
        """Every further target forward of this slot gives NaN."""
        mine = self._own(slot)
        mine.discard_flight()
        mine.poisoned = True

    # -- inside ----------------------------------------------------------------------------------

    def _own(self, slot: Slot) -> SimulatedSlot:
        if not isinstance(slot, SimulatedSlot) or slot not in self._slots:
            raise BackendError("this sequence is closed, or belongs to another engine")
        return slot

    def _ready(self, slots: Sequence[Slot], *, draining: bool = True) -> list[SimulatedSlot]:
        mine = [self._own(slot) for slot in slots]
        if draining:
            self.drain(mine)
        for slot in mine:
            if len(slot.states) - (slot.flight is not None) != len(slot.ids) - 1:
                raise BackendError("this sequence is not prefilled; call prefill until it is done")
        return mine

    def _forward(
        self, rows: Sequence[int], slots: Sequence[SimulatedSlot], draft_ms: float | None
    ) -> Forward:
        limit = self.info.context_limit
        if any(len(s.ids) + n > limit + 1 for s, n in zip(slots, rows, strict=True)):
            raise PromptError(f"the context of {limit} tokens is full")
        context = max((len(slot.ids) for slot in slots), default=0)
        route, compiled_now, ms = self.machine.forward(rows, context)
        apart = self.timed_apart
        return Forward(route, compiled_now, draft_ms if apart else None, ms if apart else None)

    def _append_row(self, slot: SimulatedSlot, token: int) -> int:
        slot.states.append(mix(slot.last_state(self.language.start), token))
        return slot.states[-1]

    def _target_row(self, slot: SimulatedSlot, token: int) -> Array:
        """Run one row through the target: writes its state, returns the logits after it."""
        logits = self.language.logits(self._append_row(slot, token))
        if slot.poisoned:
            logits[:] = np.nan
        return logits

    def _judge(
        self, slot: SimulatedSlot, drafts: list[int], q: list[Array]
    ) -> tuple[int, list[int], list[Array]]:
        """One slot's share of a verify: its rows, the rule, and the end ids."""
        before = len(slot.states)
        rows = [self._target_row(slot, token) for token in [slot.ids[-1], *drafts]]
        if not all(np.isfinite(row).all() for row in rows):
            del slot.states[before:]
            raise NonFiniteLogits(self._poisoned_sentence())
        history = slot.history()
        p = [
            distribution(row, slot.sampling, history.followed_by(drafts[:j]))
            for j, row in enumerate(rows)
        ]
        u = uniforms(slot.seed, slot.request, slot.round, len(drafts))
        accepted, last = accept(p, q, drafts, u)
        committed = [*drafts[:accepted], last]
        end = next((i for i, t in enumerate(committed) if t in slot.end_ids), accepted)
        committed = committed[: end + 1]
        del slot.states[before + len(committed) :]
        return min(accepted, len(committed)), committed, rows

    def _launch(self, slot: SimulatedSlot) -> None:
        logits = self._target_row(slot, slot.ids[-1])
        token = -1
        if np.isfinite(logits).all():
            p = distribution(logits, slot.sampling, slot.history())
            u = uniforms(slot.seed, slot.request, slot.round, 0)
            token = draw(p, float(u[0, USE_COMMIT]))
        slot.flight = Step(token, logits)

    def _commit(
        self,
        slot: SimulatedSlot,
        accepted: int,
        committed: list[int],
        rows: list[Array],
        forward: Forward,
        confidences: list[float] | None,
    ) -> Outcome:
        for token in committed:
            slot.ids.append(token)
            if slot.head:
                slot.queue.append((token, slot.states[len(slot.ids) - 2]))
                if len(slot.queue) == PAIR_QUEUE_LIMIT:
                    slot.drop_provisional()
                    slot.flush()
        slot.round += 1
        return Outcome(
            accepted=accepted,
            committed=committed,
            forward=forward,
            ended=committed[-1] in slot.end_ids,
            confidences=confidences,
            logprobs=None
            if (top := slot.sampling.logprobs) is None
            else [
                token_logprob(row, token, top) for row, token in zip(rows, committed, strict=False)
            ],
        )

    def _poisoned_sentence(self) -> str:
        return "the target's logits are not finite (NaN or infinite); the weights may be damaged"
