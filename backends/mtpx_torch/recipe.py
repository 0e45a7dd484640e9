"""What a precision means here: the activations' type, and the product its matrices are made for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch

from mtpx.precision import Precision
from mtpx_torch import int4, int8
from mtpx_torch.int4 import Int4Product, int4_works
from mtpx_torch.int8 import Int8Product, int8_works
from mtpx_torch.product import ROW_BUCKET, Product, make_product, packed_works, product_kind

if TYPE_CHECKING:
    from mtpx_torch.weights import WeightReader


@dataclass(frozen=True, slots=True)
class Recipe:
    """`dtype` is that of activations, keys and values; `product` "packed", "rows", "int8" or "int4".

    In int4 the matrices that the file holds in 4-bit blocks stay so; the output matrix, on which the
    choice of every token hangs, and whatever the file holds more exactly, a head above all, are 8-bit.
    """

    precision: Precision
    dtype: torch.dtype
    product: str

    @property
    def bucket(self) -> int:
        """Rows to pad a forward to: where more of them cost no more, or less, than one."""
        return {"packed": ROW_BUCKET, "int8": int8.ROW_BUCKET}.get(self.product, 1)

    def linear(self, reader: WeightReader, weights: list[str], *, output: bool = False) -> Product:
        """The product of the matrices of these names, one above the other, with their biases."""
        bias = reader.biases(weights)
        if self.product == "int4" and not output and reader.kinds(weights) <= int4.BLOCKS.keys():
            parts = [int4.unpack(*reader.stored(name)) for name in weights]
            codes, scale, zero = (torch.cat(part) for part in zip(*parts, strict=True))
            return Int4Product(codes, scale, zero, bias)
        if self.product in ("int8", "int4"):
            pieces = (piece for name in weights for piece in reader.pieces(name))
            return self._int8(reader.shape(weights), pieces, bias, output)
        taken = [reader.take(name) for name in weights]
        return make_product(self.product, torch.cat(taken) if taken[1:] else taken[0], bias)

    def output(self, rows: int, pieces: Iterable[torch.Tensor]) -> Product:
        """An output product over so many rows that are at hand, in pieces (some, in)."""
        if self.product not in ("int8", "int4"):
            return make_product(self.product, torch.cat(list(pieces)))
        waiting = iter(pieces)
        first = next(waiting)
        return self._int8((rows, first.shape[1]), chain([first], waiting), None, True)

    def _int8(
        self,
        shape: tuple[int, int],
        pieces: Iterable[torch.Tensor],
        bias: torch.Tensor | None,
        output: bool,
    ) -> Int8Product:
        # Logits stay in float32: in bfloat16 one in a few hundred is a tie.
        return Int8Product.of(shape, pieces, bias, torch.float32 if output else self.dtype)


def reasons(device: torch.device, kinds: Iterable[str]) -> dict[Precision, str]:
    """Every precision → "" where a file with matrices of these kinds can be run in it, else why not."""
    cpu = device.type == "cpu"
    only_cpu = "the torch backend has its kernels for CPUs only"
    missing = "this torch or processor lacks the kernel"
    fours = any(kind in int4.BLOCKS for kind in kinds)
    found = {
        "float32": "",
        "bfloat16": _no_bfloat16(device),
        "int8": only_cpu if not cpu else "" if int8_works() else missing,
        "int4": "",
    }
    if not fours:
        found["int4"] = "the file's weights are not in 4-bit blocks (Q4_0, Q4_1)"
    elif not cpu:
        found["int4"] = only_cpu
    elif not int4_works():
        found["int4"] = missing
    elif found["int8"]:
        found["int4"] = f"its output matrix is 8-bit, and {missing} for that"
    return found  # type: ignore[return-value]  # the keys are the literal's


def _no_bfloat16(device: torch.device) -> str:
    if device.type == "cuda":
        able = torch.cuda.is_bf16_supported(including_emulation=False)
        return "" if able else "the device has no bfloat16"
    return "" if packed_works(torch.bfloat16) else "this torch or processor lacks the kernel"


def make_recipe(precision: Precision, device: torch.device, product: str = "auto") -> Recipe:
    """Raises `ValueError` for a `product` that the precision or the device does not leave free."""
    if precision in ("int8", "int4"):
        if product != "auto":
            raise ValueError(
                f"{precision} has one product of its own; product={product} is for floats"
            )
        dtype = torch.float32 if precision == "int8" else torch.bfloat16
        return Recipe(precision, dtype, precision)
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    return Recipe(precision, dtype, product_kind(device, product, dtype))
