"""The tensors of one block of each kind, with their shapes; matrices are (out, in).

- "llama": RMS norm, attention, RMS norm, SwiGLU.
- "mimo": the same with biases on q, k and v (Qwen2's block).
- "qwen3-next": q_proj also gives a gate as wide as the attention's output, which is multiplied by
  its sigmoid before o_proj; RMS norms over head_dim of q and k; only a part of head_dim is rotated;
  the MLP is SwiGLU, or routed experts beside a shared one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from mtpx.errors import PackError
from mtpx.heads.trunk import Experts, TrunkSizes

ExpertsLayout = Literal["each", "fused", "stacked"]
"""How a mixture's matrices lie in a file: each expert's under its number (Qwen's own files), all in
two tensors with gate and up joined (transformers'), or all in three (MLX's)."""

Shape = tuple[int | None, ...]
"""A tensor's shape; `None` is any length."""


def block_tensors(
    kind: str, trunk: TrunkSizes, experts: ExpertsLayout = "each"
) -> dict[str, Shape]:
    """Names after the layer's prefix, and shapes. Raises `PackError` for a kind nobody has wired."""
    if kind not in _BLOCKS:
        raise PackError(
            f"the head's block {kind!r} is not wired; wired are {', '.join(sorted(_BLOCKS))}"
        )
    block = _BLOCKS[kind](trunk)
    if "mlp.gate.weight" in block and trunk.experts is not None:
        block |= _under("mlp.", _mixture(trunk.experts, trunk.hidden, experts))
    return block


def experts_layout(names: Iterable[str]) -> ExpertsLayout:
    """The layout these tensors' names are in."""
    names = list(names)
    if any(".mlp.experts.gate_up_proj" in name for name in names):
        return "fused"
    return "stacked" if any(".mlp.switch_mlp." in name for name in names) else "each"


def _mixture(experts: Experts, hidden: int, layout: ExpertsLayout) -> dict[str, Shape]:
    one = _swiglu(hidden, experts.ffn)
    if layout == "fused":
        return {
            "experts.gate_up_proj": (experts.count, 2 * experts.ffn, hidden),
            "experts.down_proj": (experts.count, hidden, experts.ffn),
        }
    if layout == "stacked":
        return {f"switch_mlp.{name}": (experts.count, *shape) for name, shape in one.items()}
    return {
        f"experts.{e}.{name}": shape for e in range(experts.count) for name, shape in one.items()
    }


def _norms(hidden: int) -> dict[str, Shape]:
    return {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}


def _swiglu(hidden: int, ffn: int) -> dict[str, Shape]:
    return {
        "gate_proj.weight": (ffn, hidden),
        "up_proj.weight": (ffn, hidden),
        "down_proj.weight": (hidden, ffn),
    }


def _under(prefix: str, tensors: dict[str, Shape]) -> dict[str, Shape]:
    return {prefix + name: shape for name, shape in tensors.items()}


def _llama(trunk: TrunkSizes) -> dict[str, Shape]:
    q, kv = trunk.heads * trunk.head_dim, trunk.kv_heads * trunk.head_dim
    attention: dict[str, Shape] = {
        "q_proj.weight": (q, trunk.hidden),
        "k_proj.weight": (kv, trunk.hidden),
        "v_proj.weight": (kv, trunk.hidden),
        "o_proj.weight": (trunk.hidden, q),
    }
    return {
        **_norms(trunk.hidden),
        **_under("self_attn.", attention),
        **_under("mlp.", _swiglu(trunk.hidden, trunk.ffn)),
    }


def _mimo(trunk: TrunkSizes) -> dict[str, Shape]:
    q, kv = trunk.heads * trunk.head_dim, trunk.kv_heads * trunk.head_dim
    biases = {f"self_attn.{part}_proj.bias": (n,) for part, n in (("q", q), ("k", kv), ("v", kv))}
    return {**_llama(trunk), **biases}


def _qwen3_next(trunk: TrunkSizes) -> dict[str, Shape]:
    q, kv = trunk.heads * trunk.head_dim, trunk.kv_heads * trunk.head_dim
    attention: dict[str, Shape] = {
        "q_proj.weight": (2 * q, trunk.hidden),
        "k_proj.weight": (kv, trunk.hidden),
        "v_proj.weight": (kv, trunk.hidden),
        "o_proj.weight": (trunk.hidden, q),
        "q_norm.weight": (trunk.head_dim,),
        "k_norm.weight": (trunk.head_dim,),
    }
    if trunk.experts is None:
        mlp = _under("mlp.", _swiglu(trunk.hidden, trunk.ffn))
    else:
        mlp = {
            "mlp.gate.weight": (trunk.experts.count, trunk.hidden),
            **_under("mlp.shared_expert.", _swiglu(trunk.hidden, trunk.experts.shared_ffn)),
            "mlp.shared_expert_gate.weight": (1, trunk.hidden),
        }
    return {**_norms(trunk.hidden), **_under("self_attn.", attention), **mlp}


_BLOCKS: dict[str, Callable[[TrunkSizes], dict[str, Shape]]] = {
    "llama": _llama,
    "mimo": _mimo,
    "qwen3-next": _qwen3_next,
}
