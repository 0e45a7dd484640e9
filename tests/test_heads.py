"""Head contracts: declared, checked against the trunk, refused with what is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.errors import PackError
from mtpx.heads import (
    FAMILIES,
    HeadContract,
    TrunkSizes,
    check_draft_vocab,
    check_tensors,
    declared,
    expected_tensors,
    require_wired,
)

LLAMA = FAMILIES["llama-mtp"].contract
SMOLLM2 = TrunkSizes(hidden=576, heads=9, kv_heads=3, head_dim=64, ffn=1536, vocab=49152, layers=30)
HEAD = Path(__file__).parents[1] / "packs/mtpx_packs/smollm2-135m/head.safetensors"


def shapes_of_the_embedded_head() -> dict[str, list[int]]:
    from safetensors import safe_open

    with safe_open(HEAD, "numpy") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118


def test_the_embedded_head_fits_its_trunk() -> None:
    check_tensors(shapes_of_the_embedded_head(), expected_tensors(LLAMA, SMOLLM2))


def test_a_head_for_another_trunk_names_every_tensor_that_does_not_fit() -> None:
    expected = expected_tensors(LLAMA, replace(SMOLLM2, hidden=640))
    with pytest.raises(PackError, match="does not fit the trunk") as error:
        check_tensors(shapes_of_the_embedded_head(), expected)
    assert "mtp.fc.weight is 576×1152 instead of 640×1280" in str(error.value)
    assert "mtp.norm.weight is 576 instead of 640" in str(error.value)


def test_missing_and_unexpected_tensors_are_listed_by_name() -> None:
    found = shapes_of_the_embedded_head()
    del found["mtp.norm.weight"]
    found["mtp.surprise"] = [1]
    with pytest.raises(PackError) as error:
        check_tensors(found, expected_tensors(LLAMA, SMOLLM2))
    assert "missing: mtp.norm.weight" in str(error.value)
    assert "not in its contract: mtp.surprise" in str(error.value)


def test_an_optional_tensor_may_be_absent_but_not_misshapen() -> None:
    expected = expected_tensors(LLAMA, SMOLLM2)
    found = shapes_of_the_embedded_head()
    optional = ["mtp.draft_vocab"]
    check_tensors({k: v for k, v in found.items() if k not in optional}, expected, optional)
    with pytest.raises(PackError, match=r"mtp\.draft_vocab is 2×2 instead of \?"):
        check_tensors({**found, "mtp.draft_vocab": [2, 2]}, expected, optional)


def test_a_head_of_two_layers_is_refused_and_said_to_have_two() -> None:
    two = declared({"family": "llama-mtp", "layers": 2})
    with pytest.raises(PackError, match=r"has 2 layers; heads of one layer run today"):
        require_wired(two)
    with pytest.raises(PackError, match=r"has 2 layers; heads of one layer run today"):
        expected_tensors(two, SMOLLM2)


def test_a_block_of_another_kind_has_no_expected_tensors() -> None:
    with pytest.raises(PackError, match="'mamba' is not wired"):
        expected_tensors(msgspec.structs.replace(LLAMA, block="mamba"), SMOLLM2)


def test_own_matrices_have_the_vocabularys_size() -> None:
    own = declared(
        {"family": "llama-mtp", "shared_output": False, "tensors": {"output": "lm_head.weight"}}
    )
    assert expected_tensors(own, SMOLLM2)["mtp.lm_head.weight"] == (49152, 576)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_is_a_contract_that_declares_itself(name: str) -> None:
    contract = FAMILIES[name].contract
    assert contract.family == name
    assert declared({"family": name}) == contract
    assert declared(msgspec.to_builtins(contract)) == contract


@pytest.mark.parametrize("name", sorted(n for n, f in FAMILIES.items() if not f.wired))
def test_a_recognised_family_is_refused_with_what_is_known(name: str) -> None:
    family = FAMILIES[name]
    with pytest.raises(PackError, match="recognised but not wired") as error:
        require_wired(family.contract)
    assert family.known in str(error.value)
    with pytest.raises(PackError, match="not wired"):
        expected_tensors(family.contract, SMOLLM2)


def test_the_llama_head_is_wired() -> None:
    require_wired(LLAMA)


def test_a_head_at_the_end_of_the_trunk_is_named_after_the_trunks_layers() -> None:
    contract = FAMILIES["deepseek-v3"].contract
    assert contract.name("fc", trunk_layers=61) == "model.layers.61.eh_proj.weight"


def test_a_role_the_contract_does_not_fill_is_named() -> None:
    with pytest.raises(PackError, match="'output'"):
        LLAMA.name("output")


def test_a_misspelt_family_gets_the_nearest_one() -> None:
    with pytest.raises(PackError, match="did you mean 'llama-mtp'"):
        declared({"family": "lama-mtp"})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "family"),
        ({"family": 3}, "family"),
        ({"family": "llama-mtp", "ordre": "embedding-hidden"}, "ordre"),
        ({"family": "llama-mtp", "order": "sideways"}, "order"),
        ({"family": "llama-mtp", "norm_offset": 2}, "norm_offset"),
        ({"family": "llama-mtp", "layers": 0}, "0 layers"),
        ({"family": "llama-mtp", "draft_depth_limit": 0}, "draft_depth_limit 0"),
        ({"family": "llama-mtp", "draft_depth_limit": 1000}, "draft_depth_limit 1000"),
        ({"family": "llama-mtp", "recycled": None}, "recycles nothing"),
        ({"family": "llama-mtp", "tensors": {"frob": "x"}}, "frob"),
        ({"family": "llama-mtp", "tensors": 1}, "tensors"),
        ({"family": "llama-mtp", "shared_output": False}, "output"),
        ({"family": "llama-mtp", "block": "mamba"}, "mamba"),
        ({"family": "llama-mtp", "tensors": {"fc": ""}}, "fc"),
    ],
)
def test_a_contract_that_cannot_be_is_refused_and_the_field_named(
    table: dict[str, object], said: str
) -> None:
    with pytest.raises(PackError, match=said):
        declared(table)


def test_an_empty_tensor_name_takes_the_role_out() -> None:
    contract = declared({"family": "llama-mtp", "tensors": {"draft_vocab": ""}})
    assert not contract.has("draft_vocab")
    assert "mtp.draft_vocab" not in expected_tensors(contract, SMOLLM2)


@given(st.sets(st.integers(0, 999), min_size=1, max_size=50))
def test_any_ascending_set_of_ids_is_a_draft_vocabulary(ids: set[int]) -> None:
    check_draft_vocab(np.array(sorted(ids), dtype=np.int32), 1000)


@given(st.lists(st.integers(-5, 1005), max_size=20), st.sampled_from(["i4", "i8"]))
def test_no_other_list_of_ids_is(ids: list[int], dtype: str) -> None:
    array = np.array(ids, dtype=dtype)
    right = ids and ids == sorted(set(ids)) and min(ids) >= 0 and max(ids) < 1000
    if right:
        check_draft_vocab(array, 1000)
    else:
        with pytest.raises(PackError, match="draft vocabulary"):
            check_draft_vocab(array, 1000)


def test_unsigned_ids_out_of_order_are_noticed() -> None:
    with pytest.raises(PackError, match="ascending"):
        check_draft_vocab(np.array([5, 3], dtype=np.uint32), 1000)


def test_floating_point_ids_are_refused() -> None:
    with pytest.raises(PackError, match="float64"):
        check_draft_vocab(np.array([1.0, 2.0]), 1000)


def test_a_contract_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(LLAMA), type=HeadContract) == LLAMA
