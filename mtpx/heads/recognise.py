"""Which head a checkpoint carries, told by its configuration and its tensors' names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mtpx.heads.contract import FAR_DEPTH, HeadContract, Role
from mtpx.heads.families import FAMILIES, Family
from mtpx.heads.trunk import text_config

_OUTER = ("", "language_model.", "model.language_model.", "model.")
"""What a checkpoint's names may begin with before a family's own prefix: multimodal folders hold
their language model under a name, and MLX's and transformers' differ."""

_ANY_HEAD = re.compile(r"(?:^|\.)(?:mtp\.|mtp_layers\.|nextn\.)")
"""Names by which heads are known, whatever the family."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """A head found in a checkpoint. `contract` is its family's, with the prefix and the layers found;
    `names` are its tensors, all under the contract's prefix."""

    contract: HeadContract
    names: tuple[str, ...]

    @property
    def family(self) -> Family:
        return FAMILIES[self.contract.family]


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The family of heads that checkpoints with this config.json carry, if any is known."""
    named = (config.get("model_type"), text_config(config).get("model_type"))
    told = {name for name in named if isinstance(name, str)}
    return next((row for row in FAMILIES.values() if told & set(row.model_types)), None)


def family_of_gguf(architecture: str) -> Family | None:
    """The family of heads that GGUF files of this architecture carry, if any is known."""
    return next((row for row in FAMILIES.values() if architecture in row.gguf), None)


def announced_layers(config: Mapping[str, Any]) -> int:
    """How many layers of a head config.json announces; its files need not hold them."""
    family = family_of(config)
    if family is None or not family.layers_key:
        return 0
    parts = (text_config(config), config)
    counts = (part.get(family.layers_key) for part in parts)
    return next((n for n in counts if isinstance(n, int) and not isinstance(n, bool)), 0)


def recognise(config: Mapping[str, Any], names: Collection[str]) -> Recognised | None:
    """The head among these tensors, or `None` where there is none of the family's naming."""
    family = family_of(config)
    if family is None:
        return None
    trunk_layers = text_config(config).get("num_hidden_layers")
    first = trunk_layers if isinstance(trunk_layers, int) else 0
    for outer in _OUTER:
        contract = msgspec.structs.replace(family.contract, prefix=outer + family.contract.prefix)
        layers = _layers(contract, names, first)
        if layers:
            contract = msgspec.structs.replace(contract, layers=layers)
            starts = tuple({contract.full_prefix(i, first) for i in range(layers)})
            return Recognised(contract, tuple(sorted(n for n in names if n.startswith(starts))))
    return None


def looks_like_a_head(names: Collection[str]) -> list[str]:
    """Tensors that some head's naming would claim, for a checkpoint of no known family."""
    return sorted(name for name in names if _ANY_HEAD.search(name))


def _layers(contract: HeadContract, names: Collection[str], trunk_layers: int) -> int:
    """How many layers of such a head the names hold, counted from the first."""
    role: Role = "layer" if contract.has("layer") else "fc"
    for i in range(FAR_DEPTH):
        start = contract.name(role, i, trunk_layers)
        if not any(name.startswith(start) for name in names):
            return i
        if role == "fc":
            return 1
    return FAR_DEPTH
