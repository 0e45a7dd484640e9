"""A language that needs long context, and a model made by hand that speaks it with its head.

Every token is the one `PERIOD` places before it. The trunk's only layer attends to exactly that place:
its queries and keys are the same for every token, and the rotary embedding turns them so that they meet
at one distance only. The head's layer is the same one: a draft is right if the row that far back is in
the head's KV, and a guess if it is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch_makers import contract

from mtpx.backend import Engine
from mtpx.heads import TrunkSizes, expected_tensors
from mtpx.packs import Pack

PERIOD = 40
VOCABULARY = 48
HEAD_DIM = 64
HIDDEN = 128
"""A constant, a place for the token, a place for the one that follows."""

CONSTANT, TOKEN, NEXT = 0, 1, 1 + VOCABULARY
SHARPNESS = 12.0
"""Scale of queries and keys: every other place is e^-15 or less of the right one."""


@dataclass(frozen=True)
class Copier:
    """The model as a conversation needs it: texts are token ids with spaces between."""

    engine: Engine
    end_ids: frozenset[int] = frozenset()

    def encode(self, content: Sequence[dict[str, str]]) -> list[int]:
        return [int(word) for message in content for word in message["content"].split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


def make_copier(folder: Path) -> Pack:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        max_position_embeddings=1024,
        rope_theta=100.0,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, tensor in weights.items():
        weights[name] = _weights(name, tensor.shape)
    save_file(weights, path, metadata={"format": "pt"})
    sizes = TrunkSizes(
        hidden=HIDDEN, heads=1, kv_heads=1, head_dim=HEAD_DIM, ffn=16, vocab=VOCABULARY, layers=1
    )
    wiring = contract(tensors={"draft_vocab": ""})
    head = folder / "head" / "head.safetensors"
    head.parent.mkdir()
    shapes = expected_tensors(wiring, sizes)
    save_file(
        {name: _weights(name, [n or 1 for n in shape]) for name, shape in shapes.items()}, head
    )
    told = json.loads((folder / "config.json").read_text())
    assert told["head_dim"] == HEAD_DIM
    return Pack(
        name="copier",
        manifest=None,
        folder=folder,
        weights=folder,
        head=head,
        contract=wiring,
        weights_digest="",
        head_digest="",
        verified=False,
        context=None,
    )


def _weights(name: str, shape: Sequence[int]) -> torch.Tensor:
    """What makes a copier of the tensor with this name; what does nothing is zero, a norm one."""
    made = torch.zeros(*shape)
    tokens = torch.arange(VOCABULARY)
    if len(shape) == 1:
        return torch.ones(*shape)
    if name.endswith("embed_tokens.weight"):
        made[:, CONSTANT] = 1.0
        made[tokens, TOKEN + tokens] = 1.0
    elif name.endswith("lm_head.weight"):
        made[tokens, NEXT + tokens] = 4.0
    elif name.endswith("q_proj.weight"):
        made[:, CONSTANT] = SHARPNESS * _turned(PERIOD - 1)
    elif name.endswith("k_proj.weight"):
        made[:, CONSTANT] = SHARPNESS * _turned(0)
    elif name.endswith("v_proj.weight"):
        made[tokens, TOKEN + tokens] = 1.0
    elif name.endswith("o_proj.weight"):
        made[NEXT + tokens, tokens] = 1.0
    elif name.endswith("fc.weight"):
        made[:, :HIDDEN] = torch.eye(HIDDEN)
    return made


def _turned(back: int) -> torch.Tensor:
    """(HEAD_DIM,) the vector (1, 0) in every rotary plane, turned `back` places back."""
    half = HEAD_DIM // 2
    angle = -back * 100.0 ** (-torch.arange(half) / half)
    return torch.cat([angle.cos(), angle.sin()]) / half**0.5
