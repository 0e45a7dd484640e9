"""From a pack to an engine: the model, its head, and what there is to say about them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mtpx.backend import EngineInfo, EngineOptions
from mtpx.carry import carry_armed
from mtpx.checkpoint import BLOCKS, open_checkpoint
from mtpx.errors import BackendError, PackError
from mtpx.heads import require_wired, text_config
from mtpx_mlx.caches import Kept
from mtpx_mlx.devices import choose_device, device_name, wire_memory
from mtpx_mlx.engine import MlxEngine
from mtpx_mlx.folder import folder_model, read_config
from mtpx_mlx.gguf import gguf_model
from mtpx_mlx.head import Head, load_head
from mtpx_mlx.pair_cache import PairCache
from mtpx_mlx.precision import computed_in, dtype_of, packed_bits, prepare, said
from mtpx_mlx.sizes import arguments
from mtpx_mlx.target import Rows, Target

if TYPE_CHECKING:
    from mtpx.packs import Pack

OPTIONS = ("dtype", "kv_bits", "window")
UNKNOWN_CONTEXT = 8192
"""Tokens to make room for where the configuration does not say what the model can do."""


def load_engine(pack: Pack, options: EngineOptions) -> MlxEngine:
    """Raises `BackendError` for what cannot be done here, `PackError` for what cannot be read."""
    _check_options(options)
    asked = dtype_of(options.extra.get("dtype", "auto"))
    kept = Kept.asked(options)
    device = choose_device(options.device)
    with mx.stream(device):
        wire_memory()
        try:
            model, quantisation, limit = _model(pack.weights)
            # Half-precision arithmetic is a GPU's own; a CPU converts back and forth for it.
            gpu = device.type == mx.DeviceType.gpu
            if asked is None and quantisation in BLOCKS:
                asked = mx.float16 if gpu else mx.float32
            precision = prepare(model, options.precision, asked, pack.name)
            model.eval()
            kept.check(model, pack.name)
            mx.eval(model.parameters())
            target = Target(model, kept.maker(model))
            context = _context(pack, limit, options)
            plain = _why_plain(pack, target)
            head = None
            if pack.contract is not None and pack.head is not None and not plain:
                require_wired(pack.contract)
                target = Target(model, kept.maker(model), hidden=pack.contract.hidden)
                head = load_head(pack.contract, pack.head, target, computed_in(model))
            rows = target(mx.array([0]), target.fresh())
            # Whatever is pending belongs to this thread, as MLX's streams do, and another may decode.
            mx.eval(rows.logits, _first_step(head, rows))
        except (RuntimeError, ValueError, MemoryError) as error:
            raise _told(pack, error) from None
        details = {"device": "gpu" if gpu else "cpu", "activations": said(computed_in(model))}
        if kept.window is not None:
            details["window"] = str(kept.window)
        if kept.bits is not None:
            details["kv"] = f"{kept.bits} bits"
        if plain:
            details["plain"] = plain
        info = EngineInfo(
            pack=pack.name,
            backend="mlx",
            device=device_name(device),
            dtype=precision,
            quantisation=quantisation,
            tier="standard",
            vocab_size=rows.logits.shape[-1],
            context_limit=context,
            head_depth_limit=_depth_limit(head, context),
            recurrent=target.fresh().recurrent,
            plain_step_bytes=_step_bytes(model),
            weights_digest=pack.weights_digest,
            head_digest=pack.head_digest,
            libraries={name: metadata.version(name) for name in ("mlx", "mlx-lm")},
            details=details,
        )
        return MlxEngine(
            info,
            target,
            head,
            device,
            width=options.max_width,
            pipeline=options.pipeline is not False,
            carry=carry_armed(options.carry, options.max_width > 1),
        )


def _first_step(head: Head | None, rows: Rows) -> list[mx.array]:
    """What the head makes of one pair: it takes every weight to compute it."""
    if head is None or rows.hidden is None:
        return []
    return list(head.outputs(head.forward(mx.array([0]), rows.hidden, 1, PairCache())))


def _check_options(options: EngineOptions) -> None:
    if options.max_width < 1:
        raise BackendError(f"max_width must be at least 1, got {options.max_width}")
    if options.threads is not None:
        raise BackendError("MLX chooses its threads itself; leave --threads away")
    if options.tier not in ("auto", "standard"):
        raise BackendError(f"the mlx backend has the standard tier only, not {options.tier!r}")
    unknown = options.extra.keys() - set(OPTIONS)
    if unknown:
        raise BackendError(
            f"the mlx backend knows no option {sorted(unknown)[0]!r}; it has: {', '.join(OPTIONS)}"
        )


def _model(path: Path) -> tuple[Any, str, int]:
    """(mlx-lm's model, how its file holds the weights, the tokens it can look back on)."""
    if path.is_dir() and not list(path.glob("*.gguf")):
        model = folder_model(path)
        limit = text_config(read_config(path)).get("max_position_embeddings")
        bits = packed_bits(model)
        quantisation = said(computed_in(model)) if bits is None else f"MLX {bits} bits"
    else:
        with open_checkpoint(path) as checkpoint:
            model = gguf_model(checkpoint)
            limit, quantisation = checkpoint.config.context, checkpoint.quantisation
    return model, quantisation, limit if isinstance(limit, int) and limit > 1 else UNKNOWN_CONTEXT


def _context(pack: Pack, limit: int, options: EngineOptions) -> int:
    if pack.context is not None:
        limit = min(limit, pack.context)
    if options.context is None:
        return limit  # caches grow as they are filled: room costs nothing
    if not 2 <= options.context <= limit:
        raise BackendError(
            f"a context of {options.context} tokens is outside what {pack.name} can do (2 to {limit})"
        )
    return options.context


def _why_plain(pack: Pack, target: Target) -> str:
    """Why the pack's head is not used, if it has one: a sentence, or nothing."""
    if pack.head is None:
        return ""
    why = target.fresh().why_plain
    return f"{pack.name} decodes plain on MLX: {why}" if why else ""


def _depth_limit(head: Head | None, context: int) -> int:
    return 0 if head is None else min(head.contract.draft_depth_limit, context - 1)


def _step_bytes(model: Any) -> int:
    """Bytes of weights one plain step reads: of an embedding that is not also the output a row, of
    experts those that a token is sent to."""
    text = getattr(model, "language_model", model)
    args = arguments(model)
    experts = getattr(args, "num_experts", None) or getattr(args, "num_local_experts", None)
    chosen = getattr(args, "num_experts_per_tok", None)
    share = chosen / experts if experts and chosen else 1.0
    tied = "lm_head" not in text
    total = 0.0
    for path, value in tree_flatten(model.parameters()):
        if "embed_tokens." in path and not tied:
            continue
        total += value.nbytes * (share if ".switch_mlp." in path else 1.0)
    return int(total)


def _told(pack: Pack, error: Exception) -> BackendError | PackError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, MemoryError) or "alloc" in said.lower():
        return BackendError(
            f"{pack.name} does not fit into memory: {said}; try a smaller version of the model"
        )
    return PackError(
        f"{pack.name} cannot be computed by MLX: {said}; its files are damaged or do not fit"
    )
