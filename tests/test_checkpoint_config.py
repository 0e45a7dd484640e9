"""What a target is, told by config.json or GGUF metadata; what is refused, and in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_makers import CONFIG, hf_tensors, opened_or_refused, write_folder, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpx.checkpoint import FactorScaling, LinearScaling, Llama3Scaling, open_checkpoint
from mtpx.checkpoint.config import TargetConfig
from mtpx.checkpoint.config_json import config_from_folder
from mtpx.errors import PackError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def config(folder: Path, generation: Any = None, **fields: Any) -> TargetConfig:
    """CONFIG with `fields` changed; a field set to ... is left out."""
    told = {k: v for k, v in (CONFIG | fields).items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(told))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return config_from_folder(folder)


def test_end_ids_are_those_of_both_files_each_once(tmp_path: Path) -> None:
    told = config(tmp_path, generation={"eos_token_id": [7, 2]}, eos_token_id=[2, 9])
    assert told.end_ids == (7, 2, 9)


def test_gguf_end_ids_are_end_of_sequence_and_of_turn(tmp_path: Path) -> None:
    fields = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2}
    assert open_checkpoint(write_gguf(tmp_path / "m.gguf", fields=fields)).config.end_ids == (2, 5)


def test_a_checkpoint_without_a_beginning_id_has_none(tmp_path: Path) -> None:
    assert config(tmp_path, bos_token_id=None).bos_id is None


@pytest.mark.parametrize(
    ("family", "attention", "output", "norm"),
    [
        ("llama", False, False, False),
        ("mistral", False, False, False),
        ("qwen2", True, False, False),
        ("qwen3", False, False, True),
        ("mimo", True, False, False),
    ],
)
def test_each_family_has_the_attention_of_its_definition(
    tmp_path: Path, family: str, attention: bool, output: bool, norm: bool
) -> None:
    told = config(tmp_path, model_type=family, sliding_window=None)
    assert (told.attention_bias, told.output_bias, told.qk_norm) == (attention, output, norm)


def test_llama_biases_follow_their_flags(tmp_path: Path) -> None:
    told = config(tmp_path, attention_bias=True, mlp_bias=True)
    assert (told.attention_bias, told.output_bias, told.mlp_bias) == (True, True, True)


def test_qwen3_heads_have_128_dimensions_unless_told_otherwise(tmp_path: Path) -> None:
    assert config(tmp_path, model_type="qwen3").head_dim == 128
    assert config(tmp_path, model_type="qwen3", head_dim=32).head_dim == 32


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_opens_from_a_folder_and_from_gguf_alike(tmp_path: Path, family: str) -> None:
    fields = CONFIG | {"model_type": family, "head_dim": 16, "tie_word_embeddings": False}
    tensors = hf_tensors(fields)
    folder = open_checkpoint(write_folder(tmp_path / "hf", fields)).config
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", arch=family, tensors=tensors)).config
    assert (folder.family, folder.attention_bias, folder.qk_norm, folder.tied) == (
        file.family,
        file.attention_bias,
        file.qk_norm,
        file.tied,
    )
    assert not file.tied


def test_rope_parameters_of_newer_configs_are_read(tmp_path: Path) -> None:
    told = config(
        tmp_path,
        rope_theta=...,
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
    )
    assert (told.rope_base, told.rope_scaling) == (5e5, LinearScaling(4.0))


@pytest.mark.parametrize(
    "scaling",
    [None, {"type": "linear", "factor": 4.0}, {"rope_type": "default"}, LLAMA3],
    ids=["none", "linear", "default", "llama3"],
)
def test_rotary_frequencies_are_those_of_transformers(
    tmp_path: Path, scaling: dict[str, Any] | None
) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    told = config(tmp_path, rope_scaling=scaling, head_dim=32)
    theirs = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
        | {("rope_type" if k == "type" else k): v for k, v in (scaling or {}).items()},
    )
    expected = LlamaRotaryEmbedding(theirs).inv_freq.numpy()
    np.testing.assert_allclose(told.rope_frequencies(), expected, rtol=1e-6)


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 256)
    short, long = 2 * np.pi / 10, 2 * np.pi / 10_000
    np.testing.assert_allclose(scaling.apply(np.array([short, long])), [short, long / 8])


def test_gguf_rotary_factors_divide_the_frequencies(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", extra={"rope_freqs.weight": factors})
    told = open_checkpoint(path).config
    assert isinstance(told.rope_scaling, FactorScaling)
    plain = 10000.0 ** (-np.arange(8) / 8)
    np.testing.assert_allclose(told.rope_frequencies(), plain / factors, rtol=1e-6)


def test_gguf_linear_scaling_is_read(tmp_path: Path) -> None:
    fields = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    told = open_checkpoint(write_gguf(tmp_path / "m.gguf", fields=fields)).config
    assert told.rope_scaling == LinearScaling(2.0)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "qwen3_moe"}, r"architecture qwen3_moe is not supported \(it has mixture"),
        ({"model_type": "gemma3"}, r"gemma3 is not supported .*supported: llama, mistral, qwen2"),
        ({"model_type": "qwen3_5"}, "GatedDeltaNet"),
        (
            {"model_type": ..., "architectures": ["FooForCausalLM"]},
            "FooForCausalLM is not supported",
        ),
        ({"model_type": ...}, r"\(not named\) is not supported"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "'yarn' is not supported; supported: linear",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "llama3 rope scaling needs low_freq",
        ),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "needs factor, found '4'"),
        ({"rope_scaling": {"type": "linear", "factor": -1.0}}, "outside its range"),
        ({"rope_scaling": {"type": 3}}, "not a name"),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "high_freq_factor > low_freq_factor",
        ),
        ({"partial_rotary_factor": 0.5}, "partial rotary embedding .8 of 16"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported; supported: silu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised as 'fp8'"),
        ({"model_type": "mistral", "sliding_window": 256}, "over 256 of 512 tokens"),
        ({"model_type": "mistral", "max_position_embeddings": 8192}, "over 4,096 of 8,192 tokens"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 100}, "over 100"),
        (
            {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2, "sliding_window": 9},
            "over 9",
        ),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"hidden_size": "64"}, r"Expected `int`, got `str` - at `\$.hidden_size`"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"vocab_size": ...}, "vocab_size"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
        ({"model_type": "qwen2", "num_key_value_heads": ...}, "num_key_value_heads is absent"),
        ({"head_dim": 15}, "15 dimensions cannot be rotated"),
        ({"eos_token_id": 96}, "token id 96 is outside the vocabulary of 96"),
    ],
)
def test_what_is_not_supported_is_refused_in_words(
    tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(PackError, match=says):
        config(tmp_path, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 512},
        {"model_type": "mistral"},
        {"model_type": "qwen2", "sliding_window": 100, "use_sliding_window": False},
        {
            "model_type": "qwen2",
            "sliding_window": 9,
            "use_sliding_window": True,
            "max_window_layers": 2,
        },
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 2, "sliding_window": 9},
    ],
)
def test_a_window_that_never_closes_is_no_hindrance(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert config(tmp_path, **fields).context == 512


@pytest.mark.parametrize(
    ("arch", "fields", "says"),
    [
        ("gemma3", {}, "gemma3 is not supported"),
        ("llama", {"llama.expert_count": 8}, "mixture-of-experts"),
        ("llama", {"llama.attention.sliding_window": 128}, "over 128 of 512"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, "'yarn' is not supported"),
        ("llama", {"llama.rope.dimension_count": 8}, "partial rotary embedding"),
        ("llama", {"llama.attention.value_length": 8}, "of one size"),
        ("llama", {"llama.attention.head_count": [4, 4]}, "is a list"),
        ("llama", {"llama.context_length": "long"}, "Expected `int`"),
        ("llama", {"tokenizer.ggml.eos_token_id": 96}, "outside the vocabulary"),
    ],
)
def test_gguf_features_that_are_not_supported_are_refused(
    tmp_path: Path, arch: str, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(PackError, match=says):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", arch=arch, fields=fields))


def test_an_absent_gguf_key_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", without=("llama.block_count",))
    with pytest.raises(PackError, match="block_count"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("blk.1.attn_sub_norm.weight", r"layers\.1\.attn_sub_norm\.weight is not part of llama"),
        ("blk.1.ffn_gate.0.weight", r"layers\.1\.ffn_gate\.0\.weight is not part of llama"),
        ("token_embd_norm.weight", r"nothing here computes with token_embd_norm\.weight"),
    ],
)
def test_a_gguf_tensor_nobody_computes_with_is_refused(
    tmp_path: Path, name: str, says: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", extra={name: np.ones(64, np.float32)})
    with pytest.raises(PackError, match=says):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, name: str, text: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_bytes(text)
    with pytest.raises(PackError, match=name):
        config_from_folder(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("fuzz"))


LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 600),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "mimo", "linear", "llama3", "yarn"]),
)
VALUE = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "rope_type", "factor", "rope_theta", "low_freq_factor"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=6,
)
KEYS = [
    *CONFIG,
    "head_dim",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "attention_bias",
    "mlp_bias",
    "quantization_config",
]


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUE, min_size=1, max_size=3))
def test_any_config_gives_a_checkpoint_or_a_pack_error(
    folder: Path, changes: dict[str, Any]
) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    assert opened_or_refused(folder)
