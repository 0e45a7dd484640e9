"""The result: a pack folder with the head, its contract and what it was trained on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mtpx import digests, manifest
from mtpx.digests import write_atomically
from mtpx.errors import TrainingError
from mtpx.heads import declared

if TYPE_CHECKING:
    import torch

    from mtpx.checkpoint import Checkpoint
    from mtpx.packs import Pack

HEAD = "head.safetensors"


def save_head(folder: Path, weights: Mapping[str, torch.Tensor], ids: torch.Tensor) -> None:
    """head.safetensors: the weights, and the draft vocabulary as int32."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{HEAD}.partial"
    save_file({**weights, "mtp.draft_vocab": ids.int().cpu()}, partial)
    partial.replace(folder / HEAD)


def write_pack(
    folder: Path, pack: Pack, checkpoint: Checkpoint, evidence: Mapping[str, Any]
) -> Path:
    """pack.toml beside the head: the pack it was trained for, with this head. → its path.

    A pack that is fetched keeps its sources; weights of a folder or file are linked (or copied, where
    links cannot be) into `folder`.
    """
    head = folder / HEAD
    contract = msgspec.to_builtins(declared({"family": "llama-mtp"}))
    table: dict[str, Any]
    if pack.manifest is not None and not _local(pack.manifest):
        table = msgspec.to_builtins(pack.manifest)
        for name in ("head", "evidence", "depth", "prior_costs"):
            table.pop(name, None)
    else:
        table = _described(folder, pack, checkpoint)
    table["head"] = {
        "file": HEAD,
        "sha256": digests.sha256(head),
        "size": head.stat().st_size,
        "contract": contract,
    }
    table["evidence"] = dict(evidence)
    text = toml(table)
    manifest.parse(text.encode(), str(folder / manifest.MANIFEST))
    path = folder / manifest.MANIFEST
    write_atomically(path, text.encode())
    path.chmod(0o644)
    return path


def check_out(folder: Path, pack: Pack) -> None:
    """Raise `TrainingError` unless a pack can be written to `folder`: new, empty, or of an earlier run."""
    try:
        if folder.resolve() == pack.folder.resolve():
            raise TrainingError(
                f"{folder} is the pack's own folder; give --out another, so that the pack stays whole"
            )
        held = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise TrainingError(f"cannot write to {folder}: {error.strerror or error}") from None
    if held and manifest.MANIFEST not in held:
        raise TrainingError(
            f"{folder} is not empty and holds no pack ({held[0]}); give --out a new folder"
        )


def _local(found: manifest.Manifest) -> bool:
    return any(isinstance(source, manifest.LocalSource) for source in found.sources)


def _described(folder: Path, pack: Pack, checkpoint: Checkpoint) -> dict[str, Any]:
    """A manifest for weights that lie on this machine."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in pack.name.lower())
    known = pack.manifest
    files = _weights(pack)
    for file in files:
        _link(file, folder / file.name)
    table: dict[str, Any] = {
        "schema": manifest.SCHEMA,
        "name": (known.name if known else name.strip("-._")[:64].replace("..", ".")) or "pack",
        "description": known.description
        if known
        else f"{pack.name} with an MTP head trained for it",
        "license": known.license if known else "as the weights'",
        "family": checkpoint.config.family,
        "context": pack.context or checkpoint.config.context,
        "quantisation": checkpoint.quantisation,
        "sources": [{"kind": "local"}],
        "files": [
            {"name": f.name, "sha256": digests.sha256(f), "size": f.stat().st_size} for f in files
        ],
    }
    if known:
        table["sampling"] = msgspec.to_builtins(known.sampling)
    return table


def _weights(pack: Pack) -> list[Path]:
    if pack.weights.is_file():
        beside = pack.weights.parent / "tokenizer.json"
        return [pack.weights, *([beside] if beside.exists() else [])]
    wanted = (".safetensors", ".json", ".jinja")
    return sorted(p for p in pack.weights.iterdir() if p.is_file() and p.suffix in wanted)


def _link(file: Path, to: Path) -> None:
    if to.exists() and to.samefile(file):
        return
    to.unlink(missing_ok=True)
    with suppress(OSError):
        os.link(file, to)
        return
    shutil.copyfile(file, to)


def toml(table: Mapping[str, Any]) -> str:
    """A table of plain values as TOML text; `None` is left out."""
    lines: list[str] = []
    _emit(table, (), lines)
    return "\n".join(lines).strip() + "\n"


def _emit(table: Mapping[str, Any], path: Sequence[str], lines: list[str]) -> None:
    deeper = []
    for key, value in table.items():
        if isinstance(value, Mapping) or _tables(value):
            deeper.append((key, value))
        elif value is not None:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in deeper:
        name = ".".join(map(_key, (*path, key)))
        for item in value if isinstance(value, list) else [value]:
            lines.append(f"\n[[{name}]]" if isinstance(value, list) else f"\n[{name}]")
            _emit(item, (*path, key), lines)


def _tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key)
    return key if bare else _value(key)


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    # JSON's strings, numbers, true and false are TOML's, but for U+007F, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
