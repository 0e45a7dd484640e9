"""What the torch backend refuses, in a sentence, before it computes anything."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch_makers import make_pack

from mtpx.backend import EngineOptions
from mtpx.errors import BackendError, MtpxError, PackError, PromptError
from mtpx.packs import Pack
from mtpx.sampling import Sampling
from mtpx_torch import TorchBackend


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("pack"), draft_vocab=20)


def load(pack: Pack, **options: Any) -> Any:
    return TorchBackend().load(pack, EngineOptions(threads=1, **options))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "tpu"}, "no device"),
        ({"device": "meta"}, "cpu or cuda, not on meta"),
        ({"device": "cuda:7"}, "CUDA"),
        ({"max_width": 0}, "at least 1"),
        ({"tier": "fast"}, "no tier 'fast'; there are auto, standard, row-invariant"),
        ({"precision": "int2"}, "no precision 'int2'.*can do float32, bfloat16"),
        ({"precision": "int4"}, "cannot run in int4: .*not in 4-bit blocks.*it can: float32"),
        (
            {"precision": "int8", "extra": {"product": "rows"}},
            "int8 has one product of its own",
        ),
        ({"context": 1}, "outside what tiny-llama can do"),
        ({"context": 100000}, "outside what tiny-llama can do"),
        ({"extra": {"product": "fast"}}, "auto, packed or rows"),
        ({"extra": {"speed": "max"}}, "no option 'speed'"),
        ({"compile": "maybe"}, "compile is auto, now, background, off, not 'maybe'"),
        ({"compile": "now", "max_width": 2}, "one sequence at a time"),
    ],
)
def test_an_option_it_cannot_honour(pack: Pack, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence):
        load(pack, **options)


def test_threads_out_of_range(pack: Pack) -> None:
    with pytest.raises(BackendError, match="threads must be from 1"):
        TorchBackend().load(pack, EngineOptions(threads=0))


def test_probing_a_device_that_is_not_there_says_why() -> None:
    probe = TorchBackend().probe("cuda:63")
    assert not probe.available
    assert "CUDA" in probe.reason
    assert TorchBackend().probe("cpu").available


def test_a_head_that_does_not_fit_is_listed_by_name_and_shape(pack: Pack, tmp_path: Path) -> None:
    assert pack.head is not None
    tensors = load_file(pack.head)
    tensors["mtp.fc.weight"] = torch.zeros(3, 3)
    del tensors["mtp.norm.weight"]
    tensors["mtp.surprise"] = torch.zeros(1)
    save_file(tensors, tmp_path / "head.safetensors")
    with pytest.raises(PackError) as caught:
        load(replace(pack, head=tmp_path / "head.safetensors"))
    for told in ("mtp.norm.weight", "mtp.surprise", "mtp.fc.weight is 3×3 instead of 32×64"):
        assert told in str(caught.value)


def test_a_draft_vocabulary_outside_the_trunks_is_refused(pack: Pack, tmp_path: Path) -> None:
    assert pack.head is not None
    tensors = load_file(pack.head)
    tensors["mtp.draft_vocab"][-1] = 48
    save_file(tensors, tmp_path / "head.safetensors")
    with pytest.raises(PackError, match="48 tokens"):
        load(replace(pack, head=tmp_path / "head.safetensors"))


def test_a_prompt_that_cannot_be_decoded(pack: Pack) -> None:
    engine = load(pack, context=32)
    with pytest.raises(PromptError, match="empty"):
        engine.open([], Sampling(), 0)
    with pytest.raises(PromptError, match="40 tokens, 9 more than fit"):
        engine.open([1] * 40, Sampling(), 0)
    with pytest.raises(PromptError, match="48 is outside the vocabulary of 48"):
        engine.open([48], Sampling(), 0)


def test_a_full_context_ends_in_a_sentence(pack: Pack) -> None:
    engine = load(pack, context=8)
    slot = engine.open([1, 2, 3, 4, 5, 6, 7], Sampling(), 0)
    while not engine.prefill(slot, 4):
        pass
    engine.plain([slot])
    assert engine.propose([slot], [3]).counts == [0]
    engine.plain([slot])
    with pytest.raises(PromptError, match="context of 8 tokens is full"):
        engine.plain([slot])


def test_a_slot_that_is_not_prefilled_closed_or_foreign_is_refused(pack: Pack) -> None:
    engine, other = load(pack), load(pack)
    slot = engine.open([1, 2, 3], Sampling(), 0)
    with pytest.raises(BackendError, match="not prefilled"):
        engine.plain([slot])
    with pytest.raises(BackendError, match="another engine"):
        other.plain([slot])
    slot.close()
    slot.close()
    with pytest.raises(BackendError, match="closed"):
        engine.plain([slot])


def test_a_closed_engine_lets_go_of_its_weights_and_says_that_it_is_closed(pack: Pack) -> None:
    engine = load(pack)
    weights = weakref.ref(engine.trunk)
    slot = engine.open([1, 2, 3], Sampling(), 0)
    engine.close()
    engine.close()
    gc.collect()
    assert weights() is None
    with pytest.raises(BackendError, match="engine is closed"):
        engine.open([1], Sampling(), 0)
    with pytest.raises(BackendError, match="slot is closed"):
        engine.plain([slot])


def test_a_pack_without_a_head_decodes_plain_and_drafts_nothing(tmp_path: Path) -> None:
    engine = load(make_pack(tmp_path, head=False))
    assert engine.info.head_depth_limit == 0
    slot = engine.open([1, 2, 3], Sampling(), 0)
    while not engine.prefill(slot, 8):
        pass
    assert len(engine.plain([slot])[0].committed) == 1
    with pytest.raises(BackendError, match="no head"):
        engine.propose([slot], [1])


def test_weights_with_nan_raise_instead_of_becoming_token_0(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, head=False)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    engine = load(pack)
    slot = engine.open([1, 2], Sampling(), 0)
    while not engine.prefill(slot, 8):
        pass
    with pytest.raises(MtpxError, match="not finite at position 2"):
        engine.plain([slot])
    assert list(slot.tokens) == [1, 2]
