"""What the entry point names: can MLX run here, and load a pack on a device."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from mtpx.backend import EngineOptions, Probe
from mtpx.errors import BackendError
from mtpx_mlx.models import has_model

if TYPE_CHECKING:
    from mtpx.packs import Pack
    from mtpx_mlx.engine import MlxEngine

INSTALL = "pip install mlx mlx-lm; on Linux: pip install 'mlx[cpu]' mlx-lm"


class MlxBackend:
    """MLX on Metal, or on a CPU with MLX's CPU build."""

    name = "mlx"

    def probe(self, device: str = "auto") -> Probe:
        from mtpx_mlx.devices import choose_device, device_name

        try:
            require_mlx()
            return Probe(True, device=device_name(choose_device(device)))
        except BackendError as error:
            return Probe(False, reason=str(error))

    def reads(self, model_type: str) -> bool:
        """Whether mlx-lm has a model for this architecture (config.json's `model_type`)."""
        return importlib.util.find_spec("mlx_lm") is not None and has_model(model_type)

    def load(self, pack: Pack, options: EngineOptions) -> MlxEngine:
        """Raises `BackendError` for what this device cannot do, `PackError` for what it cannot read."""
        require_mlx()
        from mtpx_mlx.load import load_engine

        return load_engine(pack, options)


def require_mlx() -> None:
    """Raise `BackendError` unless mlx and mlx-lm are installed and mlx loads."""
    for module, distribution in (("mlx", "mlx"), ("mlx_lm", "mlx-lm")):
        if importlib.util.find_spec(module) is None:
            raise BackendError(f"{distribution} is not installed ({INSTALL})")
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackendError(
            f"mlx is installed without a build that runs here: {first}. It runs on Apple silicon "
            "(macOS 14 or newer), and on Linux with its CPU build (pip install 'mlx[cpu]')"
        ) from None
