"""Weights by name out of a checkpoint: whole and in floating point, in pieces, or as they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from mtpx.checkpoint import unpermute_rows
from mtpx_torch.dequant import decode, raw, to_torch
from mtpx_torch.norm import Norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtpx.checkpoint import TargetConfig, Tensor

PIECE_ROWS = 1024
"""Rows of a matrix that are in floating point at a time while it is quantised."""


class WeightReader:
    """Takes checked tensors by name and puts them on the device, rows in Hugging Face's order."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        config: TargetConfig,
        dtype: torch.dtype,
        device: torch.device,
        norm_offset: int = 0,
    ) -> None:
        self.tensors, self.config = tensors, config
        self.dtype, self.device, self.norm_offset = dtype, device, norm_offset

    def take(self, name: str) -> torch.Tensor:
        found = self.tensors[name]
        weight = to_torch(found, self.dtype, self.device)
        return weight[self._order(found)] if found.permuted else weight

    def take_if(self, name: str) -> torch.Tensor | None:
        return self.take(name) if name in self.tensors else None

    def norm(self, name: str) -> Norm:
        return Norm(self.take(name) + self.norm_offset, self.config.rms_eps)

    def biases(self, weights: list[str]) -> torch.Tensor | None:
        """The biases of these matrices, one after the other, zeros where one has none; `None` where
        none has."""
        found = [self.take_if(f"{name.removesuffix('.weight')}.bias") for name in weights]
        if all(bias is None for bias in found):
            return None
        rows = [self.tensors[name].shape[0] for name in weights]
        return torch.cat(
            [
                torch.zeros(n, dtype=self.dtype, device=self.device) if bias is None else bias
                for bias, n in zip(found, rows, strict=True)
            ]
        )

    def shape(self, weights: list[str]) -> tuple[int, int]:
        """(rows, columns) of these matrices, one above the other."""
        shapes = [self.tensors[name].shape for name in weights]
        return sum(shape[0] for shape in shapes), shapes[0][1]

    def kinds(self, names: list[str]) -> set[str]:
        return {self.tensors[name].kind for name in names}

    def stored(self, name: str) -> tuple[torch.Tensor, str]:
        """A matrix as its file holds it, (rows, bytes) uint8, and the kind of its blocks."""
        found = self.tensors[name]
        data = raw(found, self.device).view(found.shape[0], -1)
        return (data[self._order(found)] if found.permuted else data), found.kind

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """A matrix in float32, `PIECE_ROWS` rows at a time."""
        data, kind = self.stored(name)
        for rows in data.split(PIECE_ROWS):
            yield decode(rows.reshape(-1), kind, name, torch.float32).view(rows.shape[0], -1)

    def _order(self, found: Tensor) -> torch.Tensor:
        rows = found.shape[0]
        order = unpermute_rows(rows // self.config.head_dim, rows)
        return torch.from_numpy(order).to(self.device)


def output_name(config: TargetConfig) -> str:
    """The target's output matrix."""
    return "model.embed_tokens.weight" if config.tied else "lm_head.weight"


def output_rows(reader: WeightReader) -> torch.Tensor:
    """(vocab, hidden) the target's output matrix."""
    return reader.take(output_name(reader.config))
