"""Small tokenizers, and byte-level BPE by its definition to compare with."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import regex
from checkpoint_makers import CONFIG, hf_tensors, write_gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers

from mtpx.checkpoint import Checkpoint, open_checkpoint
from mtpx.text import Tokenizer as Mine
from mtpx.text import load_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = [
    "The quick brown fox jumps over the lazy dog. It's 1234 o'clock, isn't it? We'll see!",
    "def f(x):\n    return x ** 2 + 10  # squares\n\n\nclass A:\n\tpass\n",
    "Grüße aus Köln — naïve café, 日本語のテキスト, 한국어, עברית, العربية, emoji 😀👩‍👩‍👧",
]
SAMPLES = [
    *TEXT,
    "",
    " ",
    "a  b   c\t\td\n\n e \r\n f",
    "1 22 333 4444 3.14159 ٣٤ Ⅷ ½",
    "HE'LL he'll 'S's x'Re",
    "<|im_start|>user\nhi<|im_end|>",
    "e\u0301 \u200f\u202e \ufeff \x00\x7f",
    "🏳️‍🌈🇩🇪 𝒳",
]

# OpenAI's GPT-2 encoder.py, and the patterns of Llama 3's and Qwen2's own tokenizers.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def trained(size: int = 420) -> tuple[list[str], list[str]]:
    """Tokens (special ones first) and merges ("a b") of a vocabulary trained on TEXT."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]


TOKENS, MERGES = trained()
BIG = CONFIG | {"vocab_size": 512}


def gguf_checkpoint(path: Path, **fields: Any) -> Checkpoint:
    """A small target that carries the trained vocabulary; `fields` under tokenizer.ggml."""
    told = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": TOKENS,
        "merges": MERGES,
        "token_type": [3 if t in SPECIAL else 1 for t in TOKENS],
        **fields,
    }
    keys = {f"tokenizer.ggml.{k}": v for k, v in told.items() if v is not None}
    return open_checkpoint(write_gguf(path, tensors=hf_tensors(BIG), fields=keys))


def gguf_tokenizer(folder: Path, **fields: Any) -> Mine:
    path = folder / "m.gguf"
    return load_tokenizer(path, gguf_checkpoint(path, **fields))


def bpe_by_definition(
    text: str, pattern: str, tokens: list[str], merges: list[str], *, digits: bool = False
) -> list[int]:
    """Byte-level BPE as Sennrich et al. (2016) and GPT-2's encoder define it: split, spell in
    bytes, merge the best-ranked neighbours until none is left. `digits`: digits split off first."""
    vocab = {token: i for i, token in enumerate(tokens)}
    ranks = {tuple(m.split(" ")): i for i, m in enumerate(merges)}
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spelled = {}
    for byte in range(256):
        spelled[byte] = (
            chr(byte)
            if byte in prints
            else chr(256 + len([b for b in range(byte) if b not in prints]))
        )
    ids: list[int] = []
    for part in regex.findall(r"\p{N}|\P{N}+", text) if digits else [text]:
        for word in regex.findall(pattern, part):
            symbols = [spelled[b] for b in word.encode()]
            while len(symbols) > 1:
                pairs = [(ranks.get(p, len(ranks)), i) for i, p in enumerate(pairwise(symbols))]
                rank, at = min(pairs)
                if rank == len(ranks):
                    break
                symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
            ids += [vocab[s] for s in symbols]
    return ids


def sentencepiece_like() -> Mine:
    """A vocabulary with byte fall-back, whose tokens' text depends on their neighbours (as in
    Llama 2 and Mistral)."""
    words = ["▁", "▁the", "▁a", "e", "t", "h", "l", "o", "▁hello", "!", "é"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={t: i for i, t in enumerate(tokens)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = Normalizers([Prepend("▁"), Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in tokens[:3]]
    )
    return Mine(
        tokenizer, bos_id=1, end_ids=[2], adds_bos=True, chat_template=None, special_texts={}
    )


def checkpoint_stub(vocab: int = 512, **config: Any) -> Any:
    """A checkpoint without weights, for tokenizers that lie in a folder of their own."""
    told = {"vocab": vocab, "bos_id": None, "end_ids": (), **config}
    return SimpleNamespace(config=SimpleNamespace(**told), metadata={})


assert len(TOKENS) < BIG["vocab_size"]
assert np.all([len(m.split(" ")) == 2 for m in MERGES])
