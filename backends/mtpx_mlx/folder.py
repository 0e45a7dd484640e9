"""A target out of a folder: mlx-lm's own format (packed weights), or Hugging Face's safetensors.

`config.json` and the tensors' names and shapes are checked before anything is computed; nothing from
the folder is executed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from mtpx.checkpoint.mapped import read_small
from mtpx.errors import PackError
from mtpx_mlx.models import light, model_class
from mtpx_mlx.quantised import quantise_where_packed

CONFIG_LIMIT = 16 * 2**20
INDEX_LIMIT = 256 * 2**20
"""Bytes; real ones have a few kilobytes, and a few megabytes."""

INDEX = "model.safetensors.index.json"

CONVERTED = ("mxfp4", "mxfp8", "compressed-tensors", "modelopt", "bitnet")
"""Foreign quantisations that mlx-lm's own loader turns into MLX's form, as far as it can. (It takes
GPTQ's files for AWQ's, which order a word's numbers differently: neither is left to it.)"""


def read_config(folder: Path) -> dict[str, Any]:
    """config.json. Raises `PackError` when it is absent or no JSON object with a model type."""
    path = folder / "config.json"
    if not path.is_file():
        raise PackError(f"{folder} has no config.json, so nothing says what its weights are for")
    try:
        config = msgspec.json.decode(read_small(path, CONFIG_LIMIT), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PackError(f"{path} cannot be used: {error}") from None
    if not isinstance(config.get("model_type"), str):
        raise PackError(f"{path} names no model_type")
    text = config.get("text_config")
    if isinstance(text, dict):
        config["text_config"] = _with_rope(text)
    return _with_rope(config)


def _with_rope(config: dict[str, Any]) -> dict[str, Any]:
    """The config with its rotary embedding also under the older names.

    transformers 5 writes `rope_parameters` only, which most of mlx-lm's models do not look at: they
    would rotate with their family's default base, and nothing would say so.
    """
    told = config.get("rope_parameters")
    if not isinstance(told, dict):
        return config
    older: dict[str, Any] = {}
    local = told.get("sliding_attention")
    if isinstance(local, dict) and "rope_theta" in local:
        older["rope_local_base_freq"] = local["rope_theta"]
    whole = told.get("full_attention", told)
    if isinstance(whole, dict):
        older |= {k: whole[k] for k in ("rope_theta", "partial_rotary_factor") if k in whole}
        if whole.get("rope_type", "default") != "default":
            older["rope_scaling"] = {"type": whole["rope_type"], **whole}
    kept = {key: value for key, value in config.items() if value is not None}
    return {**config, **older, **{key: kept[key] for key in older if key in kept}}


def folder_model(folder: Path) -> Any:
    """mlx-lm's model of a folder, weights in it, nothing computed yet.

    Raises `PackError` with what is missing, what does not fit, or who reads such weights.
    """
    config = read_config(folder)
    method = foreign_method(config)
    if method is not None and "quantization" not in config:
        return _converted(folder, method)
    model_type, arguments = model_class(config)
    try:
        model = model_type(arguments.from_dict(config))
    except Exception as error:  # mlx-lm's classes check nothing: whatever is wrong surfaces here
        raise PackError(
            f"{folder / 'config.json'} does not describe a {config['model_type']} model: "
            f"{type(error).__name__}: {error}"
        ) from None
    weights = read_weights(folder)
    if hasattr(model, "sanitize"):
        try:
            weights = model.sanitize(weights)
        except Exception as error:
            raise PackError(
                f"{folder}: its tensors are not those of a {config['model_type']} model "
                f"({type(error).__name__}: {error})"
            ) from None
    _check_declared(config, weights, folder)
    quantise_where_packed(model, weights, str(folder))
    fill(model, weights, str(folder))
    return model


def foreign_method(config: dict[str, Any]) -> str | None:
    """The quantisation a config declares in Hugging Face's way, or `None`."""
    declared = config.get("quantization_config")
    text = config.get("text_config")
    if declared is None and isinstance(text, dict):
        declared = text.get("quantization_config")
    if not isinstance(declared, dict):
        return None
    return str(declared.get("quant_method", "unnamed"))


def _converted(folder: Path, method: str) -> Any:
    said = (
        f"{folder}: weights quantised as {method!r} are made for CUDA kernels, as vLLM has them; no "
        "backend here computes with them. Use a version of the model in MLX's format, in 16 bits, or "
        "GGUF in Q4_0, Q4_1 or Q8_0"
    )
    if method not in CONVERTED:
        raise PackError(said)
    try:
        model, _ = light("utils").load_model(folder, lazy=True)
    except Exception as error:  # whatever does not fit surfaces somewhere inside
        raise PackError(f"{said} (mlx-lm says: {error})") from None
    return model


def read_weights(folder: Path) -> dict[str, mx.array]:
    """Every tensor of the folder's safetensors files, unread until it is used."""
    weights: dict[str, mx.array] = {}
    for path in _files(folder):
        try:
            loaded = mx.load(str(path))
        except (RuntimeError, ValueError) as error:
            raise PackError(f"{path} is damaged or no safetensors file: {error}") from None
        assert isinstance(loaded, dict)
        weights |= loaded
    return weights


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _files(folder: Path) -> list[Path]:
    path = folder / INDEX
    if not path.is_file():
        files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
        if not files:
            raise PackError(f"{folder} holds no .safetensors files")
        return files
    try:
        index = msgspec.json.decode(read_small(path, INDEX_LIMIT), type=_Index)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PackError(f"{path} cannot be used: {error}") from None
    names = sorted(set(index.weight_map.values()))
    missing = [n for n in names if Path(n).name != n or not (folder / n).is_file()]
    if missing or not names:
        raise PackError(
            f"{path} names {len(missing)} of {len(names)} files that are not in the folder, the "
            f"first is {missing[0] if missing else 'none at all'}; fetch them, or fetch it again"
        )
    return [folder / name for name in names]


def _check_declared(config: dict[str, Any], weights: dict[str, mx.array], folder: Path) -> None:
    packed = any(name.endswith(".scales") for name in weights)
    if packed and not isinstance(config.get("quantization"), dict):
        raise PackError(
            f"{folder}: the weights are packed in MLX's quantised form, but config.json declares no "
            "`quantization`; one of the two files is not this model's"
        )
    if not packed and config.get("quantization"):
        raise PackError(
            f"{folder}: config.json declares a quantization, but no weight is packed; one of the two "
            "files is not this model's"
        )


def fill(model: Any, weights: dict[str, mx.array], where: str) -> None:
    """Put the weights into the model. Raises `PackError` naming what is missing, extra or of another
    shape."""
    from mlx.utils import tree_flatten

    wanted = dict(tree_flatten(model.parameters()))
    missing = sorted(wanted.keys() - weights.keys())
    extra = sorted(weights.keys() - wanted.keys())
    if missing or extra:
        said = [
            f"{len(names)} {what}, the first is {names[0]}"
            for what, names in (("missing", missing), ("unknown to mlx-lm", extra))
            if names
        ]
        raise PackError(f"{where}: of {len(wanted)} tensors expected: {'; '.join(said)}")
    for name, value in wanted.items():
        if tuple(weights[name].shape) != tuple(value.shape):
            raise PackError(
                f"{where}: {name} is {'×'.join(map(str, weights[name].shape))}, config.json says "
                f"{'×'.join(map(str, value.shape))}"
            )
    model.load_weights(list(weights.items()))
