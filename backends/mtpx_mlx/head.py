"""The MTP head: norms, fc, one block with its own KV, output product over its vocabulary.

The wiring is the contract's (`mtpx.heads.HeadContract`); this file has the mathematics only. Pair
key k joins the embedding of token k + 1 with the target's hidden state at k, sits at RoPE k + 1 and
predicts token k + 2. A deeper step takes the head's own output in place of a hidden state.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx

from mtpx.checkpoint import integers, read_safetensors
from mtpx.errors import PackError
from mtpx.heads import check_draft_vocab, check_tensors, expected_tensors
from mtpx_mlx.block import Block, LlamaBlock
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
        fc: mx.array,
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
        return self.block(mx.concatenate(pair, axis=-1) @ self.fc.T, cache)

    def outputs(self, residual: mx.array) -> tuple[mx.array, mx.array]:
        """residual (rows, H) → (logits over the head's vocabulary, what the next step is fed)."""
        normed = self.norm(residual)
        recycled = normed if self.contract.recycled == "after" else residual
        return self.output(normed), recycled

    def token_ids(self, rows: mx.array) -> mx.array:
        """Output rows → token ids."""
        return rows if self.draft_vocab is None else self.draft_vocab[rows]


def load_head(contract: HeadContract, path: Path, target: Target, dtype: mx.Dtype) -> Head:
    """A head from its own file, computed in `dtype`. Raises `PackError` listing what does not fit the
    trunk."""
    stored, _ = read_safetensors(path)
    if not stored:
        raise PackError(f"{path} holds no tensors")
    sizes, eps = trunk_sizes(target.model), norm_eps(target.model)
    assert target.parts is not None
    check_tensors(
        {name: tensor.shape for name, tensor in stored.items()}, expected_tensors(contract, sizes)
    )
    loaded = mx.load(str(path))
    assert isinstance(loaded, dict)

    def take(role: Role) -> mx.array:
        return loaded[contract.name(role, 0, sizes.layers)].astype(dtype)

    def norm(role: Role) -> Product:
        return _norm(take(role), contract.norm_offset, eps)

    draft_vocab = None
    if contract.has("draft_vocab"):
        ids = integers(stored[contract.name("draft_vocab", 0, sizes.layers)])
        check_draft_vocab(ids, sizes.vocab)
        draft_vocab = mx.array(ids.astype("uint32"))
    embedding = target.parts.embedding
    if not contract.shared_embedding:
        own = take("embedding")
        embedding = own.__getitem__
    prefix = contract.name("layer", 0, sizes.layers)
    block = {
        name.removeprefix(prefix): _shifted(name, value.astype(dtype), contract.norm_offset)
        for name, value in loaded.items()
        if name.startswith(prefix) and name.removeprefix(prefix).startswith(_BLOCK_PARTS)
    }
    return Head(
        contract,
        embedding,
        norm("norm_embedding"),
        norm("norm_hidden"),
        take("fc"),
        LlamaBlock(sizes, eps, block, target.parts.trunk),
        norm("norm"),
        _output(contract, target.parts, take, draft_vocab),
        draft_vocab,
        sizes.vocab,
    )


_BLOCK_PARTS = ("input_layernorm.", "post_attention_layernorm.", "self_attn.", "mlp.")


def _shifted(name: str, value: mx.array, offset: int) -> mx.array:
    """A block's norm weight as it multiplies."""
    return value + offset if "norm" in name else value


def _norm(weight: mx.array, offset: int, eps: float) -> Product:
    multiplier = weight + offset
    return lambda x: mx.fast.rms_norm(x, multiplier, eps)


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
