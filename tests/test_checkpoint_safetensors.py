"""Safetensors files and folders of them, read against the library, and damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_makers import CONFIG, hf_tensors, opened_or_refused, write_folder
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mtpx.checkpoint import dequantise, integers, open_checkpoint, read_safetensors
from mtpx.errors import PackError

ROOT = Path(__file__).parents[1]
HEAD = ROOT / "packs" / "mtpx_packs" / "smollm2-135m" / "head.safetensors"


def raw(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_read_as_the_library_reads_them(tmp_path: Path, dtype: Any) -> None:
    path = tmp_path / "m.safetensors"
    save_file(hf_tensors(dtype=dtype), path, metadata={"format": "pt"})
    tensors, metadata = read_safetensors(path)
    reference = load_file(path)
    assert metadata == {"format": "pt"}
    assert set(tensors) == set(reference)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(dequantise(tensor), reference[name].astype(np.float32))


def test_the_embedded_head_reads_as_torch_reads_it() -> None:
    torch = pytest.importorskip("torch")
    tensors, metadata = read_safetensors(HEAD)
    with safe_open(HEAD, "pt") as reference:
        assert metadata == (reference.metadata() or {})
        assert set(tensors) == set(reference.keys())
        for name, tensor in tensors.items():
            expected = reference.get_tensor(name)
            if tensor.kind == "BF16":
                np.testing.assert_array_equal(
                    dequantise(tensor), expected.to(torch.float32).numpy()
                )
            else:
                np.testing.assert_array_equal(integers(tensor), expected.numpy())


def test_an_index_table_is_not_taken_for_weights(tmp_path: Path) -> None:
    save_file({"i": np.arange(3), "w": np.zeros(3, np.float32)}, tmp_path / "m.safetensors")
    tensors, _ = read_safetensors(tmp_path / "m.safetensors")
    assert integers(tensors["i"]).tolist() == [0, 1, 2]
    with pytest.raises(PackError, match="i holds integers"):
        dequantise(tensors["i"])
    with pytest.raises(PackError, match="w must hold integers"):
        integers(tensors["w"])


def test_tensors_are_views_of_the_file_that_cannot_be_written() -> None:
    tensor = read_safetensors(HEAD)[0]["mtp.fc.weight"]
    assert not tensor.data.flags.owndata
    assert not tensor.data.flags.writeable


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DAMAGED = {
    "nothing": (b"", "empty"),
    "four bytes": (b"abcd", "cut short"),
    "a header longer than the file": (struct.pack("<Q", 2**62) + b"{}", "announced"),
    "no JSON": (raw(b"{,"), "not safetensors'"),
    "not UTF-8": (raw(b"\xff\xff"), "not safetensors'"),
    "not an object": (raw([1]), "not an object"),
    "JSON without end": (raw(b'{"a":' + b"[" * 100_000), "not safetensors'"),
    "a name twice": (
        raw(b'{"a":%s,"a":%s}' % ((json.dumps(F32).encode(),) * 2), bytes(8)),
        "twice",
    ),
    "an entry without offsets": (raw({"a": {"dtype": "F32", "shape": [2]}}), "data_offsets"),
    "a dtype that is not read": (
        raw({"a": F32 | {"dtype": "F8_E4M3"}}, bytes(8)),
        "F8_E4M3.*read are",
    ),
    "a shape of another size": (raw({"a": F32 | {"shape": [3]}}, bytes(8)), "is not the 8 bytes"),
    "a negative shape": (raw({"a": F32 | {"shape": [-2, -1]}}, bytes(8)), "is not the 8 bytes"),
    "offsets in reverse": (raw({"a": F32 | {"data_offsets": [8, 0]}}, bytes(8)), "is not the -8"),
    "a negative offset": (raw({"a": F32 | {"data_offsets": [-8, 0]}}, bytes(8)), "overlaps"),
    "overlapping tensors": (
        raw({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, bytes(12)),
        "overlaps",
    ),
    "a gap": (raw({"a": F32 | {"data_offsets": [4, 12]}}, bytes(12)), "gap"),
    "bytes left over": (raw({"a": F32}, bytes(9)), "1 bytes that belong to no tensor"),
    "cut short": (raw({"a": F32}, bytes(7)), "cut short"),
}


@pytest.mark.parametrize(("data", "says"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_refused_with_its_reason(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(PackError, match=says):
        read_safetensors(path)


def shard(folder: Path, index: dict[str, str] | None = None) -> Path:
    """The small model in two files and an index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = hf_tensors()
    names = sorted(tensors)
    places = {n: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, n in enumerate(names)}
    for file in set(places.values()):
        save_file({n: tensors[n] for n in names if places[n] == file}, folder / file)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": places if index is None else index}))
    return folder


def test_a_sharded_folder_opens_like_a_single_file(tmp_path: Path) -> None:
    sharded = open_checkpoint(shard(tmp_path / "shards"))
    single = open_checkpoint(write_folder(tmp_path / "single"))
    assert set(sharded.tensors) == set(single.tensors)
    assert len(sharded.files) == 2
    for name, tensor in single.tensors.items():
        assert bytes(sharded.tensors[name].data) == bytes(tensor.data)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ({"model.norm.weight": "../elsewhere.safetensors"}, "not in the folder"),
        ({"model.norm.weight": "config.json"}, "not in the folder"),
        ({"absent": "model-00001-of-00002.safetensors"}, "does not hold absent"),
        ({}, "names no tensors"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(
    tmp_path: Path, index: dict[str, str], says: str
) -> None:
    with pytest.raises(PackError, match=says):
        open_checkpoint(shard(tmp_path, index))


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    shard(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(PackError, match=r"2 \.safetensors files but no"):
        open_checkpoint(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = hf_tensors()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(PackError, match=r"1 of 20 tensors are missing.*layers\.1\.mlp\.up_proj"):
        open_checkpoint(write_folder(tmp_path, tensors=tensors))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    tensors = hf_tensors() | {"model.norm.weight": np.zeros(63, np.float16)}
    with pytest.raises(
        PackError, match=r"model.norm.weight has shape \(63,\), \(64,\) is expected"
    ):
        open_checkpoint(write_folder(tmp_path, tensors=tensors))


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.norm.bias", "lm_head.bias"]
)
def test_a_tensor_the_arithmetic_would_leave_out_is_refused(tmp_path: Path, name: str) -> None:
    extra = {name: np.zeros(64, np.float16)}
    with pytest.raises(PackError, match=rf"{name} is not part of llama"):
        open_checkpoint(write_folder(tmp_path, tensors=hf_tensors() | extra))


def test_a_heads_tensors_may_lie_beside_the_targets(tmp_path: Path) -> None:
    beside = {
        "model.layers.2.eh_proj.weight": np.zeros((64, 128), np.float16),
        "model.mtp_layers.0.input_proj.weight": np.zeros((64, 128), np.float16),
        "lm_head.weight": np.zeros((96, 64), np.float16),
        "mtp.fc.weight": np.zeros((64, 128), np.float16),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32),
    }
    checkpoint = open_checkpoint(write_folder(tmp_path, tensors=hf_tensors() | beside))
    assert set(beside) < set(checkpoint.tensors)


def test_a_safetensors_file_alone_is_not_a_checkpoint() -> None:
    with pytest.raises(PackError, match=r"the folder that holds config\.json"):
        open_checkpoint(HEAD)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return (write_folder(tmp_path_factory.mktemp("st")) / "model.safetensors").read_bytes()


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 2200), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4
    ),
    cut=st.one_of(st.none(), st.integers(0, 4000)),
)
@example(edits=[(0, b"\xff" * 8)], cut=None)
def test_a_mutated_file_gives_a_checkpoint_or_a_pack_error(
    small: bytes, tmp_path: Path, edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(small)
    for at, new in edits:
        data[at : at + len(new)] = new
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(bytes(data[:cut]))
    assert opened_or_refused(tmp_path)
