"""Names a shell completes."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_pack(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Installed packs that begin so, else files and folders."""
    from mtpx import packs

    found = [
        CompletionItem(entry.manifest.name, help=entry.manifest.description)
        for entry in packs.builtin()
        if entry.manifest.name.startswith(incomplete)
    ]
    return found or [CompletionItem(incomplete, type="file")]
