"""8-bit products on a CPU: integer sums through oneDNN, flat over a handful of rows.

Weights have a scale per output channel. Activations have one per row, so that a row's numbers do not
depend on its neighbours, and two 8-bit parts: x = s·(hi + lo / 254), 15 bits in all. One part alone
costs 4 % of perplexity on the embedded model, two cost nothing that could be measured, and since the
product is flat over rows, twice as many of them are nearly free (docs/hardware.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mtpx_torch.operators import ZERO, int8_linear
from mtpx_torch.product import works

ROW_BUCKET = 4
"""Rows are padded to this many: eight integer rows cost less than two do."""

_LEVELS = 127
_FINER = 254
"""What remains of x / s after rounding lies in ±½, and ±127 levels of it are 1/254 apart."""

_PACK_ROWS_HINT = 8
"""Integer rows oneDNN lays the weights out for. Without a hint it repacks them at every call."""


def quantise_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight (out, in) → int8 codes (out, in), scale (out,) with weight ≈ codes·scale."""
    weight = weight.float()
    scale = weight.abs().amax(dim=1).div_(_LEVELS)
    scale = scale.clamp_min_(torch.finfo(torch.float32).tiny)
    return weight.div(scale.unsqueeze(1)).round_().to(torch.int8), scale


def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, in) → codes (2·rows, in) uint8, the high parts first, and scale (rows, 1) float32.

    A row with a NaN or an infinity has a scale that is not finite, and so has its product.
    """
    x = x.float()
    scale = x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / _LEVELS
    steps = x / scale
    high = steps.round()
    low = ((steps - high) * _FINER).round()
    return (torch.cat([high, low]) + ZERO).to(torch.uint8), scale


class Int8Product:
    """y = x·Wᵀ + b with 8-bit weights; `dtype` is the result's."""

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        self.weight = torch.ops.onednn.qlinear_prepack(codes, [_PACK_ROWS_HINT, codes.shape[1]])
        self.scale, self.bias, self.dtype = scale, bias, dtype
        self.zero = torch.zeros(codes.shape[0], dtype=torch.int64)
        self.nbytes = codes.nbytes + scale.nbytes

    @classmethod
    def of(
        cls,
        shape: tuple[int, int],
        pieces: Iterable[torch.Tensor],
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> Int8Product:
        """From the rows of a weight (out, in), in pieces, so that it is never all there in floating
        point."""
        codes, scale = torch.empty(shape, dtype=torch.int8), torch.empty(shape[0])
        at = 0
        for piece in pieces:
            here = slice(at, at + piece.shape[0])
            codes[here], scale[here] = quantise_rows(piece)
            at = here.stop
        return cls(codes, scale, bias, dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        codes, scale = split(x)
        sums: torch.Tensor = int8_linear(codes, self.weight, self.scale, self.zero)
        y = (sums[:rows] + sums[rows:] / _FINER) * scale
        if self.bias is not None:
            y = y + self.bias
        return y.to(self.dtype)


def int8_works() -> bool:
    """Whether this torch and processor have the product, with sums that do not saturate."""

    def computes() -> bool:
        # The largest codes side by side: where pairs are summed in 16 bits, these overflow.
        weight = torch.full((16, 64), 127.0)
        weight[::2] *= -1
        x = torch.full((3, 64), 2.0)
        x[1] *= -1
        product = Int8Product.of((16, 64), [weight], None, torch.float32)
        return torch.allclose(product(x), x @ weight.T, rtol=1e-4)

    return works(computes)
