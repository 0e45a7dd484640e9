"""GGUF files that hold an MTP head (`blk.N.nextn.*`): told, and refused with what is known of it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from command import Command

from mtpx import bare
from mtpx.checkpoint import open_checkpoint
from mtpx.errors import PackError

HEAD = ("eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head_norm.weight")


def write(folder: Path, architecture: str, head: tuple[str, ...] = HEAD) -> Path:
    """A file of this architecture, in blocks (Q4_K) that are not read here either."""
    path = folder / f"{architecture}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(4)
    kind = gguf.GGMLQuantizationType.Q4_K
    raw = np.zeros((4, 144), dtype=np.uint8)
    for name in ("token_embd.weight", *(f"blk.4.nextn.{part}" for part in head)):
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("architecture", ["qwen3next", "qwen35", "qwen35moe"])
def test_a_qwen_file_says_where_its_head_is_and_from_where_it_drafts(
    architecture: str, tmp_path: Path
) -> None:
    found = bare.classify(write(tmp_path, architecture))
    assert found.kind == "refused"
    assert found.head == "4 tensors under blk.4.nextn., of the qwen3-next family"
    assert "which the mlx backend computes from a folder" in found.why
    assert "out of a folder of safetensors, from which it drafts on the mlx backend" in found.why


def test_a_head_nobody_has_wired_is_refused_with_what_is_open(tmp_path: Path) -> None:
    found = bare.classify(write(tmp_path, "glm4moe"))
    assert found.kind == "refused"
    assert found.head.endswith("of the deepseek-v3 family")
    assert "an acceptance sweep has to decide" in found.why


def test_without_a_head_only_the_architecture_is_said(tmp_path: Path) -> None:
    found = bare.classify(write(tmp_path, "qwen35", head=()))
    assert (found.kind, found.head) == ("refused", "")
    assert "MTP head" not in found.why


def test_the_architecture_is_refused_before_a_quantisation_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="architecture qwen35 is not supported") as refused:
        open_checkpoint(write(tmp_path, "qwen35"))
    assert "choose a file quantised" not in str(refused.value)


@pytest.mark.parametrize("backend", ["torch", "mlx"])
def test_running_one_is_a_sentence(mtpx: Command, tmp_path: Path, backend: str) -> None:
    path = write(tmp_path, "qwen35")
    done = mtpx("run", "Hello", "--pack", str(path), "--backend", backend)
    assert done.status == 2
    assert "architecture qwen35 is not supported" in done.err


def test_pack_show_says_it(mtpx: Command, tmp_path: Path) -> None:
    done = mtpx("pack", "show", str(write(tmp_path, "qwen35")))
    assert "blk.4.nextn." in done.out
    assert "refused" in done.out
