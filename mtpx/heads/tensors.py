"""A head's tensors: names and shapes, held against the trunk's dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mtpx.errors import PackError
from mtpx.heads.contract import HeadContract, Role
from mtpx.heads.families import require_wired

Shape = tuple[int | None, ...]
"""A tensor's shape; `None` is any length."""


def expected_tensors(
    contract: HeadContract,
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    vocab: int,
    trunk_layers: int = 0,
) -> dict[str, Shape]:
    """Names and shapes of a head's tensors on a trunk of these dimensions; matrices are (out, in).

    Raises `PackError` when no backend of today can run the head.
    """
    require_wired(contract)
    if contract.block != "llama":
        raise PackError(f"the head's block {contract.block!r} is not wired; 'llama' is")
    fixed: dict[Role, Shape] = {
        "fc": (hidden, 2 * hidden),
        "norm_embedding": (hidden,),
        "norm_hidden": (hidden,),
        "norm": (hidden,),
        "draft_vocab": (None,),
        "embedding": (vocab, hidden),
        "output": (vocab, hidden),
    }
    block = _llama_block(hidden, heads * head_dim, kv_heads * head_dim, ffn)
    expected: dict[str, Shape] = {}
    for role in contract.tensors:
        name = contract.name(role, trunk_layers=trunk_layers)
        if role == "layer":
            expected |= {name + part: shape for part, shape in block.items()}
        else:
            expected[name] = fixed[role]
    return expected


def _llama_block(hidden: int, q: int, kv: int, ffn: int) -> dict[str, Shape]:
    return {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }


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
