"""A snapshot as bytes for a file, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mtpx.carry import CarriedHead, StoreRange
from mtpx.checkpoint import Tensor
from mtpx.errors import BackendError
from mtpx.frozen import Frozen
from mtpx_torch.snapshot import Snapshot

if TYPE_CHECKING:
    from mtpx.checkpoint import Kind
    from mtpx_torch.cache import KVCache
    from mtpx_torch.propose import Proposer

KINDS: dict[torch.dtype, Kind] = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}


def freeze(saved: Snapshot) -> Frozen:
    """`target.I` and `head.I` are buffer I of the two caches, keys of all layers first; `hidden` the
    hidden states of positions hidden_lo..hidden_hi-1."""
    tensors = {f"target.{i}": rows for i, rows in enumerate(saved.target)}
    facts = {"filled": saved.filled, "head_rows": 0, "head_key": -1}
    if saved.head is not None and saved.hidden is not None:
        tensors |= {f"head.{i}": rows for i, rows in enumerate(saved.head.handle)}
        tensors["hidden"] = saved.hidden
        facts |= {
            "head_rows": saved.head.rows,
            "head_key": saved.head.last_pair_key,
            "hidden_lo": saved.store.lo,
            "hidden_hi": saved.store.hi,
        }
    return Frozen(
        saved.tokens,
        saved.session,
        {name: _bytes(name, tensor) for name, tensor in tensors.items()},
        facts,
    )


def thaw(frozen: Frozen, cache: KVCache, proposer: Proposer | None) -> Snapshot:
    """Raises `BackendError` where a tensor is missing or is not of this engine's shape."""
    facts, taken = frozen.facts, _Taken(frozen)
    filled = facts.get("filled", -1)
    if not 0 <= filled <= len(frozen.tokens):
        raise _unfit(f"{filled} positions of {len(frozen.tokens)} tokens")
    saved = Snapshot(frozen.tokens, frozen.session, filled, taken.rows("target", cache, filled))
    if proposer is None or "hidden" not in frozen.tensors:
        return saved
    rows, key = facts.get("head_rows", -1), facts.get("head_key", -2)
    lo, hi = facts.get("hidden_lo", -1), facts.get("hidden_hi", -1)
    if not (
        0 <= rows <= key + 1 <= max(0, len(frozen.tokens) - 1) and 0 <= lo <= max(lo, hi) <= filled
    ):
        raise _unfit(f"{rows} rows up to pair {key}, hidden states {lo} to {hi}")
    saved.head = CarriedHead(
        rows, key, saved.tokens, saved.session, taken.rows("head", proposer.cache, rows)
    )
    width = proposer.hidden.shape[2]
    saved.hidden = taken.tensor("hidden", (max(0, hi - lo), width), proposer.hidden)
    saved.store = StoreRange(1, lo, hi)
    return saved


class _Taken:
    """Tensors of a file, checked against what the engine holds."""

    def __init__(self, frozen: Frozen) -> None:
        self._tensors = frozen.tensors

    def rows(self, part: str, cache: KVCache, count: int) -> list[torch.Tensor]:
        return [
            self.tensor(f"{part}.{i}", (buffer.shape[1], count, buffer.shape[3]), buffer)
            for i, buffer in enumerate((*cache.keys, *cache.values))
        ]

    def tensor(self, name: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        found = self._tensors.get(name)
        if found is None or found.shape != shape or found.kind != KINDS.get(like.dtype):
            has = "is missing" if found is None else f"is {found.kind} of shape {found.shape}"
            raise _unfit(f"{name} {has}, expected {KINDS.get(like.dtype)} of shape {shape}")
        raw = torch.from_numpy(np.array(found.data))
        return raw.view(like.dtype).reshape(shape).to(like.device)


def _unfit(what: str) -> BackendError:
    return BackendError(f"the kept state does not fit this model: {what}")


def _bytes(name: str, tensor: torch.Tensor) -> Tensor:
    raw = tensor.detach().cpu().contiguous()
    data = raw.reshape(-1).view(torch.uint8).numpy()
    return Tensor(name, tuple(tensor.shape), KINDS[tensor.dtype], data)
