"""GGUF files, read against gguf-py, and damaged in every way hypothesis finds."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoint_makers import (
    CONFIG,
    gguf_name,
    hf_tensors,
    opened_or_refused,
    write_folder,
    write_gguf,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mtpx.checkpoint import dequantise, open_checkpoint, unpermute_rows
from mtpx.checkpoint.gguf import read_gguf
from mtpx.errors import PackError

Q = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", kind=Q.Q4_1)


@pytest.mark.parametrize(
    "kind", [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q8_0], ids=lambda k: k.name
)
def test_every_block_type_reads_as_gguf_py_dequantises_it(tmp_path: Path, kind: Q) -> None:
    path = write_gguf(tmp_path / "m.gguf", kind=kind)
    reference = {
        t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors
    }
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.quantisation == kind.name
        assert len(checkpoint.tensors) == len(reference)
        for name, tensor in checkpoint.tensors.items():
            expected = reference[gguf_name(name)]
            np.testing.assert_array_equal(dequantise(tensor), expected)
            assert tensor.shape == expected.shape


def test_metadata_reads_as_gguf_py_reads_it(tmp_path: Path) -> None:
    fields = {
        "x.list": ["a", "", "日本"],
        "x.numbers": [1, -2, 3],
        "x.flag": True,
        "x.half": 0.5,
        "x.text": "naïve",
    }
    read = read_gguf(write_gguf(tmp_path / "m.gguf", fields=fields)).metadata
    for key, value in fields.items():
        found = read[key].tolist() if isinstance(read[key], np.ndarray) else read[key]
        assert found == value, key


@pytest.mark.model
def test_the_embedded_model_reads_as_gguf_py_reads_it(embedded_weights: Path) -> None:
    reader = gguf.GGUFReader(embedded_weights)
    file = read_gguf(embedded_weights)
    assert {k for k in reader.fields if not k.startswith("GGUF.")} == set(file.metadata)
    assert (
        file.metadata["tokenizer.ggml.tokens"] == reader.fields["tokenizer.ggml.tokens"].contents()
    )
    for tensor in reader.tensors:
        mine = file.tensors[tensor.name]
        assert mine.kind == tensor.tensor_type.name
        assert bytes(mine.data) == tensor.data.tobytes(), tensor.name


@pytest.mark.model
def test_the_embedded_model_is_what_its_card_says(embedded_weights: Path) -> None:
    # HuggingFaceTB/SmolLM2-135M-Instruct, config.json.
    with open_checkpoint(embedded_weights) as checkpoint:
        c = checkpoint.config
        assert (c.family, c.layers, c.hidden, c.ffn) == ("llama", 30, 576, 1536)
        assert (c.heads, c.kv_heads, c.head_dim, c.vocab) == (9, 3, 64, 49152)
        assert (c.context, c.rope_base, c.tied, c.bos_id, c.end_ids) == (8192, 1e5, True, 1, (2,))
        assert c.rms_eps == pytest.approx(1e-5)


def test_tensors_are_views_of_the_file_that_cannot_be_written(small: Path) -> None:
    tensor = open_checkpoint(small).tensors["model.embed_tokens.weight"]
    assert not tensor.data.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        tensor.data[0] = 1


def test_a_view_outlives_its_closed_checkpoint(small: Path) -> None:
    checkpoint = open_checkpoint(small)
    tensor = checkpoint.tensors["model.norm.weight"]
    before = dequantise(tensor)
    checkpoint.close()
    assert not checkpoint.tensors
    np.testing.assert_array_equal(dequantise(tensor), before)


def test_rows_of_a_quantised_matrix_can_be_picked_as_bytes(small: Path) -> None:
    tensor = open_checkpoint(small).tensors["model.embed_tokens.weight"]
    assert tensor.rows.shape == (96, 64 // 32 * 20)
    assert tensor.nbytes == 96 * 40


def llama_cpp_permute(w: np.ndarray, n_heads: int) -> np.ndarray:
    """What convert_hf_to_gguf.py does to q and k, by its definition: inside a head, row
    (half h, pair j) moves to place 2 j + h."""
    dim = len(w) // n_heads
    out = np.empty_like(w)
    for row in range(len(w)):
        head, inside = divmod(row, dim)
        half, pair = divmod(inside, dim // 2)
        out[head * dim + 2 * pair + half] = w[row]
    return out


@given(heads=st.integers(1, 5), pairs=st.integers(1, 8))
def test_unpermuting_undoes_the_converters_permutation(heads: int, pairs: int) -> None:
    w = np.arange(heads * pairs * 2)
    index = unpermute_rows(heads, len(w))
    np.testing.assert_array_equal(llama_cpp_permute(w, heads)[index], w)


def test_only_llama_q_and_k_are_marked_permuted(tmp_path: Path) -> None:
    llama = open_checkpoint(write_gguf(tmp_path / "llama.gguf"))
    marked = {name for name, t in llama.tensors.items() if t.permuted}
    assert marked == {f"model.layers.{i}.self_attn.{p}_proj.weight" for i in (0, 1) for p in "qk"}
    config = CONFIG | {"model_type": "qwen2"}
    qwen = write_gguf(tmp_path / "qwen.gguf", arch="qwen2", tensors=hf_tensors(config))
    assert not any(t.permuted for t in open_checkpoint(qwen).tensors.values())


def test_a_gguf_and_a_folder_of_one_model_have_one_config(tmp_path: Path) -> None:
    folder = open_checkpoint(write_folder(tmp_path / "hf"))
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf"))
    assert set(folder.tensors) == set(file.tensors)
    for field in folder.config.__slots__:
        a, b = getattr(folder.config, field), getattr(file.config, field)
        assert a == (pytest.approx(b) if isinstance(b, float) else b), field


def test_a_folder_with_one_gguf_file_opens(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    assert open_checkpoint(tmp_path).config.layers == 2


def test_two_gguf_files_in_a_folder_are_a_question(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf")
    with pytest.raises(PackError, match=r"name one of them: a\.gguf, b\.gguf"):
        open_checkpoint(tmp_path)


def test_a_path_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="no checkpoint at"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(PackError, match="holds no checkpoint"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(PackError, match="never opened"):
        open_checkpoint(tmp_path)


def test_unread_block_types_are_listed_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("a", np.zeros((1, 144), np.uint8), raw_dtype=Q.Q4_K)
    writer.add_tensor("b", np.zeros((1, 210), np.uint8), raw_dtype=Q.Q6_K)
    writer.add_tensor("c", np.zeros((1, 210), np.uint8), raw_dtype=Q.Q6_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        PackError, match=r"Q4_K \(1 tensor\), Q6_K \(2 tensors\); read are F32, .*Q8_0"
    ):
        open_checkpoint(path)


def test_layers_that_a_wrong_count_would_leave_out_are_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", fields={"llama.block_count": 1})
    with pytest.raises(
        PackError, match="layer 1 is like the target's own, and its config counts 1"
    ):
        open_checkpoint(path)


def test_a_file_shortened_after_it_was_opened_is_a_sentence(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small.read_bytes())
    with open_checkpoint(path) as checkpoint:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(PackError, match="was cut short while it was being read"):
            list(map(dequantise, checkpoint.tensors.values()))


def test_a_file_cut_short_says_how_many_bytes_are_missing(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[:-100])
    with pytest.raises(PackError, match=rf"cut short.*needs [\d,]+ bytes.*has {len(data) - 100:,}"):
        open_checkpoint(path)


def header(version: int = 3, tensors: int = 0, fields: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + rest


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor_entry(name: bytes, shape: tuple[int, ...], type: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, offset)


HUGE = 2**63
HOSTILE = {
    "no tensors could be that many": (header(tensors=HUGE), "takes"),
    "no fields could be that many": (header(fields=HUGE), "takes"),
    "a key longer than the file": (
        header(fields=1, rest=struct.pack("<Q", HUGE) + bytes(8)),
        "takes",
    ),
    "an array longer than the file": (
        header(fields=1, rest=text(b"k") + struct.pack("<IIQ", 9, 4, HUGE)),
        "takes",
    ),
    "strings longer than the file": (
        header(fields=1, rest=text(b"k") + struct.pack("<IIQ", 9, 8, HUGE)),
        "takes",
    ),
    "arrays of arrays without end": (
        header(fields=1, rest=text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 200),
        "nests",
    ),
    "an unknown value type": (
        header(fields=1, rest=text(b"k") + struct.pack("<II", 77, 0)),
        "type 77",
    ),
    "a field twice": (
        header(fields=2, rest=(text(b"k") + struct.pack("<IB", 0, 1)) * 2),
        "'k' twice",
    ),
    "a tensor twice": (
        header(
            tensors=2,
            rest=tensor_entry(b"t", (1,), 0, 0) + tensor_entry(b"t", (1,), 0, 32) + bytes(128),
        ),
        "'t' twice",
    ),
    "tensors that overlap": (
        header(
            tensors=2,
            rest=tensor_entry(b"t", (16,), 0, 0) + tensor_entry(b"u", (1,), 0, 32) + bytes(128),
        ),
        "overlap",
    ),
    "too many dimensions": (
        header(tensors=1, rest=tensor_entry(b"t", (1,) * 5, 0, 0)),
        "5 dimensions",
    ),
    "a shape whose product overflows": (
        header(tensors=1, rest=tensor_entry(b"t", (2**62, 2**62), 0, 0)),
        "cut short",
    ),
    "a row that is no whole number of blocks": (
        header(tensors=1, rest=tensor_entry(b"t", (33,), 8, 0) + bytes(128)),
        "cannot hold",
    ),
    "an offset off the alignment": (
        header(tensors=1, rest=tensor_entry(b"t", (1,), 0, 4) + bytes(128)),
        "aligned",
    ),
    "an alignment that is no power of two": (
        header(fields=1, rest=text(b"general.alignment") + struct.pack("<II", 4, 24)),
        "power of two",
    ),
    "version 1": (header(version=1), "version 1"),
    "the other byte order": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian version 3"),
    "another format": (b"PK\3\4" + bytes(64), "not a GGUF"),
    "text that is not UTF-8": (header(fields=1, rest=text(b"\xff") + bytes(8)), "UTF-8"),
    "nothing": (b"", "empty"),
    "one byte": (b"G", "not a GGUF"),
    "no architecture": (header(), "not supported"),
}


@pytest.mark.parametrize(("data", "says"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_with_its_reason(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    with pytest.raises(PackError, match=says):
        open_checkpoint(path)


def test_version_2_reads_like_version_3(small: Path, tmp_path: Path) -> None:
    data = bytearray(small.read_bytes())
    data[4] = 2
    path = tmp_path / "v2.gguf"
    path.write_bytes(bytes(data))
    assert open_checkpoint(path).config == open_checkpoint(small).config


# The header alone is worth mutating; the weights behind it may be anything.
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, 3000),
            st.one_of(st.binary(max_size=1), st.binary(min_size=8, max_size=8)),
        ),
        min_size=1,
        max_size=4,
    ),
    cut=st.one_of(st.none(), st.integers(0, 20_000)),
)
@example(edits=[(8, b"\xff" * 8)], cut=None)
@example(edits=[(16, b"\xff" * 8)], cut=None)
@example(edits=[(595, b"\n")], cut=None)  # a line break in a tensor's name
def test_a_mutated_file_gives_a_checkpoint_or_a_pack_error(
    small: Path, tmp_path: Path, edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(small.read_bytes())
    for at, new in edits:
        data[at : at + len(new)] = new
    path = tmp_path / "mutated.gguf"
    path.write_bytes(bytes(data[:cut]))
    assert opened_or_refused(path)
