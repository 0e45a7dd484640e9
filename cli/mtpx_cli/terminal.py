"""What a command writes: text for programs and people on stdout, everything about it on stderr."""

from __future__ import annotations

import shutil
import sys
import textwrap
from contextlib import suppress
from typing import Any

import click

from mtpx.config import Environment

INTERRUPTED, READER_GONE = 130, 141
"""Exit statuses: what a shell reports for a command that SIGINT or SIGPIPE ended."""


def complain(sentence: str) -> None:
    """One line on stderr, red on a terminal that wants colours."""
    note(f"mtpx: {' '.join(sentence.split())}", fg="red")


def note(line: str, **style: Any) -> None:
    """A line on stderr, in this `click.style` on a terminal that wants it (https://no-color.org), and
    broken between words there. Where stderr cannot be written there is nobody to tell."""
    wants = False
    if is_terminal(sys.stderr):
        wants = not Environment.from_environ().no_color
        line = between_words(line, shutil.get_terminal_size().columns)
    with suppress(OSError):
        click.echo(click.style(line, **style) if wants else line, err=True)


def between_words(text: str, width: int) -> str:
    """Lines longer than `width` characters broken at spaces; a path or a command stays in one piece."""
    return "\n".join(
        line
        if len(line) <= width
        else textwrap.fill(
            line,
            width,
            replace_whitespace=False,
            expand_tabs=False,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def say(text: str = "", *, end: str = "\n") -> None:
    """Write to stdout at once, as it is. Raises `BrokenPipeError` when the reader is gone, and
    `MtpxError` when it cannot be written for another reason (a full disk)."""
    from mtpx.errors import MtpxError

    try:
        # Not `click.echo`, which takes escape sequences out of what goes into a pipe or a file.
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise MtpxError(f"the answer cannot be written to stdout: {why}") from error


def lenient() -> None:
    """A stdout whose encoding lacks a character gets a question mark instead of a traceback."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def is_terminal(stream: Any) -> bool:
    """Whether a person may be looking; a closed stream is none."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
