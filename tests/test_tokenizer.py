"""Tokenizers from GGUF metadata and from folders, against BPE by its definition."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_makers import (
    GPT2,
    LLAMA3,
    MERGES,
    QWEN2,
    SAMPLES,
    SPECIAL,
    TOKENS,
    bpe_by_definition,
    checkpoint_stub,
    gguf_checkpoint,
    gguf_tokenizer,
    sentencepiece_like,
)
from tokenizers import Tokenizer as Library
from tokenizers.processors import TemplateProcessing

from mtpx.checkpoint import open_checkpoint
from mtpx.errors import PackError, PromptError
from mtpx.text import Tokenizer, load_tokenizer

START, END = TOKENS.index("<|im_start|>"), TOKENS.index("<|im_end|>")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return gguf_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize(
    ("pre", "pattern", "digits"),
    [
        ("smollm", GPT2, True),
        ("gpt-2", GPT2, False),
        ("default", GPT2, False),
        (None, GPT2, False),
        ("llama-bpe", LLAMA3, False),
        ("qwen2", QWEN2, False),
    ],
)
def test_ids_are_those_of_bpe_by_its_definition(
    tmp_path: Path, pre: str | None, pattern: str, digits: bool, text: str
) -> None:
    tokenizer = gguf_tokenizer(tmp_path, pre=pre)
    source = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
    expected = bpe_by_definition(source, pattern, TOKENS, MERGES, digits=digits)
    assert tokenizer.encode(text, special=False) == expected


@given(text=st.text())
def test_text_survives_encoding_and_decoding(small: Tokenizer, text: str) -> None:
    assert small.decode(small.encode(text, special=False), skip_special=False) == text


@given(text=st.text(alphabet="ab 1\n<|im_start>é😀"))
def test_any_text_encodes_as_bpe_by_its_definition(small: Tokenizer, text: str) -> None:
    expected = bpe_by_definition(text, GPT2, TOKENS, MERGES, digits=True)
    assert small.encode(text, special=False) == expected


@pytest.mark.model
@pytest.mark.parametrize("text", SAMPLES)
def test_the_embedded_models_ids_are_those_of_bpe_by_its_definition(
    embedded: Tokenizer, vocabulary: tuple[list[str], list[str]], text: str
) -> None:
    expected = bpe_by_definition(text, GPT2, *vocabulary, digits=True)
    assert embedded.encode(text, special=False) == expected


@pytest.fixture(scope="module")
def embedded(embedded_weights: Path) -> Tokenizer:
    with open_checkpoint(embedded_weights) as checkpoint:
        return load_tokenizer(embedded_weights, checkpoint)


@pytest.fixture(scope="module")
def vocabulary(embedded_weights: Path) -> tuple[list[str], list[str]]:
    metadata = open_checkpoint(embedded_weights).metadata
    return metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]


@pytest.mark.model
def test_the_embedded_model_begins_with_nothing_and_ends_with_im_end(embedded: Tokenizer) -> None:
    assert not embedded.adds_bos
    assert embedded.end_ids == (2,)
    assert embedded.vocab_size == 49152
    assert embedded.special_texts["eos_token"] == "<|im_end|>"
    assert embedded.encode("<|im_start|>user") == [1, *embedded.encode("user")]


def test_special_tokens_in_text_are_recognised_only_if_asked(small: Tokenizer) -> None:
    text = "<|im_start|>hi<|im_end|>"
    assert small.encode(text) == [START, *small.encode("hi"), END]
    assert not {START, END} & set(small.encode(text, special=False))
    assert small.encode(text)[0] == START


def test_special_tokens_decode_only_if_asked(small: Tokenizer) -> None:
    ids = small.encode("<|im_start|>hi<|im_end|>")
    assert small.decode(ids) == "hi"
    assert small.decode(ids, skip_special=False) == "<|im_start|>hi<|im_end|>"


def test_user_defined_tokens_are_text(tmp_path: Path) -> None:
    tokens = [*TOKENS, "<think> now"]
    types = [3 if t in SPECIAL else 1 for t in TOKENS] + [4]
    tokenizer = gguf_tokenizer(tmp_path, tokens=tokens, token_type=types)
    ids = tokenizer.encode("a<think> now", special=False)
    assert ids[-1] == len(TOKENS)
    assert tokenizer.decode(ids) == "a<think> now"


def test_a_token_has_a_text_for_display(small: Tokenizer) -> None:
    assert small.token_text(END) == "<|im_end|>"
    assert small.token_text(small.encode("é", special=False)[0]) in ("é", "\ufffd")


@given(ids=st.lists(st.integers(0, len(TOKENS) - 1), max_size=12))
def test_decoding_is_the_utf8_of_the_tokens_bytes(small: Tokenizer, ids: list[int]) -> None:
    table = small.token_bytes
    assert table is not None
    joined = b"".join(table[i] for i in ids)
    assert small.decode(ids, skip_special=False) == joined.decode("utf-8", "replace")


def test_a_vocabulary_that_is_not_byte_level_has_no_bytes() -> None:
    assert sentencepiece_like().token_bytes is None


@pytest.mark.parametrize(
    ("pre", "told", "adds"),
    [
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("qwen2", False, False),
    ],
)
def test_a_beginning_id_is_added_where_the_file_says_so(
    tmp_path: Path, pre: str, told: bool | None, adds: bool
) -> None:
    tokenizer = gguf_tokenizer(tmp_path, pre=pre, add_bos_token=told)
    assert tokenizer.adds_bos is adds
    assert (tokenizer.encode("hi")[0] == tokenizer.bos_id) is adds


def test_a_beginning_id_is_never_doubled(tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(tmp_path, add_bos_token=True)
    assert tokenizer.encode("<|im_start|>hi") == [START, *tokenizer.encode("hi", special=False)]


def test_plain_text_gets_a_beginning_id_only_on_demand(tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(tmp_path, add_bos_token=True)
    plain = tokenizer.encode("hi", special=False)
    assert plain[0] != START
    assert tokenizer.encode("hi", special=False, bos=True) == [START, *plain]
    assert tokenizer.encode("hi", bos=False) == plain


def test_a_lone_surrogate_is_no_text(small: Tokenizer) -> None:
    with pytest.raises(PromptError, match="lone surrogate"):
        small.encode("a\ud800b")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": "llama"}, "kind 'llama' cannot be built from GGUF.*tokenizer.json works"),
        (
            {"pre": "tekken"},
            "'tekken' is not known here, only default, gpt-2.*tokenizer.json works",
        ),
        ({"merges": None}, "no vocabulary .tokenizer.ggml.merges"),
        ({"merges": ["abc"]}, "not a pair"),
        ({"merges": ["zz qq"]}, "vocabulary is damaged"),
        ({"tokens": [*TOKENS, "a"]}, "holds a token twice"),
        ({"token_type": [1]}, "one number a token"),
        ({"tokens": [*TOKENS, *map(str, range(1000, 1600))], "token_type": None}, "do not belong"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused_in_words(
    tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(PackError, match=says):
        gguf_tokenizer(tmp_path, **fields)


def library_tokenizer(tmp_path: Path) -> Library:
    path = tmp_path / "source"
    path.mkdir()
    return gguf_tokenizer(path)._tokenizer


def folder(tmp_path: Path, *, config: Any = None, bos: bool = False) -> Path:
    """A folder with tokenizer.json, whose post-processor puts <|im_start|> in front if `bos`."""
    library = library_tokenizer(tmp_path)
    if bos:
        library.post_processor = TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", START)]
        )
    library.save(str(tmp_path / "tokenizer.json"))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_folders_tokenizer_reads_like_the_one_it_was_saved_from(
    tmp_path: Path, small: Tokenizer
) -> None:
    tokenizer = load_tokenizer(folder(tmp_path), checkpoint_stub())
    for text in SAMPLES:
        assert tokenizer.encode(text) == small.encode(text)


def test_a_folders_ends_are_the_configs_and_the_tokenizers(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|endoftext|>"}
    tokenizer = load_tokenizer(folder(tmp_path, config=config), checkpoint_stub(end_ids=(7,)))
    assert tokenizer.end_ids == (7, END)
    assert tokenizer.bos_id == TOKENS.index("<|endoftext|>")
    assert tokenizer.special_texts == {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}


@pytest.mark.parametrize(("told", "adds"), [(None, True), (False, False)])
def test_a_folder_adds_a_beginning_id_as_its_processor_or_its_config_says(
    tmp_path: Path, told: bool | None, adds: bool
) -> None:
    config = {"bos_token": "<|im_start|>", "add_bos_token": told}
    tokenizer = load_tokenizer(folder(tmp_path, config=config, bos=True), checkpoint_stub())
    assert tokenizer.adds_bos is adds
    assert tokenizer.encode("<|im_start|>hi").count(START) == 1


@pytest.mark.parametrize(
    ("config", "file", "expected"),
    [
        ({}, None, None),
        ({"chat_template": "A"}, None, "A"),
        ({"chat_template": "A"}, "B", "B"),
        (
            {
                "chat_template": [
                    {"name": "tool", "template": "T"},
                    {"name": "default", "template": "D"},
                ]
            },
            None,
            "D",
        ),
    ],
)
def test_a_folders_chat_template_is_found(
    tmp_path: Path, config: Any, file: str | None, expected: str | None
) -> None:
    folder(tmp_path, config=config)
    if file is not None:
        (tmp_path / "chat_template.jinja").write_text(file)
    assert load_tokenizer(tmp_path, checkpoint_stub()).chat_template == expected


def test_a_gguf_vocabulary_not_known_here_is_saved_by_the_tokenizer_beside_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.gguf"
    checkpoint = gguf_checkpoint(path, pre="tekken")
    folder(tmp_path)
    assert load_tokenizer(path, checkpoint).encode("<|im_end|>") == [END]


def test_a_checkpoint_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="holds no tokenizer"):
        load_tokenizer(tmp_path, checkpoint_stub())


DAMAGE = [b"", b"{", b"[1]", b"\xff", b"[" * 100_000]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *(("tokenizer.json", data) for data in [*DAMAGE, b'{"model":{"type":"BPE"}}']),
        *(("tokenizer_config.json", data) for data in [*DAMAGE, b'{"chat_template":1}']),
    ],
)
def test_a_damaged_tokenizer_file_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    folder(tmp_path)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(PackError, match=name):
        load_tokenizer(tmp_path, checkpoint_stub())


def test_subwords_marked_by_a_prefix_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path) / "tokenizer.json"
    told = json.loads(path.read_text())
    told["model"]["continuing_subword_prefix"] = "##"
    path.write_text(json.dumps(told))
    with pytest.raises(PackError, match="marked by a prefix"):
        load_tokenizer(tmp_path, checkpoint_stub())


def test_a_tokenizer_larger_than_the_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="do not belong together"):
        load_tokenizer(folder(tmp_path), checkpoint_stub(vocab=100))
