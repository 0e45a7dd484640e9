"""The table of known heads, and which of them run."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mtpx.errors import PackError
from mtpx.heads.contract import HeadContract, Role


class Family(msgspec.Struct, frozen=True):
    """A row of the table of known heads.

    `model_types`: what the configurations of checkpoints that carry such a head call themselves;
    `gguf`: what the architectures are called in GGUF files; `layers_key`: the field of the configuration
    that counts the head's layers. `runs_on`: the
    backends that compute it today. `known` is the sentence a refusal adds: what is known about the
    wiring, what is open.
    """

    models: str
    contract: HeadContract
    model_types: tuple[str, ...] = ()
    gguf: tuple[str, ...] = ()
    layers_key: str = ""
    runs_on: tuple[str, ...] = ()
    known: str = ""

    @property
    def wired(self) -> bool:
        return bool(self.runs_on)


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
        runs_on=("torch", "mlx"),
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
        model_types=(
            "qwen3_next",
            "qwen3_5",
            "qwen3_5_text",
            "qwen3_5_moe",
            "qwen3_5_moe_text",
        ),
        gguf=("qwen3next", "qwen35", "qwen35moe"),
        layers_key="mtp_num_hidden_layers",
        runs_on=("mlx",),
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
        model_types=("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"),
        gguf=("deepseek2", "glm4moe"),
        layers_key="num_nextn_predict_layers",
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
        model_types=("mimo",),
        layers_key="num_nextn_predict_layers",
        runs_on=("mlx",),
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
        model_types=("nemotron_h",),
        gguf=("nemotron_h", "nemotron_h_moe"),
        layers_key="num_nextn_predict_layers",
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
        model_types=("step3p5", "step3p7"),
        layers_key="num_nextn_predict_layers",
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
        model_types=("gemma4_assistant",),
        known="a checkpoint of its own, without input norms, whose query-only layers read the "
        "target's keys and values at a constant position",
        contract=HeadContract(
            family="gemma-4-assistant",
            prefix="",
            tensors={"fc": "pre_projection.weight", "output": "post_projection.weight"},
            order="embedding-hidden",
            hidden="after",
            recycled="after",
            positions="constant",
            block="gemma-4-assistant",
        ),
    ),
}
"""Known heads by family name."""


def runs_on(contract: HeadContract, backend: str) -> bool:
    """Whether that backend computes this head today."""
    return backend in FAMILIES[contract.family].runs_on and contract.layers == 1


def require_wired(contract: HeadContract, backend: str | None = None) -> None:
    """Raise `PackError`, with what is known, unless `backend` (or, if `None`, any backend of today)
    can run this head."""
    family = FAMILIES[contract.family]
    if not family.wired:
        wired = listed(name for name, row in FAMILIES.items() if row.wired)
        raise PackError(
            f"the {contract.family} head ({family.models}) is recognised but not wired yet; known: "
            f"{family.known}. Heads that run today: {wired}; without its head the model decodes plain"
        )
    if contract.layers != 1:
        raise PackError(
            f"the {contract.family} head has {contract.layers} layers; heads of one layer run today; "
            "without its head the model decodes plain"
        )
    if backend is not None and backend not in family.runs_on:
        there = " or ".join(family.runs_on)
        raise PackError(
            f"the {contract.family} head ({family.models}) runs on the {there} backend, not on "
            f"{backend}: choose it with --backend {family.runs_on[0]}"
        )


def listed(names: Iterable[str]) -> str:
    """Names as a message gives them."""
    return ", ".join(sorted(names))
