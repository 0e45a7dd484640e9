"""Which head a checkpoint carries, told from headers: names, shapes, configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoint_makers import CONFIG, hf_tensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mtpx import backends, bare, packs
from mtpx.backend import Probe
from mtpx.errors import PackError
from mtpx.heads import (
    FAMILIES,
    TrunkSizes,
    announced_layers,
    expected_tensors,
    family_of,
    recognise,
    sizes_from_config,
    stored_offset,
)

QWEN: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 48,
        "mtp_num_hidden_layers": 1,
    },
}
MIXTURE = {
    "num_experts": 4,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
MIMO: dict[str, Any] = CONFIG | {
    "model_type": "mimo",
    "num_nextn_predict_layers": 1,
    "attention_bias": True,
    "tie_word_embeddings": False,
}


def head_tensors(family: str, config: dict[str, Any]) -> dict[str, np.ndarray]:
    shapes = expected_tensors(FAMILIES[family].contract, sizes_from_config(config, "config.json"))
    return {name: np.zeros([n or 1 for n in shape], np.float32) for name, shape in shapes.items()}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


TRUNK = {"model.embed_tokens.weight": np.zeros((48, 32), np.float32)}


# names


@pytest.mark.parametrize("outer", ["", "language_model.", "model.language_model."])
def test_a_qwen_head_is_found_under_whatever_its_language_model_is_called(outer: str) -> None:
    names = [outer + name for name in head_tensors("qwen3-next", QWEN)]
    found = recognise(QWEN, [*names, "model.layers.0.input_layernorm.weight"])
    assert found is not None
    assert found.contract.prefix == f"{outer}mtp."
    assert set(found.names) == set(names)


def test_a_head_at_the_end_of_the_trunk_is_found_and_nothing_of_the_trunk_with_it() -> None:
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 3, "num_nextn_predict_layers": 2}
    own = [f"model.layers.{n}.{part}.weight" for n in (3, 4) for part in ("eh_proj", "enorm")]
    found = recognise(config, [*own, "model.layers.2.input_layernorm.weight", "model.norm.weight"])
    assert found is not None
    assert (found.contract.family, found.contract.layers) == ("deepseek-v3", 2)
    assert set(found.names) == set(own)


def test_a_trunk_without_head_tensors_has_no_head() -> None:
    assert recognise(QWEN, ["model.embed_tokens.weight", "model.layers.0.mlp.up.weight"]) is None


def test_no_two_families_claim_one_model_type() -> None:
    claimed = [kind for row in FAMILIES.values() for kind in row.model_types]
    assert len(claimed) == len(set(claimed))


@pytest.mark.parametrize(
    ("config", "family", "layers"),
    [
        (QWEN, "qwen3-next", 1),
        (MIMO, "mimo", 1),
        ({"model_type": "nemotron_h", "num_nextn_predict_layers": 2}, "nemotron-3", 2),
        ({"model_type": "qwen3_next"}, "qwen3-next", 0),
        ({"model_type": "qwen3_next", "mtp_num_hidden_layers": True}, "qwen3-next", 0),
    ],
)
def test_a_configuration_tells_the_family_and_announces_layers(
    config: dict[str, Any], family: str, layers: int
) -> None:
    row = family_of(config)
    assert row is not None
    assert row.contract.family == family
    assert announced_layers(config) == layers


# shapes


def test_a_mixtures_head_has_a_gate_a_shared_expert_and_experts_of_its_own() -> None:
    config = QWEN | {"text_config": QWEN["text_config"] | MIXTURE}
    contract, sizes = FAMILIES["qwen3-next"].contract, sizes_from_config(config, "config.json")
    expected = expected_tensors(contract, sizes)
    assert expected["mtp.layers.0.mlp.gate.weight"] == (4, 32)
    assert expected["mtp.layers.0.mlp.shared_expert.down_proj.weight"] == (32, 24)
    assert expected["mtp.layers.0.mlp.shared_expert_gate.weight"] == (1, 32)
    assert expected["mtp.layers.0.mlp.experts.3.up_proj.weight"] == (16, 32)
    assert "mtp.layers.0.mlp.gate_proj.weight" not in expected
    fused = expected_tensors(contract, sizes, "fused")
    assert fused["mtp.layers.0.mlp.experts.gate_up_proj"] == (4, 32, 32)
    stacked = expected_tensors(contract, sizes, "stacked")
    assert stacked["mtp.layers.0.mlp.switch_mlp.down_proj.weight"] == (4, 32, 16)


def test_qwens_query_projection_is_twice_as_wide_for_its_gate() -> None:
    sizes = TrunkSizes(hidden=32, heads=4, kv_heads=2, head_dim=16, ffn=64, vocab=48)
    expected = expected_tensors(FAMILIES["qwen3-next"].contract, sizes)
    assert expected["mtp.layers.0.self_attn.q_proj.weight"] == (128, 32)
    assert expected["mtp.layers.0.self_attn.q_norm.weight"] == (16,)


def test_mimos_block_has_biases_on_its_projections() -> None:
    expected = expected_tensors(FAMILIES["mimo"].contract, sizes_from_config(MIMO, "config.json"))
    assert expected["model.mtp_layers.0.self_attn.k_proj.bias"] == (32,)
    assert "model.mtp_layers.0.self_attn.o_proj.bias" not in expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": "four"}, "num_attention_heads"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"num_experts": 4}, "moe_intermediate_size"),
        ({"vocab_size": 0}, "vocab_size"),
    ],
)
def test_a_configuration_that_does_not_tell_the_sizes_is_refused(
    change: dict[str, Any], said: str
) -> None:
    broken = QWEN | {"text_config": QWEN["text_config"] | change}
    with pytest.raises(PackError, match=said):
        sizes_from_config(broken, "config.json")


# folders


def test_a_folder_with_a_fitting_head_is_unverified_and_says_how_it_is_wired(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "m", QWEN, TRUNK | head_tensors("qwen3-next", QWEN))
    found = bare.classify(folder)
    assert found.kind == "unverified"
    assert "runs on the mlx backend" in found.why
    assert found.head.startswith("15 tensors under mtp.: embedding first, then hidden")
    assert "1 + w applied" in found.head


def test_a_head_that_misses_a_tensor_is_refused_with_its_name(tmp_path: Path) -> None:
    tensors = head_tensors("qwen3-next", QWEN)
    del tensors["mtp.norm.weight"]
    found = bare.classify(write(tmp_path / "m", QWEN, TRUNK | tensors))
    assert found.kind == "refused"
    assert "missing: mtp.norm.weight" in found.why


def test_a_head_of_another_size_is_refused_with_both_shapes(tmp_path: Path) -> None:
    tensors = head_tensors("qwen3-next", QWEN)
    tensors["mtp.fc.weight"] = np.zeros((16, 64), np.float32)
    found = bare.classify(write(tmp_path / "m", QWEN, TRUNK | tensors))
    assert found.kind == "refused"
    assert "mtp.fc.weight is 16×64 instead of 32×64" in found.why


def test_a_packed_head_is_held_against_what_it_unpacks_to(tmp_path: Path) -> None:
    tensors = head_tensors("qwen3-next", QWEN)
    del tensors["mtp.fc.weight"]
    packed = {
        "mtp.fc.weight": np.zeros((32, 64 * 4 // 32), np.uint32),
        "mtp.fc.scales": np.zeros((32, 2), np.float16),
        "mtp.fc.biases": np.zeros((32, 2), np.float16),
    }
    declared = QWEN | {"quantization": {"bits": 4, "group_size": 32}}
    folder = write(tmp_path / "m", declared, TRUNK | tensors | packed)
    assert bare.classify(folder).kind == "unverified"
    write(folder, QWEN | {"quantization": {"bits": 8, "group_size": 32}}, TRUNK | tensors | packed)
    found = bare.classify(folder)
    assert found.kind == "refused"
    assert "does not match config.json's quantisation" in found.why


def test_a_head_that_was_announced_and_left_out_is_missed(tmp_path: Path) -> None:
    found = bare.classify(write(tmp_path / "m", QWEN, TRUNK))
    assert found.kind == "plain only"
    assert "announces an MTP head, but the files do not hold it" in found.why


def test_a_recognised_head_that_nobody_wired_is_refused_with_what_is_known(tmp_path: Path) -> None:
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 1, "num_nextn_predict_layers": 1}
    tensors = {"model.layers.1.eh_proj.weight": np.zeros((4, 8), np.float32)}
    found = bare.classify(write(tmp_path / "m", config, TRUNK | tensors))
    assert found.kind == "refused"
    assert FAMILIES["deepseek-v3"].known in found.why
    assert "under model.layers.N." in found.head


def test_mimo_decodes_plain_where_it_lost_its_head(tmp_path: Path) -> None:
    tensors = hf_tensors(MIMO | {"model_type": "qwen2"})
    found = bare.classify(write(tmp_path / "m", MIMO, tensors))
    assert found.kind == "plain only"
    assert "the files do not hold it" in found.why


def test_no_weight_is_read(tmp_path: Path) -> None:
    """Holes in place of the weights: gigabytes that are not on the disk."""
    folder = write(tmp_path / "m", QWEN, TRUNK | head_tensors("qwen3-next", QWEN))
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    end = max(entry["data_offsets"][1] for entry in header.values())
    rows = 2**26
    header["huge.weight"] = {
        "dtype": "F32",
        "shape": [rows, 16],
        "data_offsets": [end, end + rows * 64],
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end + rows * 64)
    assert bare.classify(folder).kind == "unverified"


def test_a_bare_folder_offers_the_head_it_holds(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", QWEN, TRUNK | head_tensors("qwen3-next", QWEN))
    pack = packs.resolve(folder)
    assert pack.contract == FAMILIES["qwen3-next"].contract
    assert pack.head == pack.weights
    assert not pack.verified
    shutil.copytree(folder, tmp_path / "headless")
    write(tmp_path / "headless", QWEN, TRUNK)
    headless = packs.resolve(tmp_path / "headless")
    assert (headless.head, headless.contract) == (None, None)


# norms


NORMS = {
    "model.layers.3.input_layernorm.weight": 1.0,
    "model.layers.3.self_attn.q_norm.weight": 1.4,
    "model.norm.weight": 2.5,
}


@given(
    gain=st.floats(0.3, 3.0),
    spread=st.floats(0.01, 0.1),
    shifted=st.booleans(),
    name=st.sampled_from(["input_layernorm", "self_attn.q_norm"]),
)
def test_a_norm_near_the_trunks_is_recognised_as_stored(
    gain: float, spread: float, shifted: bool, name: str
) -> None:
    trunk = {f"model.layers.3.{name}.weight": gain}
    rng = np.random.default_rng(0)
    applied = gain + rng.normal(0, spread * gain, 200)
    stored = applied if shifted else applied - 1
    assert stored_offset(stored, trunk, f"mtp.layers.0.{name}.weight") == (0 if shifted else 1)


def test_input_norms_have_no_like_in_the_trunk_and_are_told_by_their_sign() -> None:
    """Qwen's own have w below zero nearly everywhere."""
    w = np.random.default_rng(0).normal(-0.6, 0.1, 200)
    name = "mtp.pre_fc_norm_embedding.weight"
    assert stored_offset(w, NORMS, name) == 1
    assert stored_offset(w + 1, NORMS, name) == 0


def test_the_final_norm_is_held_against_the_trunks_final_norm() -> None:
    stored = np.random.default_rng(0).normal(1.4, 0.1, 200)
    assert stored_offset(stored, NORMS, "mtp.norm.weight") == 1
    assert stored_offset(stored + 1, NORMS, "mtp.norm.weight") == 0


# which backend


def test_an_architecture_the_core_does_not_know_goes_to_the_backend_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "m", QWEN, TRUNK)
    able = SimpleNamespace(probe=lambda device: Probe(True), reads=lambda kind: kind == "qwen3_5")
    other = SimpleNamespace(probe=lambda device: Probe(True))
    made = {"first": other, "second": able}
    monkeypatch.setattr(backends, "backend_names", lambda: list(made))
    monkeypatch.setattr(backends, "get_backend", made.__getitem__)
    assert backends.choose_backend("auto", "auto", bare.model_types(folder)) is able
    assert backends.choose_backend("auto", "auto", ("llama",)) is other
    assert backends.choose_backend("auto", "auto", ("mystery",)) is other
    assert backends.choose_backend("first", "auto", ("qwen3_5",)) is other


def test_a_folder_that_tells_nothing_has_no_architecture(tmp_path: Path) -> None:
    assert bare.model_types(tmp_path) == ()
    (tmp_path / "config.json").write_text("[]")
    assert bare.model_types(tmp_path) == ()


# damage


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
FIELDS = [
    "model_type",
    "text_config",
    "quantization",
    "num_hidden_layers",
    "mtp_num_hidden_layers",
    "num_experts",
    "hidden_size",
    "head_dim",
]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(field=st.sampled_from(FIELDS), value=JUNK, inner=st.booleans(), kind=st.sampled_from("UFI"))
def test_whatever_a_configuration_says_the_folder_is_classified(
    tmp_path: Path, field: str, value: Any, inner: bool, kind: str
) -> None:
    config = json.loads(json.dumps(QWEN))
    (config["text_config"] if inner else config)[field] = value
    tensors = TRUNK | head_tensors("qwen3-next", QWEN)
    tensors["mtp.fc.weight"] = np.zeros((), {"U": "u4", "F": "f4", "I": "i4"}[kind])
    found = bare.classify(write(tmp_path / "m", config, tensors))
    assert found.why
    assert "\n" not in found.why


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_header_is_classified(tmp_path: Path, at: int, byte: int) -> None:
    folder = write(tmp_path / "m", QWEN, TRUNK | head_tensors("qwen3-next", QWEN))
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[at] = byte
    path.write_bytes(data)
    assert bare.classify(folder).why
