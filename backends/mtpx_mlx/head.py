"""The MTP head: norms, fc, one block with its own KV, output product over its vocabulary.

The wiring is the contract's (`mtpx.heads.HeadContract`); this file has the mathematics only. Pair
key k joins the embedding of token k + 1 with the target's hidden state at k, sits at RoPE k + 1 and
predicts token k + 2. A deeper step takes the head's own output in place of a hidden state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from mtpx.heads import check_draft_vocab
from mtpx_mlx.block import Block, fill_layer, make_block
from mtpx_mlx.head_weights import head_weights, trunk_gains
from mtpx_mlx.pair_cache import PairCache
from mtpx_mlx.sizes import norm_eps, trunk_sizes
from mtpx_mlx.target import Parts, Target

if TYPE_CHECKING:
    from mtpx.heads import HeadContract, Role

Product = Callable[[mx.array], mx.array]


class Head:
    """A head on its device. `draft_vocab` (entries,) maps output rows to token ids, or is `None`."""

    def __init__(
        self,
        contract: HeadContract,
        embedding: Product,
        norm_embedding: Product,
        norm_hidden: Product,
        fc: Product,
        block: Block,
        norm: Product,
        output: Product,
        draft_vocab: mx.array | None,
        vocab: int,
    ) -> None:
        self.contract = contract
        self.embedding = embedding
        self.norm_embedding, self.norm_hidden = norm_embedding, norm_hidden
        self.fc, self.block, self.norm, self.output = fc, block, norm, output
        self.draft_vocab, self.vocab = draft_vocab, vocab

    def forward(self, tokens: mx.array, hidden: mx.array, first: int, cache: PairCache) -> mx.array:
        """Pairs first..first+n-1: tokens (n,), hidden (n, H) → the block's residual (n, H)."""
        embedded = self.embedding(tokens)
        if self.contract.zero_first_embedding and first == 0:
            embedded = mx.concatenate([mx.zeros_like(embedded[:1]), embedded[1:]])
        e, h = self.norm_embedding(embedded), self.norm_hidden(hidden)
        pair = [e, h] if self.contract.order == "embedding-hidden" else [h, e]
        return self.block(self.fc(mx.concatenate(pair, axis=-1)), cache)

    def outputs(self, residual: mx.array) -> tuple[mx.array, mx.array]:
        """residual (rows, H) → (logits over the head's vocabulary, what the next step is fed)."""
        normed = self.norm(residual)
        recycled = normed if self.contract.recycled == "after" else residual
        return self.output(normed), recycled

    def token_ids(self, rows: mx.array) -> mx.array:
        """Output rows → token ids."""
        return rows if self.draft_vocab is None else self.draft_vocab[rows]


def load_head(contract: HeadContract, path: Path, target: Target, dtype: mx.Dtype) -> Head:
    """A head from its own file, or from the folder where it lies among the trunk's weights; computed in
    `dtype`. Raises `PackError` listing what does not fit the trunk."""
    model, parts = target.model, target.parts
    assert parts is not None
    sizes, eps = trunk_sizes(model), norm_eps(model)
    weights = head_weights(
        contract, path, sizes, lambda: trunk_gains(dict(tree_flatten(model.parameters()))), dtype
    )

    def name(role: Role) -> str:
        return contract.name(role, 0, sizes.layers)

    def norm(role: Role) -> Product:
        weight = weights[name(role)]
        return lambda x: mx.fast.rms_norm(x, weight, eps)

    draft_vocab = None
    if contract.has("draft_vocab"):
        ids = np.array(weights[name("draft_vocab")])
        check_draft_vocab(ids, sizes.vocab)
        draft_vocab = mx.array(ids.astype("uint32"))
    embedding = parts.embedding
    if not contract.shared_embedding:
        embedding = weights[name("embedding")].__getitem__
    joint = name("fc").removesuffix("weight")
    holder = nn.Module()  # a packed layer takes the plain one's place in what holds it
    holder.fc = nn.Linear(2 * sizes.hidden, sizes.hidden, bias=False)
    fill_layer(holder, {f"fc.{n}": w for n, w in _under(joint, weights).items()}, str(path))
    # Where a layer's tensors have no prefix of their own, those of other roles lie among them.
    outside = [name(role).removesuffix("weight") for role in contract.tensors if role != "layer"]
    own = {n: w for n, w in weights.items() if not n.startswith(tuple(outside))}
    block = _under(name("layer"), own)
    return Head(
        contract,
        embedding,
        norm("norm_embedding"),
        norm("norm_hidden"),
        holder.fc,
        make_block(contract, sizes, eps, block, model, str(path)),
        norm("norm"),
        _output(contract, parts, lambda role: weights[name(role)], draft_vocab),
        draft_vocab,
        sizes.vocab,
    )


def _under(prefix: str, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The tensors under this prefix, by the rest of their names."""
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}


def _output(
    contract: HeadContract,
    parts: Parts,
    take: Callable[[Role], mx.array],
    draft_vocab: mx.array | None,
) -> Product:
    """The output product over the head's vocabulary. Rows of a packed matrix are taken packed."""
    if not contract.shared_output:
        own = take("output")
        rows = own if draft_vocab is None else own[draft_vocab]
        return lambda x: x @ rows.T
    if draft_vocab is None:
        return parts.output
    matrix = parts.matrix
    if "scales" not in matrix:
        chosen = matrix.weight[draft_vocab]
        return lambda x: x @ chosen.T
    weight, scales = matrix.weight[draft_vocab], matrix.scales[draft_vocab]
    biases = matrix.biases[draft_vocab] if "biases" in matrix else None
    return lambda x: mx.quantized_matmul(
        x,
        weight,
        scales,
        biases,
        transpose=True,
        group_size=matrix.group_size,
        bits=matrix.bits,
        mode=matrix.mode,
    )
