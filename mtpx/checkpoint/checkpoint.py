"""Open a checkpoint, whatever file it is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mtpx.checkpoint.config import TargetConfig
from mtpx.checkpoint.config_gguf import check_architecture, config_from_gguf
from mtpx.checkpoint.config_json import config_from_folder
from mtpx.checkpoint.gguf import read_gguf
from mtpx.checkpoint.layout import canonical_name, check_gguf_names, check_tensors, is_permuted
from mtpx.checkpoint.mapped import reason
from mtpx.checkpoint.safetensors import read_safetensors
from mtpx.checkpoint.shards import INDEX, shards
from mtpx.checkpoint.tensor import Kind, Tensor
from mtpx.errors import PackError


@dataclass(slots=True)
class Checkpoint:
    """Weights mapped into memory, under canonical Hugging Face names, and what they are for.

    `files` are the mapped files. `metadata` is GGUF's own (numbers, strings, lists of strings,
    numpy arrays), or the safetensors files' merged. `tensors` may also hold a head's tensors,
    under the names their file gives them.
    """

    config: TargetConfig
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, Any]
    files: tuple[Path, ...] = field(default=())

    @property
    def quantisation(self) -> str:
        """The kind most of the matrices' bytes are in: "Q4_1", "BF16", ..."""
        count: Counter[Kind] = Counter()
        for tensor in self.tensors.values():
            if len(tensor.shape) > 1:
                count[tensor.kind] += tensor.nbytes
        return count.most_common(1)[0][0]

    def close(self) -> None:
        """Let go of the files. A view somebody still holds keeps its file mapped, and stays valid."""
        self.tensors = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_checkpoint(path: Path) -> Checkpoint:
    """Map a checkpoint: a .gguf file, a folder with one, or a folder with config.json and
    *.safetensors (one file, or several with model.safetensors.index.json).

    Nothing is copied and nothing from the files is executed. Raises `PackError` when there is no
    checkpoint at `path`, or it is damaged or not supported.
    """
    path = Path(path)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise PackError(
                f"{path} is not a checkpoint: give a .gguf file, or the folder that holds "
                "config.json and the .safetensors files"
            )
        return _open_gguf(path)
    if not path.is_dir():
        raise PackError(f"there is no checkpoint at {path}")
    try:
        names = sorted(p.name for p in path.iterdir())
    except OSError as error:
        raise PackError(f"cannot look into {path}: {reason(error)}") from error
    if "config.json" in names and any(n.endswith(".safetensors") for n in names):
        return _open_folder(path, names)
    ggufs = [n for n in names if n.lower().endswith(".gguf")]
    if len(ggufs) == 1:
        return _open_gguf(path / ggufs[0])
    if ggufs:
        raise PackError(
            f"{path} holds {len(ggufs)} GGUF files; name one of them: {', '.join(ggufs)}"
        )
    if any(n.endswith((".bin", ".pt", ".pth")) for n in names):
        raise PackError(
            f"{path} holds pickled weights only, which can run code and are never opened; "
            "convert them to safetensors"
        )
    raise PackError(
        f"{path} holds no checkpoint: neither config.json with .safetensors files nor a .gguf file"
    )


def _open_gguf(path: Path) -> Checkpoint:
    def accept(told: dict[str, Any], names: list[str]) -> None:
        # First of all: of a model that is not computed no other quantisation is worth looking for.
        if "general.architecture" in told:
            check_architecture(told, str(path))

    file = read_gguf(path, accept)
    arch = str(file.metadata.get("general.architecture", ""))
    tensors: dict[str, Tensor] = {}
    for stored in file.tensors.values():
        name = canonical_name(stored.name)
        if name in tensors:
            raise PackError(f"{path} holds {name} twice; it is damaged")
        tensors[name] = replace(stored, name=name, permuted=is_permuted(arch, name))
    config = config_from_gguf(file.metadata, tensors, str(path))
    check_gguf_names(tensors, str(path))
    check_tensors(config, tensors, str(path))
    return Checkpoint(config, tensors, file.metadata, (path,))


def _open_folder(folder: Path, names: list[str]) -> Checkpoint:
    config = config_from_folder(folder)
    files = shards(folder, names)
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for file, wanted in files.items():
        held, said = read_safetensors(folder / file)
        absent = [name for name in wanted if name not in held]
        if absent:
            raise PackError(
                f"{folder / file} does not hold {absent[0]}, which {INDEX} places there"
            )
        twice = [name for name in held if name in tensors]
        if twice:
            raise PackError(f"{folder} holds {twice[0]} in two files")
        tensors |= held
        metadata |= said
    check_tensors(config, tensors, str(folder))
    return Checkpoint(config, tensors, metadata, tuple(folder / f for f in files))
