"""An MLX conversation goes on after a restart; a state that no file can hold is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qwen_makers import make_qwen
from torch_makers import make_pack

pytest.importorskip("mlx.core")

from mtpx import frozen, packs
from mtpx.backend import EngineOptions
from mtpx.carry import Adopted
from mtpx.errors import BackendError
from mtpx.frozen import Frozen, StateKey
from mtpx.testing.drive import drafted_steps, opened
from mtpx_mlx import MlxBackend
from mtpx_mlx.engine import MlxEngine

OPTIONS = EngineOptions(device="cpu", context=256)
KEY = StateKey("w", "h", "mlx", "float32", "none", "standard", "t")
PROMPT = [5, 9, 3, 22, 17, 30, 8, 12]


def turn(engine: MlxEngine) -> tuple[list[int], object]:
    slot = opened(engine, PROMPT, session=9)
    drafted_steps(engine, slot, 3)
    snapshot = slot.snapshot()
    slot.close()
    return list(slot.tokens), snapshot


def test_a_state_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    with_head = MlxBackend().load(make_pack(tmp_path / "pack"), OPTIONS)
    said, snapshot = turn(with_head)
    path = tmp_path / "state.safetensors"
    frozen.write(path, with_head.freeze(snapshot), KEY)
    again = MlxBackend().load(make_pack(tmp_path / "again"), OPTIONS)
    held = frozen.read(path, KEY)
    assert held is not None
    prompt = [*said, 7, 40, 11]
    found = []
    for engine, kept in ((with_head, snapshot), (again, again.thaw(held))):
        slot = opened(engine, prompt, session=9, reuse=kept)
        assert slot.reused.tokens == len(said) - 1
        assert isinstance(slot.reused.carry, Adopted)
        drafts = engine.propose([slot], [3])
        found.append(np.asarray(drafts.confidence)[0])
        slot.close()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("damage", ["tensor", "facts"])
def test_bytes_of_another_model_are_refused(tmp_path: Path, damage: str) -> None:
    engine = MlxBackend().load(make_pack(tmp_path / "pack"), OPTIONS)
    held = engine.freeze(turn(engine)[1])
    tensors, facts = dict(held.tensors), dict(held.facts)
    if damage == "tensor":
        del tensors["target.0.values"]
    else:
        facts["head_key"] = 1000
    with pytest.raises(BackendError, match="does not fit this model"):
        engine.thaw(Frozen(held.tokens, held.session, tensors, facts))


def test_a_recurrent_state_is_not_kept_in_files_and_says_so(tmp_path: Path) -> None:
    engine = MlxBackend().load(packs.resolve(make_qwen(tmp_path / "hybrid")), OPTIONS)
    with pytest.raises(BackendError, match="recurrent, windowed or quantised layers is not kept"):
        engine.freeze(turn(engine)[1])
