"""Weights without a manifest: what they are good for, from headers only."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mtpx.backends import readers
from mtpx.checkpoint import Headers, open_checkpoint, read_config, read_gguf, read_headers
from mtpx.errors import MtpxError, PackError
from mtpx.heads import (
    HeadContract,
    Recognised,
    announced_layers,
    check_tensors,
    expected_tensors,
    experts_layout,
    family_of,
    family_of_gguf,
    logical_shapes,
    looks_like_a_head,
    recognise,
    require_wired,
    sizes_from_config,
)

if TYPE_CHECKING:
    from mtpx.packs import Entry

Kind = Literal["verified", "unverified", "plain only", "refused"]
"""What weights are good for: they run as promised; they run with their head and nobody promised
anything; they run without a head; they do not run."""


@dataclass(frozen=True, slots=True)
class Class:
    """What a pack or bare weights are good for, and the sentence that says why."""

    kind: Kind
    why: str
    head: str = ""
    """Where the head is and how it is wired, if one was found."""


def classify(path: Path) -> Class:
    """What a .gguf file or a folder of weights is good for. Never raises `PackError`: it is refused,
    with the reason."""
    try:
        headers = _folder_headers(path)
        if headers is None:
            return _gguf(path)
        found = recognise(headers.config, headers.tensors)
        if found is None:
            return _without_a_head(path, headers)
        head = (
            f"{len(found.names)} tensors under {_prefix(found.contract)}: {found.contract.wiring()}"
        )
        try:
            require_wired(found.contract)
            check_head(headers, found)
        except PackError as error:
            return Class("refused", str(error), head)
    except MtpxError as error:
        return Class("refused", str(error))
    there = " or ".join(found.family.runs_on)
    return Class(
        "unverified",
        f"it holds the MTP head of the {found.contract.family} family, complete and in the trunk's "
        f"shapes; nobody has measured this checkpoint. It runs on the {there} backend",
        head,
    )


def head_of(folder: Path) -> HeadContract | None:
    """The contract of the head that lies among a folder's weights, if its family is wired. `None` too
    where the headers cannot be read: opening the weights says why."""
    try:
        headers = _folder_headers(folder)
    except PackError:
        return None
    found = recognise(headers.config, headers.tensors) if headers is not None else None
    if found is None or not found.family.wired or found.contract.layers != 1:
        return None
    return found.contract


def model_types(found: Entry | Path) -> tuple[str, ...]:
    """What a pack's model is called: by its manifest, or by the config.json of bare weights; nothing
    where neither tells."""
    if not isinstance(found, Path):
        return (found.manifest.family,)
    try:
        config = read_config(found)
    except PackError:
        return ()
    return Headers(found, config, {}).model_types


def check_head(headers: Headers, found: Recognised) -> None:
    """Raise `PackError` unless the head's tensors are what its contract needs on this trunk: the
    message lists what is missing, what is extra and what has another shape."""
    sizes = sizes_from_config(headers.config, str(headers.folder / "config.json"))
    quantisation = headers.config.get("quantization")
    shapes = logical_shapes(
        headers.tensors, found.names, quantisation if isinstance(quantisation, dict) else {}
    )
    check_tensors(shapes, expected_tensors(found.contract, sizes, experts_layout(found.names)))


def _folder_headers(path: Path) -> Headers | None:
    """A Hugging Face or MLX folder's headers; `None` for a GGUF file, or a folder of one."""
    if not path.is_dir() or not (path / "config.json").is_file():
        return None
    if not any(p.suffix == ".safetensors" for p in path.iterdir()):
        return None
    return read_headers(path)


def _without_a_head(path: Path, headers: Headers) -> Class:
    family = family_of(headers.config)
    why = "bare weights: no manifest, no MTP head"
    if family is not None and announced_layers(headers.config):
        why = (
            "config.json announces an MTP head, but the files do not hold it (converters leave it "
            "out); a folder that kept it is needed for drafts"
        )
    elif looks_like_a_head(headers.tensors):
        n = len(looks_like_a_head(headers.tensors))
        why = (
            f"the checkpoint holds an MTP head ({n} tensors), but no manifest says how it is wired"
        )
    try:
        with open_checkpoint(path):
            return Class("plain only", why)
    except PackError as refusal:
        there = sorted({*(family.runs_on if family else ()), *readers(headers.model_types)})
        if there:
            return Class("plain only", f"{why}; it runs on the {' or '.join(there)} backend")
        known = f"; {family.models}: {family.known}" if family else ""
        raise PackError(f"{refusal}{known}") from None


def _gguf(path: Path) -> Class:
    try:
        with open_checkpoint(path) as checkpoint:
            heads = looks_like_a_head(checkpoint.tensors)
    except PackError as refusal:
        file = path if path.is_file() else next(iter(path.glob("*.gguf")), None)
        if file is None:
            raise
        head, known = _head_in_gguf(file)
        return Class("refused", f"{refusal}{known}", head)
    if heads:
        return Class(
            "plain only",
            f"the file holds an MTP head ({len(heads)} tensors), but no manifest says how it is wired",
        )
    return Class("plain only", "bare weights: no manifest, no MTP head")


def _head_in_gguf(file: Path) -> tuple[str, str]:
    """(Where the head of a GGUF file that is not computed lies and whose it is, what else is known of it);
    two empty texts where the file holds none."""
    seen: list[tuple[str, list[str]]] = []

    def look(told: dict[str, Any], names: list[str]) -> None:
        seen.append((str(told.get("general.architecture")), looks_like_a_head(names)))

    with suppress(PackError):
        read_gguf(file, look)
    arch, names = seen[0] if seen else ("", [])
    if not names:
        return "", ""
    head = f"{len(names)} tensors under {names[0].partition('nextn.')[0]}nextn."
    family = family_of_gguf(arch)
    if family is None:
        return head, ""
    known = f"; {family.models}: {family.known}"
    if family.wired:
        known = (
            "; its MTP head is read out of a folder of safetensors, from which it drafts on the "
            f"{' or '.join(family.runs_on)} backend"
        )
    return f"{head}, of the {family.contract.family} family", known


def _prefix(contract: HeadContract) -> str:
    return contract.prefix.replace("{i}", "0").replace("{n}", "N")
