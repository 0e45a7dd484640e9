"""A pack's manifest: `pack.toml`, read and checked.

A manifest is data from anywhere. Whatever the bytes are, reading them gives a `Manifest` that can be
used or a `PackError` that says why not; nothing in one may name a place outside its own folders or a
kind of file that could be executed when loaded.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from mtpx.errors import MtpxError, PackError
from mtpx.heads import FAR_DEPTH, HeadContract, declared
from mtpx.precision import Precision
from mtpx.sampling import Sampling

SCHEMA = 1

MANIFEST = "pack.toml"

MANIFEST_BYTES = 1 << 20
"""A manifest is a page of text; what is larger is something else under its name."""

SUFFIXES = (".gguf", ".safetensors", ".json", ".jinja", ".txt", ".model")
"""Files a pack may hold: weights without code in them, and text. Never pickle."""


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a manifest: fixed once read, and a key nobody knows is refused."""


class PyPISource(Strict, frozen=True, tag="pypi", tag_field="kind"):
    """A wheel on a package index, a container of files only: nothing in it is installed or run.

    `size` in bytes. `url`: where the wheel lies, for an index that no longer lists it.
    """

    project: str
    version: str
    wheel: str
    sha256: str
    size: int
    url: str | None = None


class HubSource(Strict, frozen=True, tag="hub", tag_field="kind"):
    """A repository on the Hugging Face Hub at a revision."""

    repo: str
    revision: str


class LocalSource(Strict, frozen=True, tag="local", tag_field="kind"):
    """The files lie in the pack's own folder, or in `folder` under it."""

    folder: str = "."


Source = PyPISource | HubSource | LocalSource


class PackFile(Strict, frozen=True):
    """A file of the weights: its `name` here, its `path` inside the source, `size` in bytes."""

    name: str
    sha256: str
    size: int
    path: str = ""

    @property
    def member(self) -> str:
        return self.path or self.name


class Head(Strict, frozen=True):
    """The head's safetensors file in the pack's own folder, and how it is wired."""

    file: str
    sha256: str
    contract: HeadContract
    size: int | None = None


class Manifest(Strict, frozen=True):
    """What a pack is and where it comes from.

    `family` is the trunk's architecture; `context` the limit in tokens; `sources` are in order of
    preference; `sampling` the pack's defaults; `depth` the drafts a round that were measured best for
    the pack, 0 where plain decoding was, `None` where nobody measured; `prior_costs[k]` what a round
    at depth k is taken to cost before it was measured, in plain rounds; `precisions` those whose text
    was measured to be as good as float32's, which `--precision auto` may pick from; `evidence` what was measured
    where, free-form.
    """

    schema: int
    name: str
    description: str
    license: str
    family: str
    context: int
    quantisation: str
    files: list[PackFile]
    sources: list[Source]
    head: Head | None = None
    sampling: Sampling = Sampling()
    depth: int | None = None
    prior_costs: list[float] = []
    precisions: list[Precision] = []
    evidence: dict[str, Any] = {}

    @property
    def size(self) -> int:
        """Bytes of weights on disk."""
        return sum(file.size for file in self.files)


def read(path: Path) -> Manifest:
    """The manifest in a file. Raises `PackError` when it cannot be read or used."""
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES + 1)
    except OSError as error:
        raise PackError(f"cannot read {path}: {error.strerror or error}") from None
    return parse(data, str(path))


def parse(data: bytes, where: str = MANIFEST) -> Manifest:
    """The manifest these bytes are; `where` names them in messages. Raises `PackError`."""
    if len(data) > MANIFEST_BYTES:
        raise PackError(f"{where}: a manifest is at most {MANIFEST_BYTES} bytes")
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise PackError(f"{where}: not UTF-8 text (byte {error.start})") from None
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise PackError(f"{where}: not TOML: {error}") from None
    try:
        manifest = _build(table)
        _check(manifest)
    except MtpxError as error:
        raise PackError(f"{where}: {error}") from None
    except (msgspec.ValidationError, RecursionError) as error:
        raise PackError(f"{where}: {error}") from None
    return manifest


def _build(table: dict[str, Any]) -> Manifest:
    schema = table.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise PackError(f"needs `schema = {SCHEMA}`, found {schema!r}")
    if schema > SCHEMA:
        raise PackError(
            f"written for manifest schema {schema}; this mtpx reads up to {SCHEMA}, a newer one is "
            "needed"
        )
    _refuse_unknown(table, Manifest, "")
    sampling = table.get("sampling")
    if isinstance(sampling, dict):
        # `Sampling` itself is lenient, since traces of a newer mtpx are read too.
        _refuse_unknown(sampling, Sampling, "[sampling] ")
    head = table.get("head")
    if isinstance(head, dict) and isinstance(head.get("contract"), dict):
        contract = declared(head["contract"])
        table = {**table, "head": {**head, "contract": msgspec.to_builtins(contract)}}
    return msgspec.convert(table, Manifest)


def _refuse_unknown(table: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    known = kind.__struct_fields__
    unknown = sorted(key for key in table if key not in known)
    if unknown:
        raise PackError(
            f"{where}unknown key(s) {', '.join(map(repr, unknown))}; "
            f"known are {', '.join(sorted(known))}"
        )


def _check(manifest: Manifest) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", manifest.name) or ".." in manifest.name:
        raise PackError(
            f"the name {manifest.name!r} cannot be used: up to 64 of a-z, 0-9, '.', '_' and '-', "
            "beginning with a letter or digit"
        )
    for field in ("description", "license", "family", "quantisation"):
        text = getattr(manifest, field)
        if not text.strip() or not text.isprintable():
            raise PackError(f"`{field}` must be a line of text, found {text!r}")
    if not 1 <= manifest.context < 2**31:
        raise PackError(f"`context` must be a number of tokens from 1, found {manifest.context}")
    if not manifest.sources:
        raise PackError("`sources` is empty; say where the files come from")
    _check_depth(manifest)
    for cost in manifest.prior_costs:
        if not (math.isfinite(cost) and cost > 0):
            raise PackError(f"`prior_costs` must be above 0, found {cost:g}")
    _check_files(manifest)
    for source in manifest.sources:
        _check_source(source)
    if manifest.head:
        _check_file_name("the head's file", manifest.head.file, (".safetensors",))
        _check_digest("the head", manifest.head.sha256)
        if manifest.head.size is not None:
            _check_size("the head", manifest.head.size)


def _check_depth(manifest: Manifest) -> None:
    if manifest.depth is None:
        return
    if not 0 <= manifest.depth <= FAR_DEPTH:
        raise PackError(
            f"`depth` must be a number of drafts a round, 0 to {FAR_DEPTH}, found {manifest.depth}"
        )
    limit = manifest.head.contract.draft_depth_limit if manifest.head else 0
    if manifest.depth > limit:
        why = f"its head drafts {limit} at most" if manifest.head else "it has no head"
        raise PackError(f"`depth` recommends {manifest.depth} drafts a round, but {why}")


def _check_files(manifest: Manifest) -> None:
    names = [file.name for file in manifest.files]
    # Some file systems fold case: two names that differ in case only would be one file there.
    if len({name.casefold() for name in names}) != len(names):
        raise PackError(f"`files` names a file twice: {', '.join(names)}")
    for file in manifest.files:
        _check_file_name("a file", file.name, SUFFIXES)
        _check_inside(f"the path of {file.name}", file.member)
        _check_digest(file.name, file.sha256)
        _check_size(file.name, file.size)
    weights_name(names)


def weights_name(names: list[str]) -> str:
    """Which of a folder's files the weights are: the one `.gguf`, or "." for the folder when it holds
    `config.json` and safetensors. Raises `PackError` when it is neither, or both."""
    gguf = [name for name in names if name.endswith(".gguf")]
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if len(gguf) == 1 and not safetensors:
        return gguf[0]
    if safetensors and not gguf and "config.json" in names:
        return "."
    found = ", ".join(sorted([*gguf, *safetensors])) or "none"
    raise PackError(
        "needs exactly one .gguf file, or config.json with .safetensors beside it; weights found: "
        + found
    )


def _check_source(source: Source) -> None:
    if isinstance(source, PyPISource):
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", source.project):
            raise PackError(f"{source.project!r} is not the name of a project on a package index")
        if not re.fullmatch(r"[0-9][A-Za-z0-9.!+_-]*", source.version):
            raise PackError(f"{source.version!r} is not a version")
        _check_file_name("the wheel", source.wheel, (".whl",))
        _check_digest(source.wheel, source.sha256)
        _check_size(source.wheel, source.size)
        if source.url is not None and not re.fullmatch(r"https?://[!-~]+", source.url):
            raise PackError(f"the wheel's url must begin with https://, found {source.url!r}")
    elif isinstance(source, HubSource):
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", source.repo, re.ASCII) or ".." in source.repo:
            raise PackError(f"{source.repo!r} is not a repository (owner/name)")
        if not re.fullmatch(r"[\w./-]+", source.revision, re.ASCII):
            raise PackError(f"{source.revision!r} is not a revision")
    elif source.folder != ".":
        _check_inside("the local source's folder", source.folder)


def _check_inside(what: str, path: str) -> None:
    """Relative, POSIX, without a way up, on every platform a pack may be read on."""
    parts = PurePosixPath(path).parts
    escapes = (
        not parts
        or PurePosixPath(path).is_absolute()
        or bool(PureWindowsPath(path).drive)
        or ".." in parts
        or "\\" in path
        or ":" in path
        or not path.isprintable()
    )
    if escapes:
        raise PackError(f"{what} must stay inside its folder, found {path!r}")


def _check_file_name(what: str, name: str, suffixes: tuple[str, ...]) -> None:
    _check_inside(what, name)
    if "/" in name or name.startswith(".") or len(name.encode()) > 200:
        raise PackError(f"{what} must be a plain file name, found {name!r}")
    if not name.endswith(suffixes):
        raise PackError(
            f"{what} must end in {', '.join(suffixes)}, found {name!r}; a pack holds no code"
        )


def _check_digest(what: str, digest: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise PackError(f"the sha256 of {what} must be 64 hexadecimal digits, found {digest!r}")


def _check_size(what: str, size: int) -> None:
    if not 1 <= size < 2**50:
        raise PackError(f"the size of {what} must be a number of bytes from 1, found {size}")
