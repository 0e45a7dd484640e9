"""mlx-lm's model and cache classes, without the rest of mlx-lm.

`import mlx_lm` imports transformers (and torch, where it is installed): seconds before the first
token. The model and cache modules need none of that, so they are imported under a package that has
not run its `__init__`; nothing of it is left behind, and a later `import mlx_lm` works as ever.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mtpx.errors import BackendError, PackError

REMAPPED = {"mistral": "llama", "qwen2_5_vl": "qwen2_vl", "iquestcoder": "llama"}
"""Model types that mlx-lm computes with another type's module (its `MODEL_REMAPPING`), of those
that are loaded here without its own loader."""


def light(name: str) -> ModuleType:
    """The module `mlx_lm.<name>`. Raises `ModuleNotFoundError` when there is none."""
    if "mlx_lm" in sys.modules:
        return importlib.import_module(f"mlx_lm.{name}")
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None:
        raise BackendError("mlx-lm is not installed (pip install mlx-lm)")
    sys.modules["mlx_lm"] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module(f"mlx_lm.{name}")
    finally:
        del sys.modules["mlx_lm"]


def has_model(model_type: str) -> bool:
    """Whether mlx-lm has a module for this model type. Imports nothing of it."""
    spec = importlib.util.find_spec("mlx_lm")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    name = REMAPPED.get(model_type, model_type)
    return _plain(name) and any(_model_in(Path(p) / "models" / f"{name}.py") for p in places)


def _model_in(module: Path) -> bool:
    """Whether this is a model's module, not one of layers that models share."""
    try:
        return re.search(r"\bModelArgs\b", module.read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _plain(name: str) -> bool:
    """Whether a name out of a file is one a module can have, and no path."""
    return bool(re.fullmatch(r"[A-Za-z0-9_.-]+", name)) and ".." not in name


def model_class(config: dict[str, Any]) -> tuple[Any, Any]:
    """(Model, ModelArgs) for this config.json. Raises `PackError` for a type mlx-lm has not."""
    kind = str(config.get("model_type") or "")
    if has_model(kind):
        module = light(f"models.{REMAPPED.get(kind, kind)}")
        return module.Model, module.ModelArgs
    raise PackError(f"mlx-lm has no model of type {kind!r}; it cannot be run on MLX")
