"""Text without the names of the person at the machine, of the machine, and of its folders."""

from __future__ import annotations

import getpass
import platform
import re
import tempfile
from pathlib import Path

from mtpx import paths

ROOT = Path(__file__).resolve().parent.parent


def impersonal(text: str) -> str:
    """`text`, the names of the user, the home folder, the machine and mtpx's own folders replaced."""
    for name, instead in folders():
        # A whole name: /tmp is not what /tmpfs begins with, and stands at the start of /tmp/tmp1 only.
        text = re.sub(rf"{re.escape(name)}(?![\w-])", lambda _, said=instead: said, text)
    names = [(user_name(), "user"), *((name, "machine") for name in host_names())]
    for name, instead in names:
        # A short or everyday name also stands inside other words.
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def folders() -> list[tuple[str, str]]:
    """Folders whose names may tell something, each with what is written instead; the longest name first,
    since some lie in others."""
    named = {
        ROOT: "mtpx",
        Path.home(): "~",
        paths.cache_dir(): "cache",
        # macOS has one for every user, with an id in its name.
        Path(tempfile.gettempdir()): "tmp",
    }
    found = {
        str(form): instead for path, instead in named.items() for form in (path, path.resolve())
    }
    return sorted(
        ((name, instead) for name, instead in found.items() if len(name) > 1),
        key=lambda pair: -len(pair[0]),
    )


def user_name() -> str:
    return getpass.getuser()


def host_names() -> list[str]:
    whole = platform.node()
    return [name for name in dict.fromkeys([whole, whole.partition(".")[0]]) if name]
