"""Text to token ids and back, over the `tokenizers` library."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mtpx.checkpoint.mapped import read_small
from mtpx.errors import PackError, PromptError
from mtpx.text.gguf_vocab import build

if TYPE_CHECKING:
    import tokenizers

    from mtpx.checkpoint import TokenSource

FILE_LIMIT = 256 * 2**20
"""Bytes; the largest real tokenizer.json files have some thirty megabytes."""


class Tokenizer:
    """One model's tokenizer.

    `bos_id`: the beginning id, None where there is none; `adds_bos`: whether a text begins with it;
    `end_ids`: any of them ends a text. `chat_template`: jinja source, None where the model has none;
    `special_texts`: what templates call `bos_token`, `eos_token`, ... Safe to use from threads.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        bos_id: int | None,
        end_ids: Iterable[int],
        adds_bos: bool,
        chat_template: str | None,
        special_texts: Mapping[str, str],
    ) -> None:
        self._tokenizer = tokenizer
        # `encode_special_tokens` is a setting of the shared object, not an argument.
        self._lock = threading.Lock()
        self.bos_id = bos_id
        self.end_ids = tuple(dict.fromkeys(end_ids))
        self.adds_bos = adds_bos and bos_id is not None
        self.chat_template = chat_template
        self.special_texts = dict(special_texts)

    @cached_property
    def _vocab(self) -> dict[str, int]:
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows; the target's vocabulary may be padded beyond."""
        return len(self._vocab)

    @property
    def largest_id(self) -> int:
        return max(self._vocab.values(), default=-1)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that are no text: `decode` leaves them out unless told otherwise."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special)

    def encode(self, text: str, special: bool = True, *, bos: bool | None = None) -> list[int]:
        """Token ids of `text`.

        `special`: special tokens written out in the text become their ids; without, they are
        spelled like any other text (use that for text nobody vouches for). `bos`: put the beginning
        id in front where the model wants one; None means as `special`. It is never doubled.

        Raises `PromptError` for text that is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the text holds a lone surrogate at character {error.start}, which is no text"
            ) from error
        with self._lock:
            self._tokenizer.encode_special_tokens = not special
            ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        wanted = self.adds_bos and (special if bos is None else bos)
        if wanted and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; invalid UTF-8 shows as U+FFFD, ids beyond the vocabulary as nothing."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    def token_text(self, id: int) -> str:
        """One token as people see it, special tokens by name; U+FFFD for part of a character."""
        return self.decode([id], skip_special=False)

    @cached_property
    def token_bytes(self) -> list[bytes] | None:
        """(vocab_size,) the bytes every id stands for, or None unless the vocabulary is byte-level.

        Then `decode` is the UTF-8 of these bytes put together, whatever the ids.
        """
        from tokenizers import decoders

        if not isinstance(self._tokenizer.decoder, decoders.ByteLevel):
            return None
        byte = {character: value for value, character in _byte_characters().items()}
        table = [b""] * (self.largest_id + 1)
        for token, id in self._vocab.items():
            try:
                table[id] = bytes([byte[c] for c in token])
            except KeyError:
                # Added tokens may hold characters the byte alphabet lacks; they stand for themselves.
                table[id] = token.encode()
        return table


def load_tokenizer(path: Path, checkpoint: TokenSource) -> Tokenizer:
    """The tokenizer of the checkpoint at `path`: from the folder's tokenizer.json where there is
    one, else from the GGUF file's metadata. A .gguf file named itself comes first, and
    tokenizer.json beside it only where its own vocabulary is of a kind not known here.

    Raises `PackError` when there is none, or it is damaged, of a kind not known here, or larger
    than the target's vocabulary.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    beside = (folder / "tokenizer.json").exists()
    if path.is_dir() and beside:
        loaded = _from_folder(folder, checkpoint)
    elif "tokenizer.ggml.model" in checkpoint.metadata:
        try:
            loaded = _from_gguf(checkpoint, str(path))
        except PackError:
            if not beside:
                raise
            loaded = _from_folder(folder, checkpoint)
    else:
        raise PackError(f"{path} holds no tokenizer: neither tokenizer.json nor a GGUF vocabulary")
    if loaded.largest_id >= checkpoint.config.vocab:
        raise PackError(
            f"{path}: the tokenizer has ids up to {loaded.largest_id:,}, the target's vocabulary is "
            f"{checkpoint.config.vocab:,}; they do not belong together"
        )
    return loaded


def _from_gguf(checkpoint: TokenSource, where: str) -> Tokenizer:
    metadata, config = checkpoint.metadata, checkpoint.config
    tokenizer = build(metadata, where)
    ids = {
        "bos_token": config.bos_id,
        "eos_token": next(iter(config.end_ids), None),
        "unk_token": metadata.get("tokenizer.ggml.unknown_token_id"),
        "pad_token": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    texts = {
        name: text
        for name, id in ids.items()
        if isinstance(id, int) and (text := tokenizer.id_to_token(id)) is not None
    }
    # llama.cpp's default where the file is silent: Llama 3 begins with BOS, the others do not.
    default = str(metadata.get("tokenizer.ggml.pre")).startswith("llama")
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        tokenizer,
        bos_id=config.bos_id,
        end_ids=config.end_ids,
        adds_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", default)),
        chat_template=template if isinstance(template, str) else None,
        special_texts=texts,
    )


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _Token(msgspec.Struct):
    content: str


class _TokenizerConfig(msgspec.Struct):
    """What is used of tokenizer_config.json."""

    chat_template: str | list[_NamedTemplate] | None = None
    add_bos_token: bool | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: str | _Token | None = None
    pad_token: str | _Token | None = None


def _from_folder(folder: Path, checkpoint: TokenSource) -> Tokenizer:
    tokenizer = _library_tokenizer(folder / "tokenizer.json")
    told = _tokenizer_config(folder / "tokenizer_config.json")
    texts: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = getattr(told, name)
        if token is not None:
            texts[name] = token.content if isinstance(token, _Token) else token
    config = checkpoint.config
    bos_id = tokenizer.token_to_id(texts["bos_token"]) if "bos_token" in texts else config.bos_id
    eos_id = tokenizer.token_to_id(texts["eos_token"]) if "eos_token" in texts else None
    adds_bos = told.add_bos_token
    if adds_bos is None:
        adds_bos = bos_id is not None and tokenizer.encode("").ids[:1] == [bos_id]
    return Tokenizer(
        tokenizer,
        bos_id=bos_id,
        end_ids=[*config.end_ids, *([] if eos_id is None else [eos_id])],
        adds_bos=adds_bos,
        chat_template=_template(folder, told, checkpoint.metadata),
        special_texts=texts,
    )


class _Model(msgspec.Struct):
    continuing_subword_prefix: str | None = None


class _File(msgspec.Struct):
    model: _Model


def _library_tokenizer(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Library

    data = read_small(path, FILE_LIMIT)
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PackError(f"{path} cannot be used: {error}") from error
    if file.model.continuing_subword_prefix:
        # No decoder's vocabulary has one, and the library cuts its merges by it without looking
        # where characters end: a made-up one takes the whole process down.
        raise PackError(f"{path}: subwords marked by a prefix (as BERT's) are not supported")
    try:
        return Library.from_str(data.decode("utf-8"))
    except BaseException as error:
        # The library raises bare exceptions, and its panics are not even those.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise PackError(f"{path} cannot be used: {error}") from error


def _tokenizer_config(path: Path) -> _TokenizerConfig:
    if not path.exists():
        return _TokenizerConfig()
    try:
        return msgspec.json.decode(read_small(path, FILE_LIMIT), type=_TokenizerConfig)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PackError(f"{path} cannot be used: {error}") from error


def _template(folder: Path, told: _TokenizerConfig, metadata: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's (the one named default), else GGUF's."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return read_small(path, FILE_LIMIT).decode("utf-8")
        except UnicodeDecodeError as error:
            raise PackError(f"{path} is not UTF-8 text") from error
    if isinstance(told.chat_template, list):
        return next((t.template for t in told.chat_template if t.name == "default"), None)
    carried = metadata.get("tokenizer.chat_template")
    return told.chat_template or (carried if isinstance(carried, str) else None)


def _byte_characters() -> dict[int, str]:
    """The printable character byte-level BPE writes for each byte (GPT-2's alphabet: bytes that
    print stand for themselves, the others for the characters from U+0100 on, in order)."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in prints]
    return {b: chr(b) for b in prints} | {b: chr(0x100 + i) for i, b in enumerate(others)}
