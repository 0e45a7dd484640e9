"""Rollback of GatedDeltaNet layers: after a rejection their state is that of a plain run.

Such a layer holds, instead of keys and values, one matrix S a value head and the last few inputs of
a short convolution. Every row changes all of S, so rejected rows cannot be cut off; what can be done
is to keep each row's S, or to keep S before the rows, and the rows, and run the accepted ones again.

Memory traffic decides. A 27B Qwen3.5 has 48 such layers of 48 value heads of 128 × 128 float32:
48 · 48 · 128 · 128 · 4 bytes = 151 MB of S. A forward of plain decoding reads and writes it: 302 MB. With
a row's k and v (16 and 48 heads of 128, 16 bit) 16 kB a layer, nothing else here is worth counting. A
round of r = depth + 1 rows then moves

- keeping each row's S: 302 · r MB with one call a row, (1 + r) · 151 MB with a kernel that writes it
  r times (r = 4: 1208 or 755), and r · 151 MB stay allocated a sequence;
- replaying: 302 MB for the accepted rows and 302 MB for the new ones, whatever the depth: 604; 302
  after a round in which everything was accepted, since the state after all rows is there. 302 MB
  stay allocated.

So the rows are replayed, at the start of the next forward and in its graph: they are k, v and the
gates, past the projections, so no weight is read for it, and nothing is computed if no forward
follows. 604 MB are 4 % of the 15 GB of weights such a model reads a round at 4 bits. (On a CPU,
where a row's S exists anyway, replaying costs the accepted rows' arithmetic; the CPU is for tests.)

The layers are mlx-lm's own, called through `DeltaMixer`, which does what their `__call__` does and
keeps the rows. Shapes: n rows of one sequence, C channels of the convolution, kernel size K.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from mtpx_mlx.models import light

REPLAYED_ROWS = 65
"""Rows of a forward that are kept for a replay: the deepest round there is. A longer forward is a
piece of a prompt, whose rows all stand."""

_KINDS = ("qwen3_5", "qwen3_next")
"""mlx-lm's modules whose GatedDeltaNet is written as `DeltaMixer` computes it."""


class Held(NamedTuple):
    """A layer's state: the convolution's last inputs (1, K - 1, C) and S (1, heads, V, K)."""

    window: mx.array
    state: mx.array | None


class Ran(NamedTuple):
    """Rows that ran on a held state: inputs of the convolution (1, n, C), and what went into S."""

    inputs: mx.array
    k: mx.array
    v: mx.array
    a: mx.array
    b: mx.array


class Step(NamedTuple):
    """A forward over the `length` positions from `first`: the state before it, its rows, unless they are
    too many to be run again, and the state after it, if it is known."""

    first: int
    length: int
    before: Held
    rows: Ran | None
    after: Held | None


class DeltaCache:
    """What a `DeltaMixer` reads and writes of one sequence. `at`: the positions that the next forward
    follows on; `floor`: how many of them stand whatever becomes of the rest.

    `steps` are the forwards that can be taken back, oldest first; those from `at` on no longer count.
    It changes in one assignment, so that a forward which is broken off has either run here or not."""

    def __init__(self) -> None:
        self.at = self.floor = 0
        self.steps: tuple[Step, ...] = ()

    def step(self, positions: int) -> Step | None:
        """The forward that the state after so many positions is told by; `None`: nothing has run."""
        return next((s for s in reversed(self.steps) if s.first <= positions), None)

    def add(self, step: Step) -> None:
        """A forward has run. Of those before it stay the ones that lead back to `floor`."""
        older = (s for s in self.steps if self.floor <= s.first < step.first)
        self.steps = (*older, step)

    @property
    def state(self) -> list[mx.array]:
        """Every array held, for an evaluation."""
        parts = [part for s in self.steps for part in (s.before, s.rows, s.after)]
        return [array for part in parts if part is not None for array in part if array is not None]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.state)


class DeltaMixer(nn.Module):
    """A GatedDeltaNet of mlx-lm whose rows can be taken back. Weights and result are the layer's."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        delta = light("models.gated_delta")
        self._normalised, self._recurrence = delta.normalize_qk, delta.gated_delta_update

    def __call__(self, x: mx.array, mask: Any = None, cache: DeltaCache | None = None) -> mx.array:
        """x (1, n, H) → (1, n, H)."""
        layer, n = self.layer, x.shape[1]
        if cache is None:
            return layer(x, mask, None)
        held = self._standing(cache, x.dtype)
        inputs, z, a, b = self._projected(x)
        q, k, v = self._convolved(mx.concatenate([held.window, inputs], axis=1))
        out, state = self._update(q, k, v, a, b, held.state)
        after = Held(_slid(held.window, inputs), state)
        rows = Ran(inputs, k, v, a, b) if n <= REPLAYED_ROWS else None
        cache.add(Step(cache.at, n, held, rows, after))
        return layer.out_proj(layer.norm(out, z).reshape(1, n, -1))

    def _standing(self, cache: DeltaCache, dtype: mx.Dtype) -> Held:
        """The state after the rows that stand."""
        layer, step = self.layer, cache.step(cache.at)
        if step is None:
            return Held(mx.zeros((1, layer.conv_kernel_size - 1, layer.conv_dim), dtype), None)
        held, rows = standing(step, cache.at)
        if rows is None:
            return held
        _, state = self._update(rows.k, rows.k, rows.v, rows.a, rows.b, held.state)
        return Held(_slid(held.window, rows.inputs), state)

    def _projected(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """→ the convolution's inputs (1, n, C), the output's gate z, the gates a and b."""
        layer, (_, n, _) = self.layer, x.shape
        if "in_proj_qkv" in layer:
            z = layer.in_proj_z(x).reshape(1, n, layer.num_v_heads, layer.head_v_dim)
            return layer.in_proj_qkv(x), z, layer.in_proj_a(x), layer.in_proj_b(x)
        q, k, v, z, b, a = layer.fix_query_key_value_ordering(
            layer.in_proj_qkvz(x), layer.in_proj_ba(x)
        )
        return mx.concatenate([t.reshape(1, n, -1) for t in (q, k, v)], axis=-1), z, a, b

    def _convolved(self, inputs: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """inputs (1, K - 1 + n, C) → q, k (1, n, key heads, D) normalised, v (1, n, value heads, D)."""
        layer = self.layer
        out = nn.silu(layer.conv1d(inputs))
        n, keys = out.shape[1], layer.key_dim
        q = out[..., :keys].reshape(1, n, layer.num_k_heads, layer.head_k_dim)
        k = out[..., keys : 2 * keys].reshape(q.shape)
        v = out[..., 2 * keys :].reshape(1, n, layer.num_v_heads, layer.head_v_dim)
        return *self._normalised(q, k, inv_scale=layer.head_k_dim**-0.5, eps=1e-6), v

    def _update(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        a: mx.array,
        b: mx.array,
        state: mx.array | None,
    ) -> tuple[mx.array, mx.array]:
        """mlx-lm's recurrence over the rows, its Metal kernel where there is one. → (outputs, S)."""
        layer = self.layer
        out, after = self._recurrence(q, k, v, a, b, layer.A_log, layer.dt_bias, state)
        return out, after


class DeltaLayer:
    """The `LayerState` of a GatedDeltaNet: any of the last forward's rows can be taken back, and what
    ran before it only as far as `ahead` asked for."""

    why_plain = ""

    def __init__(self, cache: DeltaCache) -> None:
        self.cache = cache
        self._now = 0

    def begin(self, before: int, rows: int, ahead: int = 0) -> None:
        self.cache.at, self.cache.floor = before, before - ahead
        self._now = before + rows

    def keep(self, positions: int) -> None:
        self._now = positions

    def reach(self, positions: int) -> int:
        if positions >= self._now:
            return self._now
        step = self.cache.step(positions)
        if step is None:
            return 0
        return (
            step.first if step.rows is None and positions < step.first + step.length else positions
        )

    def standing(self) -> tuple[Held, Ran | None]:
        """A state held whole and the rows to run on it: together the state after the rows that stand.
        Something has been computed."""
        step = self.cache.step(self._now)
        assert step is not None
        return standing(step, self._now)

    @classmethod
    def after(cls, positions: int, held: Held, rows: Ran | None) -> DeltaLayer:
        """A layer of `positions` positions, the last of which are `rows`, to run on `held`."""
        cache = DeltaCache()
        count = 0 if rows is None else rows.inputs.shape[1]
        cache.steps = (Step(positions - count, count, held, rows, None),)
        layer = cls(cache)
        layer._now = positions
        return layer

    def copy(self) -> DeltaLayer:
        twin = DeltaLayer(copy.copy(self.cache))
        twin._now = self._now
        step = self.cache.step(self._now)
        if (
            step is not None
            and step.rows is None
            and step.after is not None
            and self._now > step.first
        ):
            # Nobody goes back in a piece of a prompt that stands: only its end is kept.
            twin.cache.steps = (Step(self._now, 0, step.after, None, None),)
        return twin


def standing(step: Step, positions: int) -> tuple[Held, Ran | None]:
    """The state after `positions` positions, which the step reaches, and the rows to run on it yet."""
    r = positions - step.first
    if r == 0:
        return step.before, None
    if step.after is not None and (step.rows is None or r == step.length):
        return step.after, None
    assert step.rows is not None
    return step.before, Ran(*(part[:, :r] for part in step.rows))


def make_replayable(model: Any) -> None:
    """Put a `DeltaMixer` before every GatedDeltaNet of the model that it can compute."""
    for layer in model.layers:
        mixer = getattr(layer, "linear_attn", None)
        if mixer is not None and type(mixer).__module__.rpartition(".")[2] in _KINDS:
            layer.linear_attn = DeltaMixer(mixer)


def replayable_caches(model: Any, caches: list[Any]) -> list[Any]:
    """mlx-lm's caches of the model's layers, with a `DeltaCache` for every `DeltaMixer`."""
    return [
        DeltaCache() if isinstance(getattr(layer, "linear_attn", None), DeltaMixer) else cache
        for layer, cache in zip(model.layers, caches, strict=True)
    ]


def _slid(window: mx.array, inputs: mx.array) -> mx.array:
    """The convolution's last inputs after these rows: a copy, so that the rows can be let go."""
    both = mx.concatenate([window, inputs], axis=1)
    return mx.contiguous(both[:, -window.shape[1] :])
