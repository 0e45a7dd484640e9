"""The contract a manifest declares: its family's row, changed where the manifest says so."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from mtpx.errors import PackError
from mtpx.heads.contract import FAR_DEPTH, HeadContract, Role
from mtpx.heads.families import FAMILIES, listed


def declared(table: Mapping[str, Any]) -> HeadContract:
    """The contract a manifest declares: its family's row, with what the table says in its place.

    A role set to "" in `tensors` is taken out. Raises `PackError` on an unknown family or field, or
    a value that cannot be.
    """
    name = table.get("family")
    if not isinstance(name, str):
        raise PackError("the head's contract needs a `family`; known are " + listed(FAMILIES))
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise PackError(f"unknown head family {name!r}{hint} (known: {listed(FAMILIES)})")
    fields = msgspec.to_builtins(FAMILIES[name].contract)
    tensors = table.get("tensors", {})
    if isinstance(tensors, Mapping):
        merged = {**fields["tensors"], **tensors}
        kept = {role: text for role, text in merged.items() if text or role == "layer"}
    else:
        kept = tensors
    try:
        contract = msgspec.convert({**fields, **table, "tensors": kept}, HeadContract)
    except msgspec.ValidationError as error:
        raise PackError(f"the head's contract cannot be used: {error}") from None
    _check_contract(contract)
    return contract


def _check_contract(contract: HeadContract) -> None:
    if not 1 <= contract.layers <= FAR_DEPTH:
        raise PackError(
            f"the head's contract says {contract.layers} layers; 1 to {FAR_DEPTH} can be"
        )
    if not 1 <= contract.draft_depth_limit <= FAR_DEPTH:
        raise PackError(
            f"the head's contract has draft_depth_limit {contract.draft_depth_limit}; "
            f"1 to {FAR_DEPTH} can be"
        )
    if FAMILIES[contract.family].wired:
        _check_wiring(contract)


def _check_wiring(contract: HeadContract) -> None:
    """What a backend relies on without asking again."""
    family = FAMILIES[contract.family].contract
    if contract.block != family.block:
        raise PackError(
            f"a {contract.family} head is made of {family.block!r} blocks, not {contract.block!r}"
        )
    needed: tuple[Role, ...] = ("fc", "norm_embedding", "norm_hidden", "layer", "norm")
    absent = [role for role in needed if not contract.has(role)]
    if absent:
        raise PackError(f"the head's contract names no tensor for {', '.join(absent)}")
    for role, shared in (
        ("embedding", contract.shared_embedding),
        ("output", contract.shared_output),
    ):
        if shared == (role in contract.tensors):
            raise PackError(
                f"the head's contract contradicts itself: shared_{role} is {str(shared).lower()}, and "
                f"a tensor {role!r} is {'named' if shared else 'not named'}"
            )
    if contract.recycled is None and contract.draft_depth_limit > contract.layers:
        raise PackError(
            f"the head's contract recycles nothing, so its {contract.layers} layer(s) cannot draft "
            f"{contract.draft_depth_limit} deep; set `recycled` or the limit"
        )
