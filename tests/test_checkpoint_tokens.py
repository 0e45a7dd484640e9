"""What text needs of a checkpoint: vocabulary, beginning and ends, of any architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_makers import CONFIG, write_folder, write_gguf

from mtpx.checkpoint import token_source
from mtpx.errors import PackError

UNKNOWN: dict[str, Any] = {
    "model_type": "mystery",
    "eos_token_id": 7,
    "text_config": {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": [8, 7]},
}


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_known_architecture_is_told_by_its_checkpoint(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", CONFIG)
    for path in (folder, write_gguf(tmp_path / "m.gguf")):
        found = token_source(path).config
        assert (found.family, found.vocab, found.bos_id, found.end_ids) == ("llama", 96, 1, (2,))


def test_an_unknown_one_by_its_configuration_alone(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 8]}')
    found = token_source(write(tmp_path, UNKNOWN)).config
    assert (found.family, found.vocab, found.bos_id) == ("mystery", 50, 1)
    assert found.end_ids == (9, 8, 7)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text_config": {}}, "vocab_size is absent"),
        ({"model_type": None}, "names no model_type"),
        ({"eos_token_id": "seven"}, "eos_token_id"),
        ({"text_config": {"vocab_size": 0}}, "vocab_size"),
    ],
)
def test_one_that_does_not_tell_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(PackError, match=said):
        token_source(write(tmp_path, UNKNOWN | change))
