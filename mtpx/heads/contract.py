"""What a head's contract says: the fields, and nothing of any one family."""

from __future__ import annotations

from typing import Literal

import msgspec

from mtpx.errors import PackError

Role = Literal[
    "fc",
    "norm_embedding",
    "norm_hidden",
    "norm",
    "layer",
    "draft_vocab",
    "embedding",
    "output",
]
"""What a tensor of a head is for. `fc` joins the two inputs, `norm_embedding` and `norm_hidden` are
their norms, `layer` is the prefix of a block's tensors, `norm` the head's final norm, `draft_vocab`
the token ids the output product is reduced to, `embedding` and `output` the head's own matrices."""

RECYCLED_DEPTH_LIMIT = 8
"""How deep one recycled layer may be asked by default: acceptance decays geometrically, and even at
a conditional rate of 0.8 a ninth draft survives in 0.8⁹ = 13 % of the rounds only."""

FAR_DEPTH = 64
"""More drafts a round than any head is good for; a larger limit in a manifest is a typing error."""


class HeadContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a head is wired.

    `tensors` maps a role to a tensor's name after `prefix`; `{i}` in either is the head's layer,
    `{n}` the number of the trunk's layers plus that.

    - `order`: which half of `fc`'s input comes first.
    - `norm_offset`: norms multiply by `norm_offset + w`, w as stored.
    - `hidden`: the target hidden state fed is taken "after" or "before" the target's final norm.
    - `recycled`: what a step deeper is fed, "after" or "before" the head's final norm;
      `None` where nothing is recycled, or where it is not known.
    - `zero_first_embedding`: the embedding of pair 0 is replaced by zeros.
    - `positions`: pair k sits at a position that "running" counts up with k, or at a "constant" one.
    - `shared_embedding`, `shared_output`: the trunk's matrices serve the head.
    - `block`: what a layer is (see `mtpx.heads.blocks`).
    - `draft_depth_limit`: the deepest depth the head may be asked for, 1 to 64.
    """

    family: str
    tensors: dict[Role, str]
    order: Literal["embedding-hidden", "hidden-embedding"]
    hidden: Literal["after", "before"]
    recycled: Literal["after", "before"] | None
    block: str
    prefix: str = "mtp."
    layers: int = 1
    norm_offset: Literal[0, 1] = 0
    zero_first_embedding: bool = False
    positions: Literal["running", "constant"] = "running"
    shared_embedding: bool = True
    shared_output: bool = True
    draft_depth_limit: int = RECYCLED_DEPTH_LIMIT

    def has(self, role: Role) -> bool:
        return role in self.tensors

    def name(self, role: Role, layer: int = 0, trunk_layers: int = 0) -> str:
        """Full name of a role's tensor; of the role "layer", the prefix of that block's tensors.

        Raises `PackError` when the contract has no tensor in that role.
        """
        if role not in self.tensors:
            raise PackError(f"the {self.family} head's contract names no tensor for {role!r}")
        return _numbered(self.prefix + self.tensors[role], layer, trunk_layers)

    def wiring(self) -> str:
        """The wiring in words, for a person who compares it with another engine's."""
        first, second = self.order.split("-")
        recycled = {
            "after": "its final norm's output is recycled",
            "before": "its output before its final norm is recycled",
            None: "nothing is recycled",
        }[self.recycled]
        own = [
            name
            for name, shared in (
                ("embedding", self.shared_embedding),
                ("output matrix", self.shared_output),
            )
            if not shared
        ]
        parts = [
            f"{first} first, then {second}",
            f"hidden states from {self.hidden} the target's final norm",
            recycled,
            "norms stored as w, 1 + w applied" if self.norm_offset else "norms applied as stored",
            f"{self.layers} layer{'s' if self.layers > 1 else ''} of the {self.block} kind",
            f"{' and '.join(own)} of its own"
            if own
            else "the target's embedding and output matrix",
        ]
        if self.zero_first_embedding:
            parts.append("the first pair's embedding zeroed")
        if self.positions == "constant":
            parts.append("at a constant position")
        return ", ".join(parts)

    def full_prefix(self, layer: int = 0, trunk_layers: int = 0) -> str:
        """What the names of this layer's tensors begin with."""
        return _numbered(self.prefix, layer, trunk_layers)


def _numbered(template: str, layer: int, trunk_layers: int) -> str:
    return template.replace("{i}", str(layer)).replace("{n}", str(trunk_layers + layer))
