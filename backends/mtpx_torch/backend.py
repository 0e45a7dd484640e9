"""What the entry point names: can torch run here, and load a pack on a device."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING

from mtpx.backend import COMPILE, EngineInfo, EngineOptions, Probe
from mtpx.carry import carry_armed, carry_state
from mtpx.errors import BackendError, PackError
from mtpx.heads import require_wired, runs_on
from mtpx.precision import Tier, choose_precision, choose_tier
from mtpx_torch.compiler import lacking

if TYPE_CHECKING:
    import torch

    from mtpx.checkpoint import Checkpoint
    from mtpx.packs import Pack
    from mtpx_torch.engine import TorchEngine
    from mtpx_torch.head import Head
    from mtpx_torch.kept import MadeFor
    from mtpx_torch.recipe import Recipe
    from mtpx_torch.trunk import Trunk

DEFAULT_CONTEXT = 8192
"""Room made for tokens unless told otherwise: on a GPU the buffers are real memory from the start."""


class TorchBackend:
    """torch on a CPU or a CUDA device."""

    name = "torch"

    def probe(self, device: str = "auto") -> Probe:
        if importlib.util.find_spec("torch") is None:
            return Probe(False, reason="torch is not installed (pip install torch)")
        try:
            found = _device(device)
            free, total = _device_memory(found)
        except BackendError as error:
            return Probe(False, reason=str(error))
        return Probe(
            True,
            device=_device_name(found),
            memory=total,
            memory_free=free,
            lacks=lacking(found.type),
        )

    def load(self, pack: Pack, options: EngineOptions) -> TorchEngine:
        """Raises `BackendError` for what this device cannot do, `PackError` for what it cannot read."""
        if importlib.util.find_spec("torch") is None:
            raise BackendError("torch is not installed (pip install torch)")
        import torch

        from mtpx.checkpoint import open_checkpoint
        from mtpx_torch.compiling import Compiling
        from mtpx_torch.engine import TorchEngine
        from mtpx_torch.kept import MadeFor
        from mtpx_torch.tier import tier_of
        from mtpx_torch.trunk import load_trunk

        _check_options(options)
        device = _device(options.device)
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        with torch.inference_mode(), open_checkpoint(pack.weights) as checkpoint:
            context = _context(pack, checkpoint, options)
            recipe = _recipe(pack, checkpoint, device, options)
            try:
                trunk = load_trunk(checkpoint, recipe, context=context, device=device)
                made_for = partial(MadeFor.here, pack, recipe, context=context)
                fixed = made_for(tier="row-invariant", bucket=trunk.bucket)
                compiling = _kept(fixed, options) or (
                    options.compile == "now" and not lacking(device.type)
                )
                tier = tier_of(options.tier, trunk, pack, compiling=compiling)
                head = _head(pack, checkpoint, trunk, recipe)
                info = _info(pack, checkpoint, trunk, head, recipe, tier, context)
                if head is not None:
                    info.details["carry"] = carry_state(options.carry, options.max_width > 1)
                pipeline = options.pipeline
                engine = TorchEngine(
                    info,
                    trunk,
                    head,
                    width=options.max_width,
                    pipeline=device.type == "cuda" if pipeline is None else pipeline,
                    carry=carry_armed(options.carry, options.max_width > 1),
                )
                if options.max_width == 1:
                    here = made_for(tier=tier, bucket=trunk.bucket)
                    engine.compiling = Compiling(engine, pack, options, here)
                    engine.compiling.begin(lacking(device.type))
                    info.details["compile"] = engine.compiling.state
                return engine
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise BackendError(
                    f"{pack.name} does not fit into the memory of {_device_name(device)}: "
                    f"{str(error).splitlines()[0]}; try a smaller --context"
                ) from None
            except RuntimeError as error:
                if "alloc" not in str(error):
                    raise
                raise BackendError(
                    f"{pack.name} does not fit into the memory of {_device_name(device)} with room "
                    f"for {context} tokens; try a smaller --context"
                ) from None


def _check_options(options: EngineOptions) -> None:
    if options.max_width < 1:
        raise BackendError(f"max_width must be at least 1, got {options.max_width}")
    if options.threads is not None and not 1 <= options.threads <= 1024:
        raise BackendError(f"threads must be from 1 to 1024, got {options.threads}")
    choose_tier(options.tier, free=False)
    unknown = options.extra.keys() - {"product"}
    if unknown:
        raise BackendError(
            f"the torch backend knows no option {sorted(unknown)[0]!r}; it has: product"
        )
    if options.compile not in COMPILE:
        raise BackendError(f"compile is {', '.join(COMPILE)}, not {options.compile!r}")
    if options.compile == "now" and options.max_width > 1:
        raise BackendError("what is compiled serves one sequence at a time; leave compile=now away")


def _kept(made_for: MadeFor, options: EngineOptions) -> bool:
    """Whether graphs are there and wanted."""
    from mtpx_torch.kept import is_complete

    return options.compile != "off" and options.max_width == 1 and is_complete(made_for.folder)


def _device(asked: str) -> torch.device:
    import torch

    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise BackendError(
            f"{asked!r} is no device; the torch backend runs on cpu, cuda or cuda:N"
        ) from None
    if device.type not in ("cpu", "cuda"):
        raise BackendError(f"the torch backend runs on cpu or cuda, not on {asked}")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise BackendError("there is no CUDA device here, or this torch is built without CUDA")
        if (device.index or 0) >= count:
            raise BackendError(f"there is no {asked} here; CUDA devices found: {count}")
    return device


def _device_name(device: torch.device) -> str:
    import torch

    from mtpx.hardware import cpu_name

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name()


def _device_memory(device: torch.device) -> tuple[int, int] | tuple[None, None]:
    """(free, total) bytes of a GPU; what an integrated one shares with the processor counts too."""
    import torch

    if device.type != "cuda":
        return None, None
    try:
        return torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        raise BackendError(f"the CUDA device does not answer: {error}") from None


def _recipe(
    pack: Pack, checkpoint: Checkpoint, device: torch.device, options: EngineOptions
) -> Recipe:
    from mtpx_torch.fastest import fastest
    from mtpx_torch.recipe import make_recipe, reasons

    matrices = {t.kind for t in checkpoint.tensors.values() if len(t.shape) > 1}
    where = f"{pack.name} on {device.type} ({_device_name(device)})"
    able = reasons(device, matrices)
    product = options.extra.get("product", "auto")
    if options.precision == "auto":
        good = pack.manifest.precisions if pack.manifest else []
        floats = ("float32", "bfloat16")  # what a product of one's own choice leaves
        candidates = [p for p in good if not able[p] and (product == "auto" or p in floats)]
        precision = fastest(pack, checkpoint, device, candidates or ["float32"])
    else:
        precision = choose_precision(options.precision, able, where)
    try:
        return make_recipe(precision, device, product)
    except ValueError as error:
        raise BackendError(str(error)) from None


def _context(pack: Pack, checkpoint: Checkpoint, options: EngineOptions) -> int:
    limit = checkpoint.config.context
    if pack.context is not None:
        limit = min(limit, pack.context)
    if options.context is None:
        return min(limit, DEFAULT_CONTEXT)
    if not 2 <= options.context <= limit:
        raise BackendError(
            f"a context of {options.context} tokens is outside what {pack.name} can do (2 to {limit})"
        )
    return options.context


def _head(pack: Pack, checkpoint: Checkpoint, trunk: Trunk, recipe: Recipe) -> Head | None:
    from mtpx.checkpoint import read_safetensors
    from mtpx_torch.head import load_head

    if pack.contract is None or pack.head is None:
        return None
    if pack.manifest is None and not runs_on(pack.contract, "torch"):
        return None  # nobody asked for this head: the folder happens to hold it
    require_wired(pack.contract, "torch")
    tensors, _ = read_safetensors(pack.head)
    if not tensors:
        raise PackError(f"{pack.head} holds no tensors")
    return load_head(pack.contract, tensors, checkpoint, trunk, recipe)


def _info(
    pack: Pack,
    checkpoint: Checkpoint,
    trunk: Trunk,
    head: Head | None,
    recipe: Recipe,
    tier: Tier,
    context: int,
) -> EngineInfo:
    import torch

    config = trunk.config
    limit = 0
    if head is not None:
        limit = min(head.contract.draft_depth_limit, context - 1)
    return EngineInfo(
        pack=pack.name,
        backend="torch",
        device=_device_name(trunk.device),
        dtype=recipe.precision,
        quantisation=checkpoint.quantisation,
        tier=tier,
        vocab_size=config.vocab,
        context_limit=context,
        head_depth_limit=limit,
        recurrent=False,
        plain_step_bytes=trunk.nbytes,
        weights_digest=pack.weights_digest,
        head_digest=pack.head_digest,
        libraries={"torch": str(torch.__version__)},
        details={
            "device": str(trunk.device),
            "threads": str(torch.get_num_threads()),
            "product": recipe.product,
        },
    )
