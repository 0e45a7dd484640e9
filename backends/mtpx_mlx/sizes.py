"""The sizes of a target that a head has to fit, read off mlx-lm's own model arguments."""

from __future__ import annotations

from typing import Any

from mtpx.errors import PackError
from mtpx.heads import Experts, TrunkSizes


def arguments(model: Any) -> Any:
    """The text model's arguments: the model's own, or those of its language part."""
    return getattr(getattr(model, "language_model", model), "args", None)


def trunk_sizes(model: Any) -> TrunkSizes:
    """Raises `PackError` when mlx-lm's model does not tell them under the usual names."""
    args = arguments(model)
    try:
        heads = int(args.num_attention_heads)
        return TrunkSizes(
            layers=int(args.num_hidden_layers),
            hidden=int(args.hidden_size),
            ffn=int(args.intermediate_size),
            heads=heads,
            kv_heads=int(args.num_key_value_heads or heads),
            head_dim=int(getattr(args, "head_dim", None) or args.hidden_size // heads),
            vocab=int(args.vocab_size),
            experts=_experts(args),
        )
    except (AttributeError, TypeError) as error:
        raise PackError(
            f"mlx-lm's {type(model).__module__} does not tell the sizes a head is checked against: "
            f"{error}"
        ) from None


def _experts(args: Any) -> Experts | None:
    """A mixture beside a shared expert, as Qwen3-Next's layers have it."""
    names = ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size")
    count, ffn, shared = (getattr(args, name, None) for name in names)
    return Experts(int(count), int(ffn), int(shared)) if count and ffn and shared else None


def norm_eps(model: Any) -> float:
    """What the target's norms add under the root."""
    return float(arguments(model).rms_norm_eps)
