"""A whole pack that runs on the torch backend in milliseconds: random weights, a trained tokenizer,
a chat template, a head, and the manifest that names them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tokenizer_makers import MERGES, SPECIAL, TOKENS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch_makers import SIZES, contract, save_head, save_model

CONTEXT = 256

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_pack(folder: Path, *, head: bool = True, **sampling: float) -> Path:
    """The pack's folder: pack.toml, head.safetensors, and the weights in weights/."""
    weights = folder / "weights"
    save_model(weights, vocab_size=512, max_position_embeddings=CONTEXT)
    (weights / "tokenizer.json").write_text(_tokenizer().to_str())
    (weights / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"})
    )
    if head:
        save_head_for(folder)
    write_manifest(folder, head=head, **sampling)
    return folder


def save_head_for(folder: Path, **changes: int) -> None:
    """The pack's head, made for its trunk or, with `changes` to the trunk's sizes, for another."""
    config = json.loads((folder / "weights" / "config.json").read_text()) | changes
    save_head(folder / "head.safetensors", contract(tensors={"draft_vocab": ""}), config)


def write_manifest(folder: Path, *, head: bool = True, **sampling: float) -> None:
    """pack.toml as the files are now."""
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    files = ",\n".join(
        f'  {{name = "{name}", {_promise(folder / "weights" / name)}}}' for name in names
    )
    lines = [
        'schema = 1\nname = "tiny"\ndescription = "random weights"\nlicense = "MIT"',
        f'family = "llama"\ncontext = {CONTEXT}\nquantisation = "none"',
        'sources = [{kind = "local", folder = "weights"}]',
        f"files = [\n{files}\n]",
    ]
    if sampling:
        lines += ["[sampling]", *(f"{name} = {value}" for name, value in sampling.items())]
    if head:
        digest = hashlib.sha256((folder / "head.safetensors").read_bytes()).hexdigest()
        lines += [f'[head]\nfile = "head.safetensors"\nsha256 = "{digest}"']
        lines += ['[head.contract]\nfamily = "llama-mtp"\ndraft_depth_limit = 4']
        lines += ['[head.contract.tensors]\ndraft_vocab = ""']
    (folder / "pack.toml").write_text("\n".join(lines) + "\n")


def _promise(path: Path) -> str:
    data = path.read_bytes()
    return f'sha256 = "{hashlib.sha256(data).hexdigest()}", size = {len(data)}'


def _tokenizer() -> Any:
    vocab = {token: i for i, token in enumerate(TOKENS)}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


assert TOKENS.index("<|im_end|>") == SIZES["eos_token_id"]
