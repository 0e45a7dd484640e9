"""Small TOML files that were measured: written whole, read back, refused where they do not fit.

Cost tables and calibrations share this. A file is named by what it was measured under, so a newer
measurement of the same thing takes the older one's place.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from mtpx.errors import PolicyError

T = TypeVar("T")

MOST_BYTES = 1 << 20
"""A table is a page of text; what is larger is something else under its name."""


class _Header(msgspec.Struct):
    kind: str = ""
    schema: int | None = None


def string(value: str) -> str:
    """`value` as a TOML basic string."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def numbers(values: list[float]) -> str:
    """A TOML array that reads back as exactly these numbers."""
    return "[" + ", ".join(repr(value) for value in values) + "]"


def decode(data: bytes, kind: str, schema: int, into: type[T], where: str) -> T:
    """What these bytes hold. Raises `PolicyError` naming `where` and what is wrong."""
    try:
        header = msgspec.toml.decode(data, type=_Header)
        if header.kind != kind:
            found = f"a {header.kind}" if header.kind else "something else"
            raise PolicyError(f"{where} is {found}, not a {kind}")
        if header.schema != schema:
            raise PolicyError(
                f"{where} is a {kind} of schema {header.schema}, and this mtpx reads schema {schema}; "
                "measure again"
            )
        return msgspec.toml.decode(data, type=into)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PolicyError(f"{where} is not a {kind}: {_short(error)}") from None


def read(path: Path, parse: Callable[[bytes, str], T]) -> T:
    """`parse` the file. Raises `PolicyError` when it cannot be read, and what `parse` raises."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise PolicyError(f"cannot read {path}: {why}") from None
    if len(data) > MOST_BYTES:
        raise PolicyError(f"{path} is larger than any table: at most {MOST_BYTES} bytes")
    return parse(data, str(path))


def write(path: Path, text: str, value: T, parse: Callable[[bytes, str], T]) -> None:
    """Write `text`, which says `value`, in one step; a file that does not read back equal is not kept.

    Raises `PolicyError`; what stood at `path` before is then still there.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            temporary = file.name
            file.write(text)
        if read(Path(temporary), parse) != value:
            raise PolicyError(f"what was written to {path} does not read back as it was")
        Path(temporary).replace(path)
        temporary = ""
    except (OSError, UnicodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise PolicyError(f"cannot write {path}: {why}") from None
    finally:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
