"""The target: one of mlx-lm's own models, run over a slot's rows.

mlx-lm's text models all call as `model(tokens, cache)` and give logits. A head also needs the trunk's
hidden states, so with a head the model is run in its two parts: the trunk (`model.model`), which
ends in the final norm, and the output product. The parts are compared with the whole once at load,
since some models do more in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mtpx.errors import PackError
from mtpx_mlx.state import LayerState, TargetState, layer_states

AGREE = 1e-2
"""Parts and whole run the same kernels in the same order; what differs by more than this part of the
largest logit is other mathematics, not rounding."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What the target computed for some rows: `logits` (rows, V); where the model runs in parts,
    `hidden` (rows, H), the state a head is fed. Pending until evaluated: logits that nobody asks
    for are never computed."""

    logits: mx.array
    hidden: mx.array | None = None


class Target:
    """A model and how its caches are made.

    `hidden`: "after" or "before" the final norm, the state a head is fed; `None` where no head is.
    `make_caches` gives one mlx-lm cache a layer.
    """

    def __init__(
        self,
        model: Any,
        make_caches: Callable[[], list[Any]],
        *,
        hidden: str | None = None,
    ) -> None:
        self.model, self._make_caches = model, make_caches
        self.parts = None if hidden is None else Parts.of(model, hidden)

    def fresh(self) -> TargetState:
        """The state of a slot that has computed nothing."""
        return TargetState(self._layers(), self._layers)

    def _layers(self) -> list[LayerState]:
        return layer_states(self._make_caches())

    def __call__(self, tokens: mx.array, state: TargetState, ahead: int = 0) -> Rows:
        """Run tokens (rows,) after the positions the state covers; the last `ahead` of those may be
        taken back with them."""
        state.begin(tokens.shape[0], ahead)
        if self.parts is None:
            return Rows(self.model(tokens[None], cache=state.caches)[0])
        return self.parts(tokens, state.caches)


class Parts:
    """A model's trunk and its output product."""

    def __init__(self, text: Any, hidden: str) -> None:
        """`text` is what holds the trunk (`model`) and, unless it is tied, `lm_head`."""
        self.trunk = text.model
        self.embedding = self.trunk.embed_tokens
        self.matrix = text.lm_head if "lm_head" in text else self.embedding
        self._norm = None
        if hidden == "before":
            self._norm, self.trunk.norm = self.trunk.norm, nn.Identity()

    def output(self, normed: mx.array) -> mx.array:
        """(..., H) after the final norm → (..., V) logits."""
        tied = self.matrix is self.embedding
        logits: mx.array = self.matrix.as_linear(normed) if tied else self.matrix(normed)
        return logits

    @classmethod
    def of(cls, model: Any, hidden: str) -> Parts:
        """Raises `PackError` when the model is not a trunk and an output product, or does more."""
        text = getattr(model, "language_model", model)
        if not hasattr(getattr(text, "model", None), "embed_tokens"):
            raise PackError(
                f"a head cannot be fed by {type(model).__module__}: its trunk is not reached as "
                "`model`, with `embed_tokens` in it; without its head the model decodes plain"
            )
        tokens = mx.array([1, 2, 3])
        whole = model(tokens[None])[0]
        parts = cls(text, hidden)
        gap = mx.abs(whole - parts(tokens, [None] * len(parts.trunk.layers)).logits).max()
        share = np.array((gap / mx.abs(whole).max()).astype(mx.float32))
        if share > AGREE:  # false for NaN: the first round says so
            raise PackError(
                f"a head cannot be fed by {type(model).__module__}: the model does more than its "
                "trunk and its output product; without its head it decodes plain"
            )
        return parts

    def __call__(self, tokens: mx.array, caches: list[Any]) -> Rows:
        hidden = self.trunk(tokens[None], cache=caches)
        normed = hidden if self._norm is None else self._norm(hidden)
        return Rows(self.output(normed)[0], hidden[0])
