"""The matrix product y = x·Wᵀ + b behind every linear layer, in the form that is fast on the device.

On a CPU, torch's own float32 `linear` takes a path for 1 to 4 rows that reads the weights at a third
of the memory's speed, and costs more at 3 rows than at 8 (measured: docs/hardware.md). oneDNN's
product over weights packed once at load is flat over 1 to 8 rows, and plain decode on it is two to
three times as fast: an `mtp_pays` measured against the slow form would be a lie. It is also cheaper
over 4 rows than over 1, so fewer rows than `ROW_BUCKET` are padded to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F

from mtpx_torch.operators import packed_linear

ROW_BUCKET = 4
"""Packed products run over at least this many rows: the cheapest count under 8, and the same bits
for a row whether it ran alone or beside three others. The product pads by itself; the trunk pads its
rows once, so that its many products need not."""

_PACK_ROWS_HINT = 64
"""Row count oneDNN lays the weights out for; 64 was as good as 4 for few rows and as many rows."""


class Product(Protocol):
    """y = x·Wᵀ (+ b) for x (rows, in) → (rows, out)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    @property
    def nbytes(self) -> int:
        """Bytes of weights that one product reads."""
        ...


class RowsProduct:
    """torch's own `linear`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.nbytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class PackedProduct:
    """oneDNN's `linear` over weights packed once; the unpacked ones can be released."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS_HINT)
        self.bias, self._out = bias, weight.shape[0]
        self.nbytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        if rows < ROW_BUCKET:
            x = F.pad(x, (0, 0, 0, ROW_BUCKET - rows))
        y: torch.Tensor = packed_linear(x, self.weight, self.bias, self._out)
        return y[:rows]


def works(computes: Callable[[], bool]) -> bool:
    """Whether a kernel computes what it should; one that this torch lacks does not."""
    try:
        return computes()
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def packed_works(dtype: torch.dtype = torch.float32) -> bool:
    """Whether this torch has the packed product and it computes what `linear` computes."""

    def computes() -> bool:
        w, x = torch.randn(8, 16).to(dtype), torch.randn(3, 16).to(dtype)
        near = 1e-4 if dtype == torch.float32 else 0.1
        return torch.allclose(PackedProduct(w)(x), F.linear(x, w), atol=near, rtol=near)

    return torch.backends.mkldnn.is_available() and works(computes)


def product_kind(
    device: torch.device, asked: str = "auto", dtype: torch.dtype = torch.float32
) -> str:
    """ "packed" on a CPU that has it, else "rows"; `asked` may name either.

    Raises `ValueError` for any other word, and for "packed" where it does not work.
    """
    if asked not in ("auto", "packed", "rows"):
        raise ValueError(f"product must be auto, packed or rows, got {asked!r}")
    possible = device.type == "cpu" and packed_works(dtype)
    if asked == "packed" and not possible:
        raise ValueError(f"the packed product does not work on {device.type} here; use rows")
    return "packed" if possible and asked != "rows" else "rows"


def make_product(kind: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Product:
    return PackedProduct(weight, bias) if kind == "packed" else RowsProduct(weight, bias)
