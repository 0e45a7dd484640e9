"""The MLX engine: slots over mlx-lm's caches, one pending graph and one evaluation a round.

Slots run one after another inside that graph, since mlx-lm's caches hold one sequence each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import mlx.core as mx

from mtpx.backend import PAIR_QUEUE_LIMIT, Drafts, EngineInfo, Forward, GoOn, Outcome, Slot
from mtpx.chain import Chain
from mtpx.errors import BackendError
from mtpx.host_slot import OpenSlots, check_opening, no_drafts
from mtpx.outcome import outcome
from mtpx.round import Route
from mtpx.sampling import USE_COMMIT, Sampling, uniforms
from mtpx.snapshots import SNAPSHOT_EVERY, snapshot_due
from mtpx_mlx.checkpoints import Checkpoint, bounded
from mtpx_mlx.frozen import freeze, thaw
from mtpx_mlx.judge import judge, peaks, read
from mtpx_mlx.propose import Drafting, MlxDrafts, Proposer, newest
from mtpx_mlx.sample import distribution, draw, to_device
from mtpx_mlx.slot import Flight, HeadState, MlxSlot
from mtpx_mlx.snapshot import Snapshot, adopt, prefill_head, save

if TYPE_CHECKING:
    from mtpx.frozen import Frozen
    from mtpx_mlx.head import Head
    from mtpx_mlx.target import Rows, Target

PREFILL_ROWS = 512
"""Most rows of one prefill forward: enough to be bound by arithmetic, few enough to interrupt."""

P = ParamSpec("P")
T = TypeVar("T")


def _on_device(method: Callable[P, T]) -> Callable[P, T]:
    """Run a method of the engine with its device as MLX's default."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with mx.stream(cast(MlxEngine, args[0]).device):
            return method(*args, **kwargs)

    return run


class MlxEngine:
    """One of mlx-lm's models and its head. See `mtpx.backend` for what each method owes."""

    def __init__(
        self,
        info: EngineInfo,
        target: Target,
        head: Head | None,
        device: mx.Device,
        *,
        width: int,
        pipeline: bool,
        carry: bool = False,
    ) -> None:
        self._info = info
        self.target, self.head, self.device = target, head, device
        self.width, self.pipeline, self.carry = width, pipeline, carry
        self.proposer = None if head is None else Proposer(head)
        self._open: OpenSlots[MlxSlot] = OpenSlots()
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        return self._info

    # Slots

    @_on_device
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
    ) -> MlxSlot:
        tokens = [int(t) for t in tokens]
        check_opening(
            tokens, self._info, opened=len(self._open), width=self.width, closed=self._closed
        )
        slot = MlxSlot(
            engine=self,
            tokens=tokens,
            prompt=len(tokens),
            sampling=sampling,
            seed=seed,
            request=request,
            end_ids=end_ids,
            state=self.target.fresh(),
            held=None if self.head is None else HeadState(),
            headed=head and self.head is not None,
            session=session,
        )
        adopt(slot, cast("Snapshot | None", reuse), carry=self.carry)
        slot.settle()
        self._open.append(slot)  # last: a slot that is broken off here takes nobody's place
        return slot

    @_on_device
    def rewind(self, slot: MlxSlot, position: int) -> int:
        if position < 1:
            raise BackendError(f"a slot keeps at least one token; asked to rewind to {position}")
        slot.settle()
        wanted = min(slot.filled, position - 1)
        slot.filled = slot.state.reach(wanted)
        if slot.filled < wanted:
            position = slot.filled + 1
        slot.settle()
        if slot.held is not None:
            slot.held.cut(slot.pairs)
            slot.held.hidden.forget(slot.filled)
        del slot.tokens[position:]
        slot.prompt = min(slot.prompt, len(slot.tokens))
        return len(slot.tokens)

    @_on_device
    def snapshot(self, slot: MlxSlot) -> Snapshot:
        slot.settle()
        return save(slot, self.proposer, carry=self.carry)

    @_on_device
    def freeze(self, snapshot: object) -> Frozen:
        return freeze(cast(Snapshot, snapshot))

    @_on_device
    def thaw(self, frozen: Frozen) -> Snapshot:
        return thaw(frozen, self.target, self.head)

    def release(self, slot: MlxSlot) -> None:
        if slot in self._open:
            slot.flight = None
            self._open.remove(slot)

    def close(self) -> None:
        for slot in list(self._open):
            slot.close()
        if not self._closed:
            self._closed = True
            del self.target, self.head, self.proposer
            mx.clear_cache()

    # Prefill

    @_on_device
    def prefill(self, slot: Slot, max_tokens: int) -> bool:
        mine = self._mine([slot])[0]
        mine.settle()
        target = len(mine.tokens) - 1
        lo, hi = mine.filled, min(target, mine.filled + max(1, min(max_tokens, PREFILL_ROWS)))
        if mine.session and mine.state.recurrent:
            hi = snapshot_due(hi, lo) or hi
        if lo < hi:
            self._keep_hidden(mine, lo, self.target(mx.array(mine.tokens[lo:hi]), mine.state))
        mine.filled = hi
        mine.state.evaluate()
        mx.eval(self._kept([mine]))
        if lo < hi and mine.session and mine.state.recurrent and hi % SNAPSHOT_EVERY == 0:
            mine.checkpoints = bounded([*mine.checkpoints, Checkpoint.of(mine.state)])
        mx.clear_cache()  # the large intermediate arrays of a prefill are not wanted again
        if mine.head is None or self.proposer is None:
            return hi >= target
        # The last pair waits for the first propose, which needs its output.
        return prefill_head(mine, mine.head, self.proposer, target - 1, max_tokens)

    # Rounds

    @_on_device
    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> MlxDrafts:
        mine = self._mine(slots)
        for slot in mine:
            slot.settle()
        rooms = [self._room(slot, cap) for slot, cap in zip(mine, caps, strict=True)]
        chain = Chain(rooms, go_on)
        drafting: dict[int, Drafting] = {}
        for i in chain.live:
            slot = mine[i]
            if self.proposer is not None and slot.head is not None:
                u = self._uniforms(slot, rooms[i])
                drafting[i] = self.proposer.begin(slot, slot.head, u)
        while chain.live:
            for i in chain.live:
                drafting[i].step()
            chain.step(lambda: newest([drafting[i] for i in chain.live]))
        made = [drafting[i].finish() if i in drafting else None for i in range(len(mine))]
        return MlxDrafts(made)

    def _room(self, slot: MlxSlot, cap: int) -> int:
        """Drafts this slot can take now, at most `cap`."""
        if cap <= 0:
            return 0
        if slot.head is None:
            raise no_drafts(self._info, has_head=self.proposer is not None)
        limit = min(self._info.head_depth_limit, self._info.context_limit - len(slot.tokens))
        return min(cap, limit) if slot.head.drafts(slot.pairs) else 0

    @_on_device
    def verify(self, slots: Sequence[Slot], drafts: Drafts, depths: Sequence[int]) -> list[Outcome]:
        return self._round(self._mine(slots), cast(MlxDrafts, drafts), depths)

    @_on_device
    def plain(self, slots: Sequence[Slot]) -> list[Outcome]:
        mine = self._mine(slots)
        if self.pipeline and all(s.pipelines for s in mine):
            return self._pipelined(mine)
        return self._round(mine, MlxDrafts([None] * len(mine)), [0] * len(mine))

    @_on_device
    def drain(self, slots: Sequence[Slot]) -> None:
        for slot in self._mine(slots):
            slot.settle()

    def _round(
        self, slots: list[MlxSlot], drafts: MlxDrafts, depths: Sequence[int]
    ) -> list[Outcome]:
        parts = []
        for slot, made, depth in zip(slots, drafts.slots, depths, strict=True):
            slot.settle()
            slot.check_ready(self._info)
            last = mx.array(slot.tokens[-1:], dtype=mx.uint32)
            if made is None:
                tokens, q, u = last[:0], None, self._uniforms(slot, 0)
            else:
                tokens, q, u = made.tokens[:depth], made.q, made.u
            rows = self.target(mx.concatenate([last, tokens]), slot.state)
            self._keep_hidden(slot, slot.filled, rows)
            part = judge(rows.logits, slot, tokens, q, u)
            if made is not None:
                part["confidence"] = made.confidence
            parts.append(part)
        forward = Forward(route=self.route([p["drafts"].shape[0] + 1 for p in parts]))
        found = read(parts, self._kept(slots))
        outcomes = [outcome(slot, f, forward) for slot, f in zip(slots, found, strict=True)]
        for slot, result in zip(slots, outcomes, strict=True):
            self._commit(slot, result)
            slot.state.keep(slot.filled)
        return outcomes

    def _commit(self, slot: MlxSlot, result: Outcome) -> None:
        # In this order: whatever is broken off, no uniform is drawn twice and no state claimed.
        slot.round += 1
        slot.tokens += result.committed
        slot.filled = len(slot.tokens) - 1
        if slot.counts is not None:
            slot.counts.add(result.committed)
        if slot.head is not None and self.proposer is not None:
            first, end = slot.head.ready(slot.pairs)
            if end - first >= PAIR_QUEUE_LIMIT:
                self.proposer.flush(slot, slot.head, end)
                mx.async_eval(slot.head.cache.state)

    # The pipelined plain path

    def _pipelined(self, slots: list[MlxSlot]) -> list[Outcome]:
        """Launch the next step from this step's token, still on the device, then read this one."""
        for slot in slots:
            slot.check_ready(self._info)
        if any(s.flight is None or s.flight.position != s.filled for s in slots):
            for slot in slots:
                slot.settle()
            self._launch(slots, [mx.array(s.tokens[-1:]) for s in slots], ahead=0)
        current = [cast(Flight, s.flight) for s in slots]
        can = all(s.filled + 1 < self._info.context_limit for s in slots)
        for slot in slots:
            slot.flight = None
        if can:
            self._launch(slots, [f.token for f in current], ahead=1)
        # Nothing new may be asked for here: it would queue up behind the step just launched.
        found = read([{"peak": f.peak, "best": f.token} for f in current])
        forward = Forward(route=self.route([1] * len(slots)))
        outcomes = [outcome(slot, f, forward) for slot, f in zip(slots, found, strict=True)]
        for slot, result in zip(slots, outcomes, strict=True):
            self._commit(slot, result)
            if result.ended:
                slot.settle()
        return outcomes

    def _launch(self, slots: list[MlxSlot], tokens: list[mx.array], *, ahead: int) -> None:
        """Start a plain step of every slot, `ahead` positions past what the host has committed."""
        for slot, last in zip(slots, tokens, strict=True):
            rows = self.target(last, slot.state, ahead)
            position = slot.filled + ahead
            self._keep_hidden(slot, position, rows)
            if slot.sampling.greedy:
                token = mx.argmax(rows.logits, axis=-1)
            else:
                u = self._uniforms(slot, 0, ahead)
                assert u is not None
                token = draw(distribution(rows.logits, slot.sampling), u[:, USE_COMMIT])
            slot.flight = Flight(position, token, peaks(rows.logits))
        mx.async_eval(
            [[s.flight.token, s.flight.peak] for s in slots if s.flight], self._kept(slots)
        )

    # Pieces

    def _keep_hidden(self, slot: MlxSlot, start: int, rows: Rows) -> None:
        """Store the hidden states the head is fed, of rows at positions from `start`."""
        if slot.head is not None and rows.hidden is not None:
            slot.head.hidden.write(start, rows.hidden)

    def _kept(self, slots: list[MlxSlot]) -> list[mx.array]:
        """What must be computed now lest it hang on to the graphs of past rounds."""
        heads = [s.head for s in slots if s.head is not None]
        return [h.hidden.rows for h in heads if h.hidden.rows is not None]

    def _uniforms(self, slot: MlxSlot, depth: int, ahead: int = 0) -> mx.array | None:
        """(depth + 1, 3) on the device; `None` at temperature 0, which draws nothing."""
        if slot.sampling.greedy:
            return None
        return to_device(uniforms(slot.seed, slot.request, slot.round + ahead, depth))

    def _mine(self, slots: Sequence[Slot]) -> list[MlxSlot]:
        mine = [s for s in slots if isinstance(s, MlxSlot) and s in self._open]
        if len(mine) != len(slots):
            raise BackendError("a slot is closed, or belongs to another engine")
        return mine

    def route(self, rows: Sequence[int]) -> Route:
        return Route("eager")

    def warm(self, shapes: Sequence[Sequence[int]]) -> None:
        """Nothing is compiled or captured on the eager route."""
