"""The torch engine: slots in static buffers, ragged forwards, one synchronisation a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from mtpx.backend import PAIR_QUEUE_LIMIT, Drafts, EngineInfo, Forward, GoOn, Outcome, Slot
from mtpx.chain import among
from mtpx.errors import BackendError
from mtpx.host_slot import OpenSlots, check_opening, no_drafts
from mtpx.outcome import outcome
from mtpx.round import Route
from mtpx.sampling import USE_COMMIT, Sampling, uniforms
from mtpx_torch.cache import SLACK, KVCache, zeros
from mtpx_torch.compiled import CompiledStep
from mtpx_torch.forward import Forwards
from mtpx_torch.frozen import freeze, thaw
from mtpx_torch.judge import judge, read
from mtpx_torch.propose import Proposer, TorchDrafts
from mtpx_torch.sample import Counts, distribution, draw
from mtpx_torch.slot import Flight, TorchSlot
from mtpx_torch.snapshot import Snapshot, adopt, save, settle
from mtpx_torch.timer import Stopwatch

if TYPE_CHECKING:
    from mtpx.frozen import Frozen
    from mtpx_torch.compiling import Compiling
    from mtpx_torch.graphs import Job
    from mtpx_torch.head import Head
    from mtpx_torch.trunk import Trunk

PREFILL_ROWS = 256
"""Most rows of one prefill forward; the attention mask grows with rows × context."""


class TorchEngine:
    """A Llama-family target and its head. See `mtpx.backend` for what each method owes."""

    def __init__(
        self,
        info: EngineInfo,
        trunk: Trunk,
        head: Head | None,
        *,
        width: int,
        pipeline: bool,
        carry: bool = True,
    ) -> None:
        self._info = info
        self.trunk, self.head = trunk, head
        self.width, self.pipeline, self.carry = width, pipeline, carry
        config, like = trunk.config, trunk.embedding
        fixed = info.tier == "row-invariant"

        def cache(layers: int) -> KVCache:
            return KVCache(
                layers,
                width,
                config.kv_heads,
                info.context_limit,
                config.head_dim,
                like.dtype,
                like.device,
            )

        self.cache = cache(config.layers)
        self.proposer: Proposer | None = None
        if head is not None:
            hidden = zeros((width, info.context_limit, config.hidden), like.dtype, like.device)
            own = cache(head.contract.layers)
            self.proposer = Proposer(head, own, hidden, fixed=fixed)
        self.compiled = CompiledStep(trunk, info.context_limit, fixed=fixed)
        self.forwards = Forwards(trunk, self.cache, self.compiled, fixed=fixed)
        self._tickets = 0
        self._open: OpenSlots[TorchSlot] = OpenSlots()
        self._closed = False
        self.compiling: Compiling | None = None

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def device(self) -> torch.device:
        return self.trunk.device

    def jobs(self) -> list[Job[Any]]:
        """The graphs that its compiled route takes."""
        head = [] if self.proposer is None else self.proposer.compiled.jobs()
        return [*self.compiled.jobs(), *head]

    # Slots

    @torch.inference_mode()
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
    ) -> TorchSlot:
        tokens = [int(t) for t in tokens]
        if self.compiling is not None and not self._open:
            self.compiling.look()
            self._info.details["compile"] = self.compiling.state
        check_opening(
            tokens, self._info, opened=len(self._open), width=self.width, closed=self._closed
        )
        slot = TorchSlot(
            engine=self,
            index=min(set(range(self.width)) - {s.index for s in self._open}),
            tokens=tokens,
            prompt=len(tokens),
            sampling=sampling,
            seed=seed,
            request=request,
            end_ids=end_ids,
            head=head and self.proposer is not None,
            session=session,
            ticket=self._ticket(),
        )
        written = self.forwards.begin(slot)
        if written and self.proposer is not None:
            self.proposer.cache.clear(slot.index, written + SLACK)
        adopt(slot, cast("Snapshot | None", reuse), self.cache, self.proposer, carry=self.carry)
        self.forwards.adopted(slot)
        self._open.append(slot)  # last: a slot that is broken off here takes nobody's place
        return slot

    def _ticket(self) -> int:
        """A number that no other slot of this engine has."""
        self._tickets += 1
        return self._tickets

    @torch.inference_mode()
    def rewind(self, slot: TorchSlot, position: int) -> int:
        if position < 1:
            raise BackendError(f"a slot keeps at least one token; asked to rewind to {position}")
        self.drain([slot])
        slot.filled = min(slot.filled, position - 1)
        if (beyond := slot.head_key + 1 - slot.pairs) > 0:
            slot.head_rows = max(0, slot.head_rows - beyond)
            slot.head_key = slot.pairs - 1 if slot.head_rows else -1
        if self.proposer is not None:
            self.proposer.forget(slot, slot.filled)
        del slot.tokens[position:]
        slot.prompt = min(slot.prompt, len(slot.tokens))
        return len(slot.tokens)

    @torch.inference_mode()
    def snapshot(self, slot: TorchSlot) -> Snapshot:
        self.drain([slot])
        return save(slot, self.cache, self.proposer, carry=self.carry)

    def freeze(self, snapshot: object) -> Frozen:
        return freeze(cast(Snapshot, snapshot))

    def thaw(self, frozen: Frozen) -> Snapshot:
        return thaw(frozen, self.cache, self.proposer)

    def release(self, slot: TorchSlot) -> None:
        if slot in self._open:
            slot.flight = None
            self._open.remove(slot)

    def close(self) -> None:
        for slot in list(self._open):
            slot.close()
        if self.compiling is not None:
            self.compiling.stop()
            self.compiling = None
        if not self._closed:
            self._closed = True
            del self.trunk, self.head, self.cache, self.proposer, self.forwards, self.compiled

    # Prefill

    @torch.inference_mode()
    def prefill(self, slot: Slot, max_tokens: int) -> bool:
        mine = self._mine([slot])[0]
        target = len(mine.tokens) - 1
        lo, hi = mine.filled, min(target, mine.filled + max(1, min(max_tokens, PREFILL_ROWS)))
        if lo < hi:
            residual = self.forwards.rows([(mine, mine.tokens[lo:hi], lo)])
            self._keep_hidden([(mine, lo, hi - lo)], residual)
            mine.filled = hi
        # The last pair waits for the first propose, which needs its output.
        head_target = target - 1 if mine.head else 0
        if mine.head and self.proposer is not None:
            first, _ = self.proposer.ready(mine)
            watch = Stopwatch(self.device)
            self.proposer.flush(mine, min(head_target, first + max(1, max_tokens)))
            mine.spend(watch)
            first, end = self.proposer.ready(mine)
            if mine.filled < target or first < min(head_target, end):
                return False
            settle(mine, self.proposer)
        return mine.filled >= target

    # Rounds

    @torch.inference_mode()
    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> TorchDrafts:
        mine = self._mine(slots)
        self.drain(mine)
        watch = Stopwatch(self.device)
        room = [self._room(s, cap) for s, cap in zip(mine, caps, strict=True)]
        active = [i for i, k in enumerate(room) if k > 0]
        drafts = TorchDrafts([None] * len(mine))
        if active and self.proposer is not None:
            u = [self._uniforms(mine[i], room[i]) for i in active]
            asked = None if go_on is None else among(go_on, active, len(mine))
            drafting, caps = [mine[i] for i in active], [room[i] for i in active]
            made, drafts.asked_ns = self.proposer.propose(drafting, caps, u, asked)
            for i, slot_drafts in zip(active, made, strict=True):
                drafts.slots[i] = slot_drafts
        watch.stop()
        drafts.watch = watch
        return drafts

    def _room(self, slot: TorchSlot, cap: int) -> int:
        """Drafts this slot can take now, at most `cap`."""
        if cap <= 0:
            return 0
        if not slot.head:
            raise no_drafts(self._info, has_head=self.proposer is not None)
        limit = min(self._info.head_depth_limit, self._info.context_limit - len(slot.tokens))
        can = self.proposer is not None and self.proposer.drafts(slot)
        return min(cap, limit) if can else 0

    @torch.inference_mode()
    def verify(self, slots: Sequence[Slot], drafts: Drafts, depths: Sequence[int]) -> list[Outcome]:
        return self._round(self._mine(slots), cast(TorchDrafts, drafts), depths)

    @torch.inference_mode()
    def plain(self, slots: Sequence[Slot]) -> list[Outcome]:
        mine = self._mine(slots)
        if self.pipeline and all(s.pipelines for s in mine):
            return self._pipelined(mine)
        return self._round(mine, TorchDrafts([None] * len(mine)), [0] * len(mine))

    def drain(self, slots: Sequence[Slot]) -> None:
        # The step in flight has written a row past `filled` and nothing else: forgetting it is all.
        for slot in self._mine(slots):
            slot.flight = None
            counted = None if slot.counts is None else slot.counts.tokens
            if slot.sampling.penalised and counted != len(slot.tokens):  # not yet, or broken off
                prompt, made = slot.tokens[: slot.prompt], slot.tokens[slot.prompt :]
                slot.counts = Counts.of(prompt, self._info.vocab_size, self.device)
                slot.counts.add(torch.tensor(made, device=self.device).long())

    def _round(
        self, slots: list[TorchSlot], drafts: TorchDrafts, depths: Sequence[int]
    ) -> list[Outcome]:
        self.drain(slots)
        watch = Stopwatch(self.device)
        pieces, work = [], []
        none = torch.zeros(0, dtype=torch.long, device=self.device)
        for slot, made, depth in zip(slots, drafts.slots, depths, strict=True):
            slot.check_ready(self._info)
            tokens = none if made is None else made.tokens[:depth]
            work.append((slot, made, tokens))
            pieces.append((slot, tokens, slot.filled))
        step, route = self.forwards.step(
            [(slot, [slot.tokens[-1], tokens], start) for slot, tokens, start in pieces]
        )
        self._keep_hidden(
            [(s, start, t.shape[0] + 1) for s, t, start in pieces], step.residual, step.normed
        )
        parts, at = [], 0
        for slot, made, tokens in work:
            rows = step.logits[at : at + tokens.shape[0] + 1]
            at += rows.shape[0]
            q, u = (None, self._uniforms(slot, 0)) if made is None else (made.q, made.u)
            part = judge(rows, slot, tokens, q, u)
            if made is not None:
                part["confidence"] = made.confidence
            parts.append(part)
        found = read(parts)
        watch.stop()
        forward = Forward(
            route=route,
            draft_ms=None if drafts.watch is None else drafts.watch.ms(),
            verify_ms=watch.ms(),
            ask_ms=drafts.asked_ns / 1e6 if self.device.type == "cpu" else None,
        )
        outcomes = [outcome(slot, f, forward) for slot, f in zip(slots, found, strict=True)]
        for slot, result in zip(slots, outcomes, strict=True):
            self._commit(slot, result)
        return outcomes

    def _commit(self, slot: TorchSlot, result: Outcome) -> None:
        # In this order: whatever is broken off, no uniform is drawn twice and no state claimed.
        slot.round += 1
        slot.tokens += result.committed
        slot.filled = len(slot.tokens) - 1
        if slot.counts is not None:
            slot.counts.add(torch.tensor(result.committed, device=self.device))
        if slot.head and self.proposer is not None:
            first, end = self.proposer.ready(slot)
            if end - first >= PAIR_QUEUE_LIMIT:
                self.proposer.flush(slot, end)

    # The pipelined plain path

    def _pipelined(self, slots: list[TorchSlot]) -> list[Outcome]:
        """Launch the next step from this step's token, still on the device, then read this one."""
        for slot in slots:
            slot.check_ready(self._info)
        if any(s.flight is None or s.flight.position != s.filled for s in slots):
            self.drain(slots)
            last = [torch.tensor(s.tokens[-1:], device=self.device) for s in slots]
            self._launch(slots, last, ahead=0)
        flights = [s.flight for s in slots]
        assert all(f is not None for f in flights)
        current = cast("list[Flight]", flights)
        can = all(s.filled + 1 < self._info.context_limit for s in slots)
        for slot in slots:
            slot.flight = None
        if can:
            self._launch(slots, [f.token for f in current], ahead=1)
        empty = torch.zeros(0, dtype=torch.long, device=self.device)
        found = read([{"peak": f.peak, "best": f.token, "drafts": empty} for f in current])
        forward = Forward(route=current[0].route)
        outcomes = [outcome(slot, f, forward) for slot, f in zip(slots, found, strict=True)]
        for slot, result in zip(slots, outcomes, strict=True):
            self._commit(slot, result)
            if result.ended:
                slot.flight = None
        return outcomes

    def _launch(self, slots: list[TorchSlot], tokens: list[torch.Tensor], *, ahead: int) -> None:
        """Start a plain step of every slot, `ahead` positions past what the host has committed."""
        starts = [s.filled + ahead for s in slots]
        step, route = self.forwards.step(
            [(s, [t], start) for s, t, start in zip(slots, tokens, starts, strict=True)]
        )
        self._keep_hidden(
            [(s, at, 1) for s, at in zip(slots, starts, strict=True)], step.residual, step.normed
        )
        for i, slot in enumerate(slots):
            row = step.logits[i : i + 1]
            peak, token = row.max(dim=-1)
            if not slot.sampling.greedy:
                u = self._uniforms(slot, 0, ahead)
                assert u is not None
                token = draw(distribution(row, slot.sampling), u[:, USE_COMMIT])
            slot.flight = Flight(starts[i], token, peak, route)

    # Pieces

    def _keep_hidden(
        self,
        pieces: Sequence[tuple[TorchSlot, int, int]],
        residual: torch.Tensor,
        normed: torch.Tensor | None = None,
    ) -> None:
        """Store the hidden states the head is fed, of the flat batch's (slot, position, count)."""
        if self.proposer is None or self.head is None or not any(s.head for s, _, _ in pieces):
            return
        fed = residual
        if self.head.contract.hidden == "after":
            fed = self.trunk.norm(residual) if normed is None else normed
        at = 0
        for slot, start, count in pieces:
            if slot.head:
                self.proposer.keep(slot, start, fed[at : at + count])
            at += count

    def _uniforms(self, slot: TorchSlot, depth: int, ahead: int = 0) -> torch.Tensor | None:
        """(depth + 1, 3) float64 on the device; `None` at temperature 0, which draws nothing."""
        if slot.sampling.greedy:
            return None
        u = uniforms(slot.seed, slot.request, slot.round + ahead, depth)
        return torch.from_numpy(u).to(self.device)

    def _mine(self, slots: Sequence[Slot]) -> list[TorchSlot]:
        mine = [s for s in slots if isinstance(s, TorchSlot) and s in self._open]
        if len(mine) != len(slots):
            raise BackendError("a slot is closed, or belongs to another engine")
        return mine

    def route(self, rows: Sequence[int]) -> Route:
        return self.forwards.route(list(self._open), rows)

    def warm(self, shapes: Sequence[Sequence[int]]) -> None:
        """Nothing: what is compiled was when the engine was loaded, or comes when a slot is opened."""
