"""`mtpx pack`: the models on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.loading import fetching, progress
from mtpx_cli.names import complete_pack
from mtpx_cli.terminal import is_terminal, note, say

if TYPE_CHECKING:
    from mtpx.manifest import Manifest
    from mtpx.packs import Entry
    from mtpx.shelf import Stored

_pack = click.argument("pack", metavar="PACK|DIR", shell_complete=complete_pack)
_quiet = click.option("--quiet", "-q", is_flag=True, help="No progress and no remarks on stderr.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")


@click.group()
def pack() -> None:
    """List, fetch, check and remove models.

    \b
    mtpx pack list
    mtpx pack pull smollm2-135m
    """


@pack.command("list")
@_json
def list_(as_json: bool) -> None:
    """List the packs that are known, and which of them are here.

    \b
    mtpx pack list
    """
    from mtpx import packs

    entries = packs.builtin()
    if as_json:
        _say_json([_facts(entry) for entry in entries])
        return
    from mtpx_cli.draw import clean, console, table

    default = packs.default_name()
    rows = []
    for entry in entries:
        facts = _facts(entry)
        rows.append(
            [
                clean(facts["name"]) + (" *" if facts["name"] == default else ""),
                size(facts["size"]),
                facts["state"],
                clean(facts["license"]),
                clean(facts["head"]),
            ]
        )
    console().print(table(["pack", "size", "here", "licence", "MTP head"], rows, left=5))
    note("* is used where none is named", dim=True)


@pack.command()
@_pack
@_json
def show(pack: str, as_json: bool) -> None:
    """Show what PACK is, where it comes from and what its head can do.

    \b
    mtpx pack show smollm2-135m
    """
    from pathlib import Path

    from mtpx import packs, shelf

    found = packs.find(pack)
    verdict = shelf.classify(found)
    if isinstance(found, Path):
        facts: dict[str, Any] = {"name": found.stem, "folder": str(found)}
    else:
        facts = _facts(found)
    if verdict.head:
        facts["head"] = verdict.head
    facts |= {"class": verdict.kind, "why": verdict.why}
    if as_json:
        _say_json(facts)
        return
    from mtpx_cli.draw import clean

    words = facts | {"size": size(facts["size"])} if "size" in facts else facts
    for name, value in words.items():
        line = clean("; ".join(value) if isinstance(value, list) else value)
        if line:
            # Not wrapped: paths are there to be copied.
            say(f"{name.replace('_', ' '):12}  {line}")


@pack.command()
@_pack
@_quiet
def pull(pack: str, quiet: bool) -> None:
    """Fetch PACK's weights, or go on fetching them, and check them.

    \b
    mtpx pack pull smollm2-135m
    """
    from mtpx import packs

    with fetching(quiet=quiet) as report:
        found = packs.resolve(pack, progress=report)
    if not quiet:
        note(f"{found.name} is here and checked: {found.weights}", dim=True)


@pack.command()
@_pack
@_quiet
def verify(pack: str, quiet: bool) -> None:
    """Compute the digests of PACK's files anew and compare them with its manifest.

    \b
    mtpx pack verify smollm2-135m
    """
    from mtpx import shelf

    with progress("checking the model", quiet=quiet) as report:
        found = shelf.verify(pack, progress=report)
    if not quiet:
        note(f"{found.name} is what its manifest promises (sha256 {found.weights_digest})")


@pack.command()
@_pack
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def remove(pack: str, yes: bool) -> None:
    """Delete PACK's fetched weights. They are fetched again when needed.

    \b
    mtpx pack remove smollm2-135m --yes
    """
    import sys

    from mtpx import shelf
    from mtpx.errors import PackError

    if not yes:
        if not is_terminal(sys.stdin):
            raise PackError("removing needs a yes, and nobody is there to ask: add --yes")
        click.confirm(f"Delete the weights of {pack}?", abort=True, err=True)
    gone = shelf.remove(pack)
    note(f"removed {gone.folder} ({size(gone.size)})", dim=True)


@pack.command()
@_pack
def path(pack: str) -> None:
    """Print where PACK's weights are, for scripts.

    \b
    ls -l "$(mtpx pack path smollm2-135m)"
    """
    from pathlib import Path

    from mtpx import packs, shelf
    from mtpx.errors import PackError
    from mtpx.manifest import weights_name

    found = packs.find(pack)
    if isinstance(found, Path):
        say(str(found))
        return
    held = shelf.stored(found)
    if not held.whole:
        raise PackError(f"the weights of {pack} are not here: `mtpx pack pull {pack}`")
    say(str(held.folder / weights_name([file.name for file in found.manifest.files])))


def _facts(entry: Entry) -> dict[str, Any]:
    from mtpx import shelf

    manifest, held = entry.manifest, shelf.stored(entry)
    return {
        "name": manifest.name,
        "description": manifest.description,
        "license": manifest.license,
        "size": manifest.size + _head_size(manifest),
        "state": _state(held),
        "head": shelf.head_line(manifest),
        "family": manifest.family,
        "quantisation": manifest.quantisation,
        "context": manifest.context,
        "comes_from": shelf.origin(manifest),
        "weights": str(held.folder),
        "manifest": str(entry.folder / "pack.toml"),
    }


def _head_size(manifest: Manifest) -> int:
    return (manifest.head.size or 0) if manifest.head else 0


def _state(held: Stored) -> str:
    if not held.whole:
        return "no"
    return "verified" if held.checked else "not verified"


def _say_json(value: Any) -> None:
    import msgspec

    say(msgspec.json.encode(value).decode())


def size(number: float) -> str:
    """Bytes as people read them."""
    unit = "B"
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.1f} {unit}" if number < 10 and unit != "B" else f"{number:.0f} {unit}"
