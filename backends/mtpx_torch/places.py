"""Where the tensors stand that a function finds in objects instead of among its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class Places:
    """Attributes that hold tensors, of `roots` and of what of ours they hold, in the order in which they are
    met; attributes called as `without` says are passed over."""

    def __init__(self, *roots: object, without: Sequence[str] = ()) -> None:
        self._places: list[tuple[object, str]] = []
        self._without, seen = frozenset(without), set[int]()
        for root in roots:
            self._look(root, seen)

    def tensors(self) -> list[torch.Tensor]:
        return [getattr(owner, name) for owner, name in self._places]

    @contextmanager
    def holding(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Others in their place for a while."""
        own = self.tensors()
        try:
            self._put(tensors)
            yield
        finally:
            self._put(own)

    def _put(self, tensors: Sequence[torch.Tensor]) -> None:
        for (owner, name), tensor in zip(self._places, tensors, strict=True):
            setattr(owner, name, tensor)

    def _look(self, what: object, seen: set[int]) -> None:
        if id(what) in seen:
            return
        seen.add(id(what))
        if isinstance(what, list):
            for one in what:
                self._look(one, seen)
        elif type(what).__module__.startswith("mtpx_torch."):
            for name in _attributes(what):
                if name in self._without:
                    continue
                value = getattr(what, name)
                if isinstance(value, torch.Tensor):
                    self._places.append((what, name))
                else:
                    self._look(value, seen)


def _attributes(what: object) -> list[str]:
    slots = [name for kind in type(what).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(what, "__dict__", {}), *slots]
