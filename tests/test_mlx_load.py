"""What the MLX backend refuses, in a sentence, before it computes anything; and what it makes of
folders in MLX's own format."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from command import Command
from mlx.utils import tree_flatten
from qwen_makers import EXPERTS, make_qwen
from torch_makers import make_pack

from mtpx import packs
from mtpx.backend import EngineOptions
from mtpx.errors import BackendError, NonFiniteLogits, PackError, PromptError
from mtpx.packs import Pack
from mtpx.sampling import Sampling
from mtpx_mlx import MlxBackend
from mtpx_mlx.caches import Kept
from mtpx_mlx.folder import folder_model
from mtpx_mlx.models import light


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("pack"), draft_vocab=20)


@pytest.fixture
def bare(tmp_path: Path) -> Pack:
    """A folder of its own, without a head: for tests that damage it."""
    return make_pack(tmp_path, head=False, hidden_size=64, intermediate_size=64)


def load(pack: Pack, **options: Any) -> Any:
    return MlxBackend().load(pack, EngineOptions(**options))


def prefilled(engine: Any, tokens: list[int]) -> Any:
    slot = engine.open(tokens, Sampling(), 0)
    while not engine.prefill(slot, 8):
        pass
    return slot


def edit_config(pack: Pack, **changes: Any) -> None:
    path = pack.weights / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def pack_weights(pack: Pack, bits: int = 4, group: int = 32) -> None:
    """Turn the folder into MLX's format, as its converter writes it."""
    model = folder_model(pack.weights)
    nn.quantize(model, group_size=group, bits=bits)
    mx.save_safetensors(
        str(pack.weights / "model.safetensors"), dict(tree_flatten(model.parameters()))
    )
    edit_config(pack, quantization={"group_size": group, "bits": bits})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "cuda"}, r"gpu \(metal\) or cpu, not on cuda"),
        ({"max_width": 0}, "at least 1"),
        ({"threads": 2}, "chooses its threads itself"),
        ({"tier": "row-invariant"}, "standard tier only"),
        ({"context": 1}, "outside what tiny-llama can do"),
        ({"context": 100000}, "outside what tiny-llama can do"),
        ({"precision": "int3"}, "no precision 'int3'"),
        ({"extra": {"dtype": "float8"}}, "dtype must be auto"),
        ({"extra": {"kv_bits": "3"}}, "kv_bits must be 4 or 8"),
        ({"extra": {"window": "few"}}, "window must be at least"),
        ({"extra": {"window": "64", "kv_bits": "8"}}, "either windowed or quantised"),
        ({"extra": {"speed": "max"}}, "no option 'speed'"),
    ],
)
def test_an_option_it_cannot_honour(pack: Pack, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence):
        load(pack, **options)


def test_quantised_keys_need_heads_whose_width_the_groups_divide(tmp_path: Path) -> None:
    narrow = make_pack(tmp_path, head=False, head_dim=20)
    with pytest.raises(BackendError, match=r"kv_bits=8 cannot be had with tiny-llama.* 20 wide"):
        load(narrow, extra={"kv_bits": "8"})
    load(narrow, extra={"window": "64"}).close()


class Sliding:
    """A model whose layers look back on a window of their own only."""

    layers = (None, None)

    def make_cache(self) -> list[Any]:
        return [light("models.cache").RotatingKVCache(8) for _ in self.layers]

    def __call__(self, tokens: Any, cache: Any) -> None:
        return None


class Sinking(Sliding):
    """One that cannot read quantised keys, and finds out when it is run."""

    def make_cache(self) -> list[Any]:
        return [light("models.cache").KVCache() for _ in self.layers]

    def __call__(self, tokens: Any, cache: Any) -> None:
        for one in cache:
            one.update_and_fetch(*(mx.zeros((1, 1, tokens.shape[1], 32)),) * 2)
            if hasattr(one, "bits"):
                raise ValueError("Quantized SDPA does not support attention sinks.")


@pytest.mark.parametrize("kept", [Kept(window=64), Kept(bits=8)], ids=str)
def test_a_cache_that_no_layer_has_is_not_silently_left_as_it_is(kept: Kept) -> None:
    with pytest.raises(BackendError, match=f"{kept} would change nothing: no layer of slider"):
        kept.check(Sliding(), "slider")
    Kept().check(Sliding(), "slider")


def test_a_model_that_cannot_be_run_with_quantised_keys_says_so_before_it_is() -> None:
    with pytest.raises(BackendError, match=r"kv_bits=4 cannot be had with sinker: .*sinks"):
        Kept(bits=4).check(Sinking(), "sinker")
    Kept(window=16).check(Sinking(), "sinker")


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

KINDS: dict[str, Callable[[Path], Pack]] = {
    "llama": lambda folder: make_pack(folder, draft_vocab=20, rope_parameters=LLAMA3),
    "qwen3.5": lambda folder: packs.resolve(make_qwen(folder)),
    "qwen3.5 mixture": lambda folder: packs.resolve(make_qwen(folder, **EXPERTS)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_that_another_thread_loaded_decodes_in_this_one(
    kind: str, tmp_path: Path
) -> None:
    """As a chat does it: MLX's streams are a thread's own, so nothing may be left pending."""
    pack, loaded = KINDS[kind](tmp_path), []
    thread = threading.Thread(target=lambda: loaded.append(load(pack)))
    thread.start()
    thread.join()
    (engine,) = loaded
    slot = prefilled(engine, [4, 8, 15, 16])
    drafts = engine.propose([slot], [2])
    assert engine.verify([slot], drafts, drafts.counts)[0].committed
    assert engine.plain([slot])[0].committed
    slot.snapshot()
    engine.close()


@pytest.mark.skipif(mx.is_available(mx.gpu), reason="there is a GPU here")
def test_probing_a_gpu_that_is_not_there_says_why() -> None:
    probe = MlxBackend().probe("gpu")
    assert not probe.available
    assert "no GPU" in probe.reason
    assert MlxBackend().probe("cpu").available


@pytest.mark.parametrize("missing", ["mlx", "mlx_lm"])
def test_without_its_libraries_it_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else found(name)
    )
    probe = MlxBackend().probe()
    assert not probe.available
    assert "pip install" in probe.reason


def test_where_neither_metal_nor_the_cpu_build_is_there_doctor_says_what_mlx_runs_on(
    mtpx: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install mlx` on Linux leaves a package whose library is missing."""
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    said = " ".join(mtpx("doctor").out.split())
    assert "mlx: cannot run: mlx is installed without a build that runs here" in said
    assert "pip install 'mlx[cpu]'" in said


def test_a_head_of_another_trunk_is_listed_by_name_and_shape(pack: Pack, tmp_path: Path) -> None:
    assert pack.head is not None
    tensors = dict(mx.load(str(pack.head)))
    tensors["mtp.fc.weight"] = mx.zeros((3, 3))
    del tensors["mtp.norm.weight"]
    tensors["mtp.surprise"] = mx.zeros((1,))
    mx.save_safetensors(str(tmp_path / "head.safetensors"), tensors)
    with pytest.raises(PackError) as caught:
        load(replace(pack, head=tmp_path / "head.safetensors"))
    for told in ("mtp.norm.weight", "mtp.surprise", "mtp.fc.weight is 3×3 instead of 32×64"):
        assert told in str(caught.value)


def test_a_folder_without_config_is_refused(bare: Pack) -> None:
    (bare.weights / "config.json").unlink()
    with pytest.raises(PackError, match=r"no config\.json"):
        load(bare)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("[]", "cannot be used"),
        ("{", "cannot be used"),
        ("{}", "names no model_type"),
        ('{"model_type": "spaghetti"}', "no model of type 'spaghetti'"),
        ('{"model_type": "../llama"}', "no model of type"),
        ('{"model_type": "cache"}', "no model of type"),
        ('{"model_type": "llama"}', "does not describe a llama model"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "does not describe a llama model"),
    ],
)
def test_a_config_that_describes_no_model(bare: Pack, config: str, sentence: str) -> None:
    (bare.weights / "config.json").write_text(config)
    with pytest.raises(PackError, match=sentence):
        load(bare)


def test_tensors_of_another_size_than_the_config_says(bare: Pack) -> None:
    edit_config(bare, vocab_size=96)
    with pytest.raises(PackError, match=r"embed_tokens.weight is 48×64, config.json says 96×64"):
        load(bare)


def test_missing_and_surplus_tensors_are_counted_and_named(bare: Pack) -> None:
    tensors = dict(mx.load(str(bare.weights / "model.safetensors")))
    tensors["model.layers.9.surprise"] = tensors.pop("model.norm.weight")
    mx.save_safetensors(str(bare.weights / "model.safetensors"), tensors)
    with pytest.raises(PackError, match=r"1 missing, the first is model\.norm\.weight; 1 unknown"):
        load(bare)


def test_a_truncated_file_is_refused(bare: Pack) -> None:
    path = bare.weights / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(PackError, match=r"MLX|damaged"):
        load(bare)


def test_an_index_that_names_missing_files(bare: Pack) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (bare.weights / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PackError, match="1 of 1 files that are not in the folder"):
        load(bare)


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 64), (3, 32)])
def test_a_folder_in_mlx_format_stays_packed(bare: Pack, bits: int, group: int) -> None:
    pack_weights(bare, bits, group)
    engine = load(bare)
    assert engine.info.dtype == f"int{bits}"
    assert engine.info.quantisation == f"MLX {bits} bits"
    assert engine.plain([prefilled(engine, [1, 2, 3])])[0].committed


def test_packed_weights_that_do_not_match_the_config(bare: Pack) -> None:
    pack_weights(bare)
    edit_config(bare, hidden_size=128)
    with pytest.raises(PackError, match="the quantisation does not match the configuration"):
        load(bare)


def test_packed_weights_without_a_declared_quantisation(bare: Pack) -> None:
    pack_weights(bare)
    path = bare.weights / "config.json"
    config = json.loads(path.read_text())
    del config["quantization"]
    path.write_text(json.dumps(config))
    with pytest.raises(PackError, match="declares no `quantization`"):
        load(bare)


def test_a_declared_quantisation_without_packed_weights(bare: Pack) -> None:
    edit_config(bare, quantization={"group_size": 64, "bits": 4})
    with pytest.raises(PackError, match="no weight is packed"):
        load(bare)


@pytest.mark.parametrize("method", ["fp8", "gptq", "awq", "bitsandbytes", "compressed-tensors"])
def test_a_quantisation_for_cuda_is_refused_with_who_reads_it(bare: Pack, method: str) -> None:
    edit_config(bare, quantization_config={"quant_method": method})
    with pytest.raises(PackError, match=f"'{method}' are made for CUDA.*GGUF"):
        load(bare)


def test_a_precision_the_packed_weights_do_not_have_is_refused(bare: Pack) -> None:
    pack_weights(bare)
    with pytest.raises(BackendError, match="packed in 4 bits"):
        load(bare, precision="float32")


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
def test_plain_weights_run_in_the_precision_asked_for(bare: Pack, precision: str) -> None:
    engine = load(bare, precision=precision)
    assert engine.info.dtype == precision
    assert engine.plain([prefilled(engine, [1, 2, 3])])[0].committed


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_activations_have_the_type_asked_for(pack: Pack, dtype: str) -> None:
    engine = load(pack, extra={"dtype": dtype})
    assert engine.info.details["activations"] == dtype
    slot = prefilled(engine, [1, 2, 3])
    assert engine.verify([slot], engine.propose([slot], [2]), [2])[0].committed


def test_a_prompt_that_cannot_be_decoded(pack: Pack) -> None:
    engine = load(pack, context=32)
    with pytest.raises(PromptError, match="empty"):
        engine.open([], Sampling(), 0)
    with pytest.raises(PromptError, match="40 tokens, 9 more than fit"):
        engine.open([1] * 40, Sampling(), 0)
    with pytest.raises(PromptError, match="48 is outside the vocabulary of 48"):
        engine.open([48], Sampling(), 0)


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_full_context_ends_in_a_sentence(pack: Pack, pipeline: bool) -> None:
    engine = load(pack, context=8, pipeline=pipeline)
    slot = prefilled(engine, [1, 2, 3, 4, 5, 6, 7])
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
    weights = weakref.ref(engine.target)
    engine.open([1, 2, 3], Sampling(), 0)
    engine.close()
    engine.close()
    gc.collect()
    assert weights() is None
    with pytest.raises(BackendError, match="engine is closed"):
        engine.open([1], Sampling(), 0)


def test_a_pack_without_a_head_decodes_plain_and_drafts_nothing(bare: Pack) -> None:
    engine = load(bare)
    assert engine.info.head_depth_limit == 0
    slot = prefilled(engine, [1, 2, 3])
    assert len(engine.plain([slot])[0].committed) == 1
    with pytest.raises(BackendError, match="no head"):
        engine.propose([slot], [1])


@pytest.mark.parametrize("pipeline", [False, True])
def test_weights_with_nan_raise_instead_of_becoming_token_0(bare: Pack, pipeline: bool) -> None:
    path = bare.weights / "model.safetensors"
    tensors = dict(mx.load(str(path)))
    tensors["model.norm.weight"] = mx.array(np.full(64, np.nan, dtype=np.float32))
    mx.save_safetensors(str(path), tensors)
    engine = load(bare, pipeline=pipeline)
    slot = prefilled(engine, [1, 2])
    with pytest.raises(NonFiniteLogits, match="not finite at position 2"):
        engine.plain([slot])
    assert list(slot.tokens) == [1, 2]
