"""Drafting: the head's multi-row first step, then one row a slot for every further draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from mtpx.backend import FloatArray, GoOn
from mtpx.carry import StoreRange, stamped_merge
from mtpx.chain import Chain
from mtpx.sampling import USE_DRAFT
from mtpx_torch.attention import SpanAttention, make_spans
from mtpx_torch.cache import KVCache
from mtpx_torch.compiled_head import CompiledHead
from mtpx_torch.sample import distribution, draw, penalise
from mtpx_torch.timer import Stopwatch

if TYPE_CHECKING:
    from mtpx_torch.head import Head, Scored
    from mtpx_torch.slot import TorchSlot


@dataclass(slots=True)
class SlotDrafts:
    """One slot's drafts on the device: `tokens` and `confidence` (k,); at temperature > 0 also the
    distributions they were drawn from, `q` (k, V), and the round's uniforms `u` (k + 1, 3)."""

    tokens: torch.Tensor
    confidence: torch.Tensor
    q: torch.Tensor | None = None
    u: torch.Tensor | None = None


@dataclass(slots=True)
class TorchDrafts:
    """`slots[i]` is `None` where slot i has no draft. `asked_ns`: what asking between head steps took."""

    slots: list[SlotDrafts | None]
    watch: Stopwatch | None = None
    asked_ns: int = 0
    _read: FloatArray | None = field(default=None, repr=False)

    @property
    def counts(self) -> list[int]:
        return [0 if s is None else s.tokens.shape[0] for s in self.slots]

    @property
    def confidence(self) -> FloatArray:
        if self._read is None and len(self.slots) == 1 and self.slots[0] is not None:
            self._read = np.array([self.slots[0].confidence.tolist()])
        if self._read is None:
            out = np.full((len(self.slots), max(self.counts, default=0)), np.nan)
            made = [s.confidence for s in self.slots if s is not None]
            host = torch.cat(made).double().cpu().numpy() if made else np.zeros(0)
            at = 0
            for i, n in enumerate(self.counts):
                out[i, :n] = host[at : at + n]
                at += n
            self._read = out
        return self._read


class Proposer:
    """Runs the head over slots. `hidden` (width, context, H) is the engine's store of target hidden
    states by absolute position, `stores` the positions held for each slot and whose they are; `cache`
    the head's KV, whose rows are compact: a pair that was skipped leaves none; `compiled` what runs a
    lone sequence's steps once it is made. `fixed`: the shapes of its attention (`make_spans`)."""

    def __init__(self, head: Head, cache: KVCache, hidden: torch.Tensor, *, fixed: bool) -> None:
        self.head, self.cache, self.hidden, self.fixed = head, cache, hidden, fixed
        self.compiled = CompiledHead(head, hidden.shape[1])
        self.stores = [StoreRange()] * hidden.shape[0]

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    def keep(self, slot: TorchSlot, start: int, states: torch.Tensor) -> None:
        """Store the hidden states (count, H) of positions start, start + 1, ..."""
        index, count = slot.index, states.shape[0]
        self.hidden[index, start : start + count] = states
        self.stores[index] = stamped_merge(self.stores[index], slot.ticket, start, count)

    def forget(self, slot: TorchSlot, position: int) -> None:
        """Hidden states from `position` on are no longer those of the slot's tokens."""
        held = self.stores[slot.index]
        self.stores[slot.index] = StoreRange(held.owner, held.lo, min(held.hi, position))

    def ready(self, slot: TorchSlot) -> tuple[int, int]:
        """[first, end) of the pairs that can be written now, after those that are."""
        lo, hi = self.stores[slot.index].visible_to(slot.ticket)
        end = min(hi, slot.pairs)
        return min(max(slot.head_key + 1, lo), end), end

    def drafts(self, slot: TorchSlot) -> bool:
        """Whether the hidden state that the slot's first draft is made from is there."""
        lo, hi = self.stores[slot.index].visible_to(slot.ticket)
        return lo <= slot.pairs - 1 < hi

    def flush(self, slot: TorchSlot, upto: int) -> None:
        """Write the pairs that are ready, up to `upto` - 1, into the head's KV; no output product."""
        first, end = self.ready(slot)
        if first < min(upto, end):
            rows = self._pairs([(slot, first, min(upto, end))])
            self._forward(rows)
            rows.claim()

    def propose(
        self,
        slots: Sequence[TorchSlot],
        caps: Sequence[int],
        uniforms: Sequence[torch.Tensor | None],
        go_on: GoOn | None = None,
    ) -> tuple[list[SlotDrafts], int]:
        """caps[i] ≥ 1 drafts for each slot, from its queued pairs (the last one again if none is); fewer
        where `go_on` ends its chain. → also ns of the host that asking took."""
        pieces = [(s, min(self.ready(s)[0], s.pairs - 1), s.pairs) for s in slots]
        rows = self._pairs(pieces)
        scored = self._scored(rows)
        rows.claim()
        made = [_Growing() for _ in slots]
        chain = Chain(caps, go_on)
        while True:
            live = chain.live
            tokens = self._choose(scored, slots, live, made, uniforms)
            going = chain.step(scored.confidence.tolist)
            if not going:
                break
            recycled = scored.recycled
            if len(going) < len(live):
                keep = torch.tensor([live.index(i) for i in going], device=self.device)
                tokens, recycled = tokens[keep], recycled[keep]
            # A provisional row: made from the head's own output, rewritten by the next propose.
            step = chain.steps
            pieces = [(slots[i], slots[i].pairs + step - 1, slots[i].pairs + step) for i in going]
            spots = [(slots[i].index, slots[i].head_rows - 1 + step, 1) for i in going]
            scored = self._scored(_Rows(tokens, recycled, pieces, spots))
        return [m.finish(u) for m, u in zip(made, uniforms, strict=True)], chain.asked_ns

    def _pairs(self, pieces: list[tuple[TorchSlot, int, int]]) -> _Rows:
        """Pairs lo..hi-1 of each slot, made of target hidden states."""
        ids: list[int] = []
        spots: list[tuple[int, int, int]] = []
        for slot, lo, hi in pieces:
            ids += slot.tokens[lo + 1 : hi + 1]
            row = slot.head_rows - max(0, slot.head_key + 1 - lo)
            spots.append((slot.index, row, hi - lo))
        hidden = [self.hidden[slot.index, lo:hi] for slot, lo, hi in pieces]
        return _Rows(
            torch.tensor(ids, device=self.device),
            hidden[0] if len(hidden) == 1 else torch.cat(hidden),
            pieces,
            spots,
        )

    def _scored(self, rows: _Rows) -> Scored:
        """After the last row of each slot."""
        if len(rows.spots) == 1 and self.compiled.serves(rows.ids.shape[0]):
            ((index, spot, _),), ((_, lo, _),) = rows.spots, rows.pieces
            keys, values = self.cache.of(index)
            return self.compiled.run(rows.ids, rows.hidden, lo + 1, spot, keys[0], values[0])
        residual = self._forward(rows)
        if len(rows.spots) == 1:
            return self.head.scores(residual[-1:])
        ends = np.cumsum([count for _, _, count in rows.spots]) - 1
        return self.head.scores(residual[torch.from_numpy(ends).to(self.device)])

    def _forward(self, rows: _Rows) -> torch.Tensor:
        """Eagerly. → residual (rows, H); the head's cache is written."""
        places = [at for _, lo, hi in rows.pieces for at in range(lo + 1, hi + 1)]
        spans = make_spans(rows.spots, self.head.trunk.group, self.hidden, fixed=self.fixed)
        return self.head.forward(
            self.head.embedding[rows.ids],
            rows.hidden,
            torch.tensor(places, device=self.device),
            SpanAttention(self.cache.keys[0], self.cache.values[0], spans),
        )

    def _choose(
        self,
        scored: Scored,
        slots: Sequence[TorchSlot],
        live: list[int],
        made: list[_Growing],
        uniforms: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:
        """One draft for each live slot: argmax at temperature 0, else drawn. → tokens (live,)."""
        tokens = []
        for at, i in enumerate(live):
            slot, u, here = slots[i], uniforms[i], slice(at, at + 1)
            token, q = scored.tokens[here], None
            if slot.sampling.penalised or not slot.sampling.greedy:
                token, q = self._draw(scored.logits[here], slot, made[i], u)
            tokens.append(token)
            made[i].add(token, scored.confidence[here], q)
        return tokens[0] if len(tokens) == 1 else torch.cat(tokens)

    def _draw(
        self, logits: torch.Tensor, slot: TorchSlot, made: _Growing, u: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """logits (1, V') → a token (1,) and, at temperature > 0, its distribution q (1, V).

        The head is penalised and filtered as the target is: not needed for exactness, but a draft
        the target's filters would never pass is a draft wasted.
        """
        vocab = self.head.draft_vocab
        if slot.sampling.penalised and slot.counts is not None:
            prompt, counts = slot.counts.prompt, slot.counts.rows(made.drafted(logits.device))[-1:]
            if vocab is not None:
                prompt, counts = prompt[vocab], counts[:, vocab]
            logits = penalise(logits, slot.sampling, prompt, counts)
        if slot.sampling.greedy:
            return self.head.token_ids(logits.argmax(dim=-1)), None
        assert u is not None
        q = distribution(logits, slot.sampling)
        row = draw(q, u[len(made.tokens), USE_DRAFT].unsqueeze(0))
        token = self.head.token_ids(row)
        if vocab is not None:
            whole = q.new_zeros(1, self.head.trunk.config.vocab)
            whole[:, vocab] = q
            q = whole
        return token, q


class _Rows(NamedTuple):
    """Rows of the head: ids (rows,), hidden (rows, H), made of pairs lo..hi-1 of each slot (`pieces`) and
    written to so many rows of its cache from the first on (`spots`: index, first, count)."""

    ids: torch.Tensor
    hidden: torch.Tensor
    pieces: list[tuple[TorchSlot, int, int]]
    spots: list[tuple[int, int, int]]

    def claim(self) -> None:
        """Pairs of target hidden states count as written, now that they are: rows of a forward that was
        broken off are written again."""
        for (slot, _, hi), (_, row, count) in zip(self.pieces, self.spots, strict=True):
            slot.head_rows, slot.head_key = row + count, hi - 1


class _Growing:
    """A slot's drafts while they are made."""

    def __init__(self) -> None:
        self.tokens: list[torch.Tensor] = []
        self.confidence: list[torch.Tensor] = []
        self.q: list[torch.Tensor] = []

    def add(self, token: torch.Tensor, confidence: torch.Tensor, q: torch.Tensor | None) -> None:
        self.tokens.append(token)
        self.confidence.append(confidence)
        if q is not None:
            self.q.append(q)

    def drafted(self, device: torch.device) -> torch.Tensor:
        if not self.tokens:
            return torch.zeros(0, dtype=torch.long, device=device)
        return torch.cat(self.tokens)

    def finish(self, u: torch.Tensor | None) -> SlotDrafts:
        q = torch.cat(self.q) if self.q else None
        return SlotDrafts(torch.cat(self.tokens), torch.cat(self.confidence), q, u)
