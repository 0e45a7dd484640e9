"""Drafting: the head's multi-row first step, then one row a slot for every further draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from mtpx.backend import FloatArray, GoOn
from mtpx.carry import StoreRange, stamped_merge
from mtpx.chain import Chain
from mtpx.sampling import USE_DRAFT
from mtpx_torch.attention import Span, make_spans
from mtpx_torch.cache import KVCache
from mtpx_torch.sample import distribution, draw, penalise
from mtpx_torch.timer import Stopwatch

if TYPE_CHECKING:
    from mtpx_torch.head import Head
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
    """`slots[i]` is `None` where slot i has no draft."""

    slots: list[SlotDrafts | None]
    watch: Stopwatch | None = None
    _read: FloatArray | None = field(default=None, repr=False)

    @property
    def counts(self) -> list[int]:
        return [0 if s is None else s.tokens.shape[0] for s in self.slots]

    @property
    def confidence(self) -> FloatArray:
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
    the head's KV, whose rows are compact: a pair that was skipped leaves none. `fixed`: the shapes of
    its attention (`make_spans`)."""

    def __init__(self, head: Head, cache: KVCache, hidden: torch.Tensor, *, fixed: bool) -> None:
        self.head, self.cache, self.hidden, self.fixed = head, cache, hidden, fixed
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
            self._pairs([(slot, first, min(upto, end))])

    def propose(
        self,
        slots: Sequence[TorchSlot],
        caps: Sequence[int],
        uniforms: Sequence[torch.Tensor | None],
        go_on: GoOn | None = None,
    ) -> list[SlotDrafts]:
        """caps[i] ≥ 1 drafts for each slot, from its queued pairs (the last one again if none is); fewer
        where `go_on` ends its chain."""
        pieces = [(s, min(self.ready(s)[0], s.pairs - 1), s.pairs) for s in slots]
        residual = self._pairs(pieces)
        ends = np.cumsum([hi - lo for _, lo, hi in pieces]) - 1
        rows = residual[torch.from_numpy(ends).to(self.device)]
        made = [_Growing() for _ in slots]
        chain = Chain(caps, go_on)
        while True:
            live = chain.live
            logits, recycled = self.head.outputs(rows)
            tokens, confidence = self._choose(logits, slots, live, made, uniforms)
            going = chain.step(confidence.tolist)
            if not going:
                break
            if len(going) < len(live):
                keep = torch.tensor([live.index(i) for i in going], device=self.device)
                tokens, recycled = tokens[keep], recycled[keep]
            # A provisional row: made from the head's own output, rewritten by the next propose.
            step = chain.steps
            spots = [(slots[i].index, slots[i].head_rows - 1 + step, 1) for i in going]
            positions = torch.tensor([slots[i].pairs + step for i in going], device=self.device)
            rows = self.head.forward(tokens, recycled, positions, self._spans(spots), self.cache)
        return [m.finish(u) for m, u in zip(made, uniforms, strict=True)]

    def _pairs(self, pieces: list[tuple[TorchSlot, int, int]]) -> torch.Tensor:
        """Run pairs lo..hi-1 of each slot, made of target hidden states. → residual (rows, H)."""
        ids: list[int] = []
        positions: list[int] = []
        spots: list[tuple[int, int, int]] = []
        for slot, lo, hi in pieces:
            ids += slot.tokens[lo + 1 : hi + 1]
            positions += range(lo + 1, hi + 1)
            row = slot.head_rows - max(0, slot.head_key + 1 - lo)
            spots.append((slot.index, row, hi - lo))
        hidden = [self.hidden[slot.index, lo:hi] for slot, lo, hi in pieces]
        spans = self._spans(spots)
        residual = self.head.forward(
            torch.tensor(ids, device=self.device),
            hidden[0] if len(hidden) == 1 else torch.cat(hidden),
            torch.tensor(positions, device=self.device),
            spans,
            self.cache,
        )
        # Only now: rows of a forward that was broken off are written again.
        for (slot, _, hi), (_, row, count) in zip(pieces, spots, strict=True):
            slot.head_rows, slot.head_key = row + count, hi - 1
        return residual

    def _spans(self, pieces: list[tuple[int, int, int]]) -> list[Span]:
        return make_spans(pieces, self.head.trunk.group, self.hidden, fixed=self.fixed)

    def _choose(
        self,
        logits: torch.Tensor,
        slots: Sequence[TorchSlot],
        live: list[int],
        made: list[_Growing],
        uniforms: Sequence[torch.Tensor | None],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One draft for each live slot: argmax at temperature 0, else drawn. → tokens and confidences,
        (live,) each."""
        peak, best = logits.max(dim=-1)
        confidence = peak - logits.logsumexp(dim=-1)
        greedy = self.head.token_ids(best)
        tokens = []
        for at, i in enumerate(live):
            slot, u = slots[i], uniforms[i]
            token, q = greedy[at : at + 1], None
            if slot.sampling.penalised or not slot.sampling.greedy:
                token, q = self._draw(logits[at : at + 1], slot, made[i], u)
            tokens.append(token)
            made[i].add(token, confidence[at : at + 1], q)
        return tokens[0] if len(tokens) == 1 else torch.cat(tokens), confidence

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
