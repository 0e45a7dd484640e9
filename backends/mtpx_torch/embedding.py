"""Token embeddings kept as they are stored, decoded row by row as they are looked up.

A round looks up a handful of rows; a float32 copy of the whole table would be a fifth of a small
model's memory, and of no use to a product that packs its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mtpx_torch.dequant import decode, raw

if TYPE_CHECKING:
    from mtpx.checkpoint import Tensor


class Embedding:
    """(vocab, hidden) in the file's own blocks; `embedding[ids]` gives (ids, hidden) in `dtype`."""

    def __init__(self, stored: Tensor, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = raw(stored, device).view(stored.shape[0], -1)
        self._kind, self._name = stored.kind, stored.name
        self.hidden = stored.shape[1]
        self.dtype, self.device = dtype, device

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self._rows[ids]
        numbers = decode(rows.view(-1), self._kind, self._name, self.dtype)
        return numbers.view(ids.shape[0], self.hidden)

    def all(self) -> torch.Tensor:
        """(vocab, hidden) decoded."""
        return decode(self._rows.view(-1), self._kind, self._name, self.dtype).view(-1, self.hidden)
