"""A `tokenizers` tokenizer built from the vocabulary a GGUF file carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mtpx.errors import PackError

if TYPE_CHECKING:
    import tokenizers

CONTROL, USER_DEFINED = 3, 4
"""Token types (llama.cpp's enum llama_token_type): special tokens, and added ones that are text."""

# Pre-tokenizers by `tokenizer.ggml.pre`, as the models' own tokenizer.json files define them.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "qwen2": _QWEN2}
PRE_TOKENIZERS = ("default", "gpt-2", "smollm", *_SPLITS)


def build(metadata: Mapping[str, Any], where: str) -> tokenizers.Tokenizer:
    """Byte-level BPE from `tokenizer.ggml.*`.

    Raises `PackError` when the vocabulary is of another kind, splits text in a way not known here,
    or is damaged.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as pre

    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise PackError(
            f"{where}: a tokenizer of kind {model!r} cannot be built from GGUF, only 'gpt2' "
            f"(byte-level BPE); {_INSTEAD}"
        )
    tokens, merges = _texts(metadata, "tokens", where), _texts(metadata, "merges", where)
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise PackError(f"{where}: the vocabulary holds a token twice; the file is damaged")
    split = str(metadata.get("tokenizer.ggml.pre", "default"))
    if any(merge.count(" ") != 1 for merge in merges):
        raise PackError(f"{where}: a merge of the vocabulary is not a pair; the file is damaged")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        bpe = models.BPE(vocab=vocab, merges=pairs, ignore_merges=_SPLITS.get(split) == _LLAMA3)
    except Exception as error:  # the library raises nothing narrower
        raise PackError(f"{where}: the vocabulary is damaged: {error}") from error
    tokenizer = Tokenizer(bpe)
    if split in ("default", "gpt-2"):
        tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    elif split == "smollm":
        tokenizer.pre_tokenizer = pre.Sequence(
            [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
        )
    elif split in _SPLITS:
        tokenizer.pre_tokenizer = pre.Sequence(
            [
                pre.Split(Regex(_SPLITS[split]), "isolated"),
                pre.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        if _SPLITS[split] == _QWEN2:
            tokenizer.normalizer = normalizers.NFC()
    else:
        raise PackError(
            f"{where}: pre-tokenizer {split!r} is not known here, only "
            f"{', '.join(PRE_TOKENIZERS)}; {_INSTEAD}"
        )
    tokenizer.decoder = decoders.ByteLevel()
    types = _types(metadata, len(tokens), where)
    for type, special in ((CONTROL, True), (USER_DEFINED, False)):
        chosen = [tokens[i] for i in np.flatnonzero(types == type)]
        tokenizer.add_tokens(
            [AddedToken(t, special=special, normalized=False) for t in chosen if t]
        )
    return tokenizer


_INSTEAD = "a folder that holds the .gguf file and the model's tokenizer.json works"


def _texts(metadata: Mapping[str, Any], key: str, where: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise PackError(f"{where} carries no vocabulary (tokenizer.ggml.{key}); {_INSTEAD}")
    return value


def _types(metadata: Mapping[str, Any], n: int, where: str) -> Any:
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return np.zeros(n, dtype=np.int32)
    if not isinstance(types, np.ndarray) or len(types) != n:
        raise PackError(f"{where}: tokenizer.ggml.token_type must hold one number a token")
    return types
