"""Stored weights become the numbers they stand for, in every product's layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mtpx.checkpoint import Tensor, dequantise
from mtpx.errors import PackError
from mtpx_torch.dequant import to_torch
from mtpx_torch.product import PackedProduct, RowsProduct, packed_works, product_kind

BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


@pytest.mark.parametrize("kind", BYTES)
def test_blocks_are_read_as_the_reference_reads_them(kind: str) -> None:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (8 * 2, BYTES[kind]), dtype=np.uint8)
    raw[:, 1] = 0x38  # a scale that is a number: f16 0.5 and its neighbours
    if kind == "Q4_1":
        raw[:, 3] = 0xB4
    tensor = Tensor("w", (8, 64), kind, raw.reshape(-1))  # type: ignore[arg-type]
    found = to_torch(tensor, torch.float32, torch.device("cpu"))
    np.testing.assert_array_equal(found.numpy(), dequantise(tensor))


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", np.float32), ("F16", np.float16), ("I32", np.int32)]
)
def test_plain_numbers_are_read_as_they_are(kind: str, dtype: type) -> None:
    numbers = np.arange(12).astype(dtype)
    tensor = Tensor("w", (3, 4), kind, numbers.view(np.uint8))  # type: ignore[arg-type]
    found = to_torch(tensor, torch.float32, torch.device("cpu"))
    assert found.dtype == (torch.int32 if kind == "I32" else torch.float32)
    np.testing.assert_array_equal(found.numpy(), numbers.reshape(3, 4))


def test_bfloat16_is_read_as_it_is() -> None:
    numbers = torch.arange(12).bfloat16()
    raw = numbers.view(torch.uint8).numpy()
    found = to_torch(Tensor("w", (12,), "BF16", raw), torch.float32, torch.device("cpu"))
    torch.testing.assert_close(found, numbers.float(), rtol=0, atol=0)


def test_another_kind_of_block_is_refused_by_name() -> None:
    odd = Tensor("w", (32,), "Q5_K", np.zeros(22, np.uint8))  # type: ignore[arg-type]
    with pytest.raises(PackError, match="w is stored as Q5_K"):
        to_torch(odd, torch.float32, torch.device("cpu"))


@pytest.mark.skipif(not packed_works(), reason="this torch has no packed product")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 33])
def test_the_packed_product_is_the_plain_one(rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(48, 40), torch.randn(rows, 40)
    b = torch.randn(48) if bias else None
    torch.testing.assert_close(
        PackedProduct(weight, b)(x), RowsProduct(weight, b)(x), rtol=1e-5, atol=1e-5
    )


def test_a_product_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, packed or rows"):
        product_kind(torch.device("cpu"), "columns")
    with pytest.raises(ValueError, match="does not work on cuda"):
        product_kind(torch.device("cuda"), "packed")
    assert product_kind(torch.device("cuda")) == "rows"
