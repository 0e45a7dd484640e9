"""4-bit products on a CPU: torch's kernel takes the file's own blocks of 32, with nothing lost but
the scales' rounding to bfloat16, which is also the activations' type.

Its float16 and float32 forms are thirty times slower, so there is no choice of type here.
"""

from __future__ import annotations

import torch

from mtpx_torch.product import works

GROUP = 32
"""Weights that share a scale: a block of Q4_0 or Q4_1."""

BLOCKS = {"Q4_0": 18, "Q4_1": 20}
"""Bytes a block of each kind that the kernel takes."""

_INNER_TILES = 1
"""An argument of the packing that CPUs do not look at."""


def unpack(data: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """data (rows, bytes) of whole blocks → codes (rows, in) int32 in 0..15, scale and zero (rows,
    in / 32) float32, with w = (code - 8)·scale + zero.

    Q4_0 holds d and w = (q - 8)·d; Q4_1 holds d, m and w = q·d + m.
    """
    rows = data.shape[0]
    blocks = data.view(-1, BLOCKS[kind])
    packed = blocks[:, BLOCKS[kind] - GROUP // 2 :]
    codes = torch.cat([packed & 0x0F, packed >> 4], dim=1).to(torch.int32).view(rows, -1)
    halves = blocks[:, : BLOCKS[kind] - GROUP // 2].contiguous().view(torch.float16).float()
    scale = halves[:, 0].reshape(rows, -1)
    if kind == "Q4_0":
        return codes, scale, torch.zeros_like(scale)
    return codes, scale, halves[:, 1].reshape(rows, -1) + 8 * scale


class Int4Product:
    """y = x·Wᵀ + b for bfloat16 x, over weights in blocks of four bits."""

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        self.weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, _INNER_TILES)
        both = torch.stack([scale, zero], dim=-1).transpose(0, 1)
        self.scales = both.contiguous().to(torch.bfloat16)
        self.bias = bias
        self.nbytes = self.weight.nbytes + self.scales.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, self.weight, GROUP, self.scales
        )
        return y if self.bias is None else y + self.bias


def int4_works() -> bool:
    """Whether this torch has the kernel and it computes what the blocks stand for."""

    def computes() -> bool:
        codes = torch.arange(16 * 64, dtype=torch.int32).view(16, 64) % 16
        scale, zero = torch.full((16, 2), 0.5), torch.full((16, 2), 0.25)
        x = torch.ones(2, 64, dtype=torch.bfloat16)
        wanted = x.float() @ ((codes - 8) * 0.5 + 0.25).T
        return torch.allclose(Int4Product(codes, scale, zero)(x).float(), wanted, rtol=0.02)

    return works(computes)
