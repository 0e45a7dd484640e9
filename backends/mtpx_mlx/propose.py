"""Drafting: the head's multi-row first step, then one row for every further draft.

Every slot has its own keys and values in mlx-lm's caches, so slots step one after another. All of it is one
pending graph, computed together with the forward that verifies it, or, where a chain is asked whether it
goes on, up to there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from mtpx.backend import FloatArray
from mtpx.sampling import USE_DRAFT
from mtpx_mlx.sample import distribution, draw, penalise

if TYPE_CHECKING:
    from mtpx_mlx.head import Head
    from mtpx_mlx.slot import HeadState, MlxSlot


@dataclass(slots=True)
class SlotDrafts:
    """One slot's drafts on the device: `tokens` and `confidence` (k,); at temperature > 0 also the
    distributions they were drawn from, `q` (k, V), and the round's uniforms `u` (k + 1, 3)."""

    tokens: mx.array
    confidence: mx.array
    q: mx.array | None = None
    u: mx.array | None = None


@dataclass(slots=True)
class MlxDrafts:
    """`slots[i]` is `None` where slot i has no draft."""

    slots: list[SlotDrafts | None]
    _read: FloatArray | None = field(default=None, repr=False)

    @property
    def counts(self) -> list[int]:
        return [0 if s is None else s.tokens.shape[0] for s in self.slots]

    @property
    def confidence(self) -> FloatArray:
        if self._read is None:
            out = np.full((len(self.slots), max(self.counts, default=0)), np.nan)
            mx.eval([s.confidence for s in self.slots if s is not None])
            for row, made in zip(out, self.slots, strict=True):
                if made is not None:
                    row[: made.tokens.shape[0]] = np.array(made.confidence)
            self._read = out
        return self._read


class Proposer:
    """Runs the head over a slot."""

    def __init__(self, head: Head) -> None:
        self.head = head

    def flush(self, slot: MlxSlot, state: HeadState, upto: int) -> None:
        """Write the pairs that are ready, up to `upto` - 1, into the head's KV; no output product."""
        first, end = state.ready(slot.pairs)
        if first < min(upto, end):
            self._pairs(slot, state, first, min(upto, end))

    def begin(self, slot: MlxSlot, state: HeadState, u: mx.array | None) -> Drafting:
        """A chain of drafts from the queued pairs (the last one again if none is queued)."""
        first, _ = state.ready(slot.pairs)
        residual = self._pairs(slot, state, min(first, slot.pairs - 1), slot.pairs)[-1:]
        return Drafting(self, slot, state, residual, u)

    def _pairs(self, slot: MlxSlot, state: HeadState, lo: int, hi: int) -> mx.array:
        """Run pairs lo..hi-1, made of target hidden states. → residual (hi - lo, H)."""
        rows = state.rows - max(0, state.key + 1 - lo)
        state.cache.place(rows, lo + 1)
        tokens = mx.array(slot.tokens[lo + 1 : hi + 1])
        residual = self.head.forward(tokens, state.hidden.read(lo, hi), lo, state.cache)
        # Only now: rows of a forward that was broken off are written again.
        state.rows, state.key = rows + hi - lo, hi - 1
        return residual

    def choose(self, logits: mx.array, slot: MlxSlot, made: Drafting, u: mx.array | None) -> None:
        """logits (1, V') → one more draft of `made`: argmax at temperature 0, else drawn.

        The head is penalised and filtered as the target is: not needed for exactness, but a draft
        the target's filters would never pass is a draft wasted.
        """
        head, sampling, vocab = self.head, slot.sampling, self.head.draft_vocab
        scores = logits.astype(mx.float32)
        confidence = scores.max(axis=-1) - mx.logsumexp(scores, axis=-1)
        if sampling.penalised and slot.counts is not None:
            prompt, counts = slot.counts.prompt, slot.counts.rows(made.drafted())[-1:]
            if vocab is not None:
                prompt, counts = prompt[vocab], counts[:, vocab]
            scores = penalise(scores, sampling, prompt, counts)
        q = None
        if sampling.greedy:
            row = mx.argmax(scores, axis=-1)
        else:
            assert u is not None
            q = distribution(scores, sampling)
            row = draw(q, u[len(made.tokens), USE_DRAFT][None])
            if vocab is not None:
                whole = mx.zeros((1, head.vocab), dtype=q.dtype)
                whole[:, vocab] = q
                q = whole
        made.add(head.token_ids(row), confidence, q)


class Drafting:
    """A slot's drafts while they are made; `residual` (1, H) is what the next one is made from."""

    def __init__(
        self,
        proposer: Proposer,
        slot: MlxSlot,
        state: HeadState,
        residual: mx.array,
        u: mx.array | None,
    ) -> None:
        self.tokens: list[mx.array] = []
        self.confidence: list[mx.array] = []
        self.q: list[mx.array] = []
        self._proposer, self._slot, self._state, self._u = proposer, slot, state, u
        self._residual = residual
        self._recycled: mx.array | None = None

    def step(self) -> None:
        """One more draft."""
        head, made = self._proposer.head, len(self.tokens)
        if self._recycled is not None:
            # A provisional row: made from the head's own output, rewritten by the next propose.
            key = self._slot.pairs - 1 + made
            self._residual = head.forward(self.tokens[-1], self._recycled, key, self._state.cache)
        logits, self._recycled = head.outputs(self._residual)
        self._proposer.choose(logits, self._slot, self, self._u)

    def add(self, token: mx.array, confidence: mx.array, q: mx.array | None) -> None:
        self.tokens.append(token)
        self.confidence.append(confidence)
        if q is not None:
            self.q.append(q)

    def drafted(self) -> mx.array:
        return mx.concatenate(self.tokens) if self.tokens else mx.zeros((0,), dtype=mx.uint32)

    def finish(self) -> SlotDrafts:
        q = mx.concatenate(self.q) if self.q else None
        return SlotDrafts(self.drafted(), mx.concatenate(self.confidence), q, self._u)


def newest(drafting: Sequence[Drafting]) -> list[float]:
    """The newest confidence of each chain, computed and read."""
    mx.eval([one.confidence[-1] for one in drafting])
    return [float(np.array(one.confidence[-1])[0]) for one in drafting]
