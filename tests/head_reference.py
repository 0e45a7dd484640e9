"""MTP heads written out plainly in torch, from the contract's fields: no cache, one sequence at a time.

What a backend computes is held against this. float64, so that only the backend rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from mtpx.heads import HeadContract

Weights = Mapping[str, torch.Tensor]


def residual(
    contract: HeadContract,
    weights: Weights,
    config: Mapping[str, Any],
    embedded: torch.Tensor,
    hidden: torch.Tensor,
) -> torch.Tensor:
    """Pairs 0..n-1: embedded (of token k + 1), hidden (at k), (n, H) → the block's output (n, H)."""
    weights = {name: value.double() for name, value in weights.items()}
    eps, offset = config["rms_norm_eps"], contract.norm_offset

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return rms(x, weights[name] + offset, eps)

    e, h = embedded.double(), hidden.double()
    if contract.zero_first_embedding:
        e = torch.cat([torch.zeros_like(e[:1]), e[1:]])
    e, h = norm(e, contract.name("norm_embedding")), norm(h, contract.name("norm_hidden"))
    pair = [e, h] if contract.order == "embedding-hidden" else [h, e]
    x = torch.cat(pair, -1) @ weights[contract.name("fc")].T
    prefix = contract.name("layer")
    block = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
    x = x + attention(block, config, offset, rms(x, block["input_layernorm.weight"] + offset, eps))
    y = rms(x, block["post_attention_layernorm.weight"] + offset, eps)
    return x + (
        mixture(block, config, y) if "mlp.gate.weight" in block else swiglu(block, "mlp.", y)
    )


def outputs(
    contract: HeadContract, weights: Weights, config: Mapping[str, Any], x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The block's output (n, H) → (what the output matrix is given, what a deeper step is fed)."""
    weight = weights[contract.name("norm")].double() + contract.norm_offset
    normed = rms(x, weight, config["rms_norm_eps"])
    return normed, x if contract.recycled == "before" else normed


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def attention(
    block: Weights, config: Mapping[str, Any], offset: int, x: torch.Tensor
) -> torch.Tensor:
    """Causal attention over the rows of x (n, H), with whatever the block has: biases, norms of q and
    k, a gate on the output."""
    n = x.shape[0]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads

    def project(name: str) -> torch.Tensor:
        return F.linear(
            x, block[f"self_attn.{name}_proj.weight"], block.get(f"self_attn.{name}_proj.bias")
        )

    q, k, v = project("q"), project("k"), project("v")
    gate = None
    if q.shape[1] == 2 * heads * dim:
        # Each head's rows: its query, then its gate.
        q, gate = q.reshape(n, heads, 2 * dim).split(dim, dim=-1)
    q, k, v = q.reshape(n, heads, dim), k.reshape(n, kv_heads, dim), v.reshape(n, kv_heads, dim)
    if "self_attn.q_norm.weight" in block:
        q = rms(q, block["self_attn.q_norm.weight"] + offset, config["rms_norm_eps"])
        k = rms(k, block["self_attn.k_norm.weight"] + offset, config["rms_norm_eps"])
    q, k = rotated(q, config), rotated(k, config)
    k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * dim**-0.5
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
    if gate is not None:
        out = out * gate.sigmoid()
    return out.reshape(n, -1) @ block["self_attn.o_proj.weight"].T


def rotated(x: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Rotary embedding by halves of the first part of each head; row i is at position i + 1."""
    told = config.get("rope_parameters") or config
    dim = int(x.shape[-1] * told.get("partial_rotary_factor", 1.0))
    base = told.get("rope_theta", 10000.0)
    frequencies = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = (torch.arange(x.shape[0]) + 1)[:, None, None] * frequencies
    a, b, rest = x[..., : dim // 2], x[..., dim // 2 : dim], x[..., dim:]
    return torch.cat(
        [a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest], dim=-1
    )


def swiglu(block: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    gate, up, down = (block[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def mixture(block: Weights, config: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Each row through its chosen experts, weighted by a softmax renormalised over them, beside a
    shared expert weighted by a sigmoid."""
    weights, chosen = (
        (x @ block["mlp.gate.weight"].T).softmax(-1).topk(config["num_experts_per_tok"], dim=-1)
    )
    weights = weights / weights.sum(-1, keepdim=True)
    shared = swiglu(block, "mlp.shared_expert.", x)
    out = (x @ block["mlp.shared_expert_gate.weight"].T).sigmoid() * shared
    for i in range(x.shape[0]):
        for weight, expert in zip(weights[i], chosen[i].tolist(), strict=True):
            out[i] += weight * swiglu(block, f"mlp.experts.{expert}.", x[i])
    return out
