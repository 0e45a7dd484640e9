"""The MTP head: norms, fc, one block with its own KV, output product over its vocabulary.

The wiring is the contract's (`mtpx.heads.HeadContract`); this file has the mathematics only. Pair
key k joins the embedding of token k + 1 with the target's hidden state at k, sits at RoPE k + 1 and
predicts token k + 2. A deeper step takes the head's own output in place of a hidden state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from mtpx.checkpoint import integers
from mtpx.heads import TrunkSizes, check_draft_vocab, check_tensors, expected_tensors
from mtpx_torch.block import Attend, Block
from mtpx_torch.embedding import Embedding
from mtpx_torch.norm import Norm
from mtpx_torch.product import Product
from mtpx_torch.trunk import Trunk, load_block
from mtpx_torch.weights import PIECE_ROWS, WeightReader, output_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtpx.checkpoint import Checkpoint, Tensor
    from mtpx.heads import HeadContract, Role
    from mtpx_torch.recipe import Recipe


class Scored(NamedTuple):
    """What the head makes of a row: logits (rows, V') over its own vocabulary, recycled (rows, H) for the
    next step, the likeliest tokens (rows,) and their confidence (rows,), a log-probability."""

    logits: torch.Tensor
    recycled: torch.Tensor
    tokens: torch.Tensor
    confidence: torch.Tensor


class Head:
    """A head on its device. `draft_vocab` (entries,) maps output rows to token ids, or is `None`."""

    def __init__(
        self,
        contract: HeadContract,
        trunk: Trunk,
        embedding: Embedding,
        norm_embedding: Norm,
        norm_hidden: Norm,
        fc: Product,
        block: Block,
        norm: Norm,
        output: Product,
        draft_vocab: torch.Tensor | None,
    ) -> None:
        self.contract = contract
        self.trunk = trunk
        self.embedding = embedding
        self.norm_embedding, self.norm_hidden = norm_embedding, norm_hidden
        self.fc, self.block, self.norm, self.output = fc, block, norm, output
        self.draft_vocab = draft_vocab

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
    ) -> torch.Tensor:
        """embedded, hidden (rows, H) at positions (rows,) → the block's residual (rows, H)."""
        if self.contract.zero_first_embedding:
            embedded = embedded * (positions > 1).unsqueeze(-1)
        e, h = self.norm_embedding(embedded), self.norm_hidden(hidden)
        pair = [e, h] if self.contract.order == "embedding-hidden" else [h, e]
        x = self.fc(torch.cat(pair, dim=-1))
        return self.block(x, self.trunk.rotary.at(positions), attend)

    def scores(self, residual: torch.Tensor) -> Scored:
        """residual (rows, H), the last one of each sequence."""
        normed = self.norm(residual)
        recycled = normed if self.contract.recycled == "after" else residual
        logits = self.output(normed)
        peak, best = logits.max(dim=-1)
        return Scored(logits, recycled, self.token_ids(best), peak - logits.logsumexp(dim=-1))

    def token_ids(self, rows: torch.Tensor) -> torch.Tensor:
        """Output rows → token ids."""
        return rows if self.draft_vocab is None else self.draft_vocab[rows]


def load_head(
    contract: HeadContract,
    tensors: Mapping[str, Tensor],
    checkpoint: Checkpoint,
    trunk: Trunk,
    recipe: Recipe,
) -> Head:
    """A head from its own tensors. Raises `PackError` listing what does not fit the trunk."""
    config = trunk.config
    check_tensors(
        {name: tensor.shape for name, tensor in tensors.items()},
        expected_tensors(
            contract,
            TrunkSizes(
                hidden=config.hidden,
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                ffn=config.ffn,
                vocab=config.vocab,
                layers=config.layers,
            ),
        ),
    )
    reader = WeightReader(tensors, config, recipe.dtype, trunk.device, contract.norm_offset)

    def take(role: Role) -> torch.Tensor:
        return reader.take(contract.name(role, 0, config.layers))

    def norm(role: Role) -> Norm:
        return reader.norm(contract.name(role, 0, config.layers))

    draft_vocab = None
    if contract.has("draft_vocab"):
        stored = tensors[contract.name("draft_vocab", 0, config.layers)]
        check_draft_vocab(integers(stored), config.vocab)
        draft_vocab = take("draft_vocab").long()
    if contract.shared_output and draft_vocab is None:
        output: Product = trunk.output
    elif contract.shared_output and config.tied and draft_vocab is not None:
        pieces = draft_vocab.split(PIECE_ROWS)
        output = recipe.output(len(draft_vocab), (trunk.embedding[ids] for ids in pieces))
    elif not contract.shared_output and draft_vocab is None:
        output = recipe.linear(reader, [contract.name("output", 0, config.layers)], output=True)
    else:
        target = WeightReader(checkpoint.tensors, config, recipe.dtype, trunk.device)
        own = output_rows(target) if contract.shared_output else take("output")
        kept = own if draft_vocab is None else own[draft_vocab]
        output = recipe.output(len(kept), [kept])
    embedding = trunk.embedding
    if not contract.shared_embedding:
        own_rows = tensors[contract.name("embedding", 0, config.layers)]
        embedding = Embedding(own_rows, recipe.dtype, trunk.device)
    return Head(
        contract,
        trunk,
        embedding,
        norm("norm_embedding"),
        norm("norm_hidden"),
        recipe.linear(reader, [contract.name("fc", 0, config.layers)]),
        load_block(reader, contract.name("layer", 0, config.layers), recipe),
        norm("norm"),
        output,
        draft_vocab,
    )
