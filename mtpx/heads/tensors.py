"""A head's tensors: names and shapes, held against the trunk's dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mtpx.errors import PackError
from mtpx.heads.blocks import ExpertsLayout, Shape, block_tensors
from mtpx.heads.contract import HeadContract, Role
from mtpx.heads.families import require_wired
from mtpx.heads.trunk import TrunkSizes


def expected_tensors(
    contract: HeadContract, trunk: TrunkSizes, experts: ExpertsLayout = "each"
) -> dict[str, Shape]:
    """Names and shapes of a head's tensors on a trunk of these sizes; matrices are (out, in).

    Raises `PackError` when no backend of today can run the head.
    """
    require_wired(contract)
    fixed: dict[Role, Shape] = {
        "fc": (trunk.hidden, 2 * trunk.hidden),
        "norm_embedding": (trunk.hidden,),
        "norm_hidden": (trunk.hidden,),
        "norm": (trunk.hidden,),
        "draft_vocab": (None,),
        "embedding": (trunk.vocab, trunk.hidden),
        "output": (trunk.vocab, trunk.hidden),
    }
    block = block_tensors(contract.block, trunk, experts)
    expected: dict[str, Shape] = {}
    for role in contract.tensors:
        name = contract.name(role, trunk_layers=trunk.layers)
        if role == "layer":
            expected |= {name + part: shape for part, shape in block.items()}
        else:
            expected[name] = fixed[role]
    return expected


def check_tensors(
    found: Mapping[str, Sequence[int]],
    expected: Mapping[str, Shape],
    optional: Iterable[str] = (),
) -> None:
    """Raise `PackError` unless `found` (name to shape) is `expected`, names in `optional` aside.

    The message lists every missing, unexpected and wrongly shaped tensor.
    """
    missing = sorted(expected.keys() - found.keys() - set(optional))
    extra = sorted(found.keys() - expected.keys() - set(optional))
    wrong = [
        f"{name} is {_shape(found[name])} instead of {_shape(shape)}"
        for name, shape in expected.items()
        if name in found and not _fits(found[name], shape)
    ]
    faults = [
        *([f"missing: {', '.join(missing)}"] if missing else []),
        *([f"not in its contract: {', '.join(extra)}"] if extra else []),
        *wrong,
    ]
    if faults:
        raise PackError("this head does not fit the trunk: " + "; ".join(faults))


def check_draft_vocab(ids: npt.NDArray[Any], vocab: int) -> None:
    """Raise `PackError` unless `ids` (r,) are ascending, distinct token ids below `vocab`."""
    if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise PackError(
            f"the head's draft vocabulary must be a list of token ids, found {ids.dtype} "
            f"{_shape(ids.shape)}"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise PackError(
            f"the head's draft vocabulary holds ids {int(ids.min())} to {int(ids.max())}; the trunk "
            f"has {vocab} tokens"
        )
    # Python integers would be slow and an unsigned difference would wrap: compare neighbours.
    if not bool(np.all(ids[1:] > ids[:-1])):
        raise PackError("the head's draft vocabulary is not in ascending order without repetition")


def _fits(found: Sequence[int], shape: Shape) -> bool:
    return len(found) == len(shape) and all(
        want is None or have == want for have, want in zip(found, shape, strict=True)
    )


def _shape(shape: Sequence[int | None]) -> str:
    return "×".join("?" if n is None else str(n) for n in shape) or "a single number"
