"""MTP heads as declared data.

Every family does the same mathematics with different wiring, and a wrong wire is silent: the text
stays right, acceptance drops. So a head's wiring is a `HeadContract`, its tensor names and shapes
are checked against the trunk before anything is loaded, and a family nobody has wired is refused
with what is known about it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

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

Shape = tuple[int | None, ...]
"""A tensor's shape; `None` is any length."""

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
    - `zero_first_embedding`: the embedding at position 0 is replaced by zeros.
    - `shared_embedding`, `shared_output`: the trunk's matrices serve the head.
    - `block`: what a layer is ("llama": attention and SwiGLU, pre-norm, no biases).
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
        template = self.prefix + self.tensors[role]
        return template.replace("{i}", str(layer)).replace("{n}", str(trunk_layers + layer))


class Family(msgspec.Struct, frozen=True):
    """A row of the table of known heads. `wired`: a backend of today can run it. `known` is the
    sentence a refusal adds: what is known about the wiring, what is open."""

    models: str
    contract: HeadContract
    wired: bool = False
    known: str = ""


def _pre_fc(layer: str = "layers.{i}.") -> dict[Role, str]:
    """Tensor names of the heads that follow Qwen3-Next's naming."""
    return {
        "norm_embedding": "pre_fc_norm_embedding.weight",
        "norm_hidden": "pre_fc_norm_hidden.weight",
        "fc": "fc.weight",
        "layer": layer,
        "norm": "norm.weight",
    }


_DEEPSEEK: dict[Role, str] = {
    "norm_embedding": "enorm.weight",
    "norm_hidden": "hnorm.weight",
    "fc": "eh_proj.weight",
    "layer": "",
    "norm": "shared_head.norm.weight",
    "output": "shared_head.head.weight",
    "embedding": "embed_tokens.weight",
}

FAMILIES: dict[str, Family] = {
    "llama-mtp": Family(
        models="a Llama block trained for a Llama trunk (SmolLM2)",
        wired=True,
        contract=HeadContract(
            family="llama-mtp",
            tensors={**_pre_fc(), "draft_vocab": "draft_vocab"},
            order="embedding-hidden",
            hidden="after",
            recycled="after",
            block="llama",
        ),
    ),
    "qwen3-next": Family(
        models="Qwen3-Next, Qwen3.5, 3.6, 3.8, dense and mixture of experts",
        known="norms are stored as w with 1 + w applied, the hidden state fed comes after the "
        "target's final norm, `mtp.norm` is recycled; names may also start with `language_model.`",
        contract=HeadContract(
            family="qwen3-next",
            tensors=_pre_fc(),
            order="embedding-hidden",
            norm_offset=1,
            hidden="after",
            recycled="after",
            block="qwen3-next",
        ),
    ),
    "deepseek-v3": Family(
        models="DeepSeek-V3, R1, V3.2, GLM-4.5, 4.6, 4.7, 5",
        known="engines disagree whether the state before or after `shared_head.norm` is recycled; "
        "an acceptance sweep has to decide",
        contract=HeadContract(
            family="deepseek-v3",
            prefix="model.layers.{n}.",
            tensors=_DEEPSEEK,
            order="embedding-hidden",
            zero_first_embedding=True,
            hidden="after",
            recycled=None,
            shared_embedding=False,
            shared_output=False,
            block="deepseek-v3",
        ),
    ),
    "mimo": Family(
        models="MiMo-7B",
        known="the hidden state comes first in the joined input, and the embedding at position 0 "
        "is zeroed",
        contract=HeadContract(
            family="mimo",
            prefix="model.mtp_layers.{i}.",
            tensors={
                "norm_embedding": "token_layernorm.weight",
                "norm_hidden": "hidden_layernorm.weight",
                "fc": "input_proj.weight",
                "layer": "",
                "norm": "final_layernorm.weight",
            },
            order="hidden-embedding",
            zero_first_embedding=True,
            hidden="after",
            recycled=None,
            block="mimo",
            draft_depth_limit=1,
        ),
    ),
    "nemotron-3": Family(
        models="Nemotron-3",
        known="its tensors are under `mtp.layers.i.`, as many layers as its configuration says",
        contract=HeadContract(
            family="nemotron-3",
            tensors={"layer": "layers.{i}."},
            order="embedding-hidden",
            hidden="after",
            recycled="after",
            block="nemotron-3",
        ),
    ),
    "step-3.5": Family(
        models="Step-3.5, 3.7",
        known="three chained layers, each with an output head of its own; states before the final "
        "norms are fed and recycled",
        contract=HeadContract(
            family="step-3.5",
            prefix="model.layers.{n}.",
            tensors={"layer": ""},
            layers=3,
            order="embedding-hidden",
            hidden="before",
            recycled="before",
            shared_output=False,
            block="step-3.5",
            draft_depth_limit=3,
        ),
    ),
    "gemma-4-assistant": Family(
        models="Gemma 4 assistant",
        known="a checkpoint of its own, without input norms, whose query-only layers read the "
        "target's keys and values at a constant position",
        contract=HeadContract(
            family="gemma-4-assistant",
            prefix="",
            tensors={"fc": "pre_projection.weight", "output": "post_projection.weight"},
            order="embedding-hidden",
            hidden="after",
            recycled="after",
            block="gemma-4-assistant",
        ),
    ),
}
"""Known heads by family name."""


def declared(table: Mapping[str, Any]) -> HeadContract:
    """The contract a manifest declares: its family's row, with what the table says in its place.

    A role set to "" in `tensors` is taken out. Raises `PackError` on an unknown family or field, or
    a value that cannot be.
    """
    name = table.get("family")
    if not isinstance(name, str):
        raise PackError("the head's contract needs a `family`; known are " + _listed(FAMILIES))
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise PackError(f"unknown head family {name!r}{hint} (known: {_listed(FAMILIES)})")
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
    if contract.layers > 1 and not re.search(
        r"\{[in]\}", contract.prefix + contract.tensors["layer"]
    ):
        raise PackError("a head of several layers needs {i} in the name of its `layer`")
    if contract.recycled is None and contract.draft_depth_limit > contract.layers:
        raise PackError(
            f"the head's contract recycles nothing, so its {contract.layers} layer(s) cannot draft "
            f"{contract.draft_depth_limit} deep; set `recycled` or the limit"
        )


def require_wired(contract: HeadContract) -> None:
    """Raise `PackError`, with what is known, unless a backend of today can run this head."""
    family = FAMILIES[contract.family]
    if not family.wired:
        wired = _listed(name for name, row in FAMILIES.items() if row.wired)
        raise PackError(
            f"the {contract.family} head ({family.models}) is recognised but not wired yet; known: "
            f"{family.known}. Heads that run today: {wired}; without its head the model decodes plain"
        )


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

    Raises `PackError` when the contract's block is not wired.
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
    for layer in range(contract.layers):
        for role in contract.tensors:
            name = contract.name(role, layer, trunk_layers)
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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
