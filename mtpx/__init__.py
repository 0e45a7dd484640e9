"""Run models that carry multi-token-prediction heads, and measure whether it pays.

A program needs `mtpx.load`; everything else is in the modules. See `mtpx.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtpx.answer import Generation
    from mtpx.api import Model, TraceTo, load
    from mtpx.errors import MtpxError
    from mtpx.generation import Stream
    from mtpx.sampling import Sampling

__all__ = ["Generation", "Model", "MtpxError", "Sampling", "Stream", "TraceTo", "load"]

_HOMES = {
    "Generation": "mtpx.answer",
    "Model": "mtpx.api",
    "MtpxError": "mtpx.errors",
    "Sampling": "mtpx.sampling",
    "Stream": "mtpx.generation",
    "TraceTo": "mtpx.api",
    "load": "mtpx.api",
}


def __getattr__(name: str) -> Any:
    # Imported when first used: `mtpx --help` must not wait for numpy.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mtpx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
