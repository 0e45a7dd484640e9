"""The environment, read in one place.

Every variable is only another way to set a field; nothing else in mtpx looks at `os.environ`.

| variable | field |
|---|---|
| `MTPX_CACHE_DIR` | where fetched weights live |
| `MTPX_STATE_DIR` | where traces and the last pack's name live |
| `MTPX_CONFIG_DIR` | where settings live |
| `MTPX_INDEX_URL`, else `PIP_INDEX_URL` | the package index that wheels come from (PEP 503/691) |
| `MTPX_` and a setting's name, such as `MTPX_TEMPERATURE` | that setting (`mtpx.settings`) |
| `MTPX_ADAPTIVE_VERIFY_COST_FEEDBACK` | the setting `cost_feedback`; 0 prices depths by the pack's own costs |
| `MTPX_CARRY_DEBUG` | a line on stderr whenever the head's rows are stored or adopted |
| `NO_COLOR` | no colours on a terminal (no-color.org) |
| `TERM` | what the terminal can do |
| `CC`, `CXX` | the compilers that torch's compiled route would call |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = "MTPX_"

OWN = frozenset(
    {
        "MTPX_CACHE_DIR",
        "MTPX_STATE_DIR",
        "MTPX_CONFIG_DIR",
        "MTPX_INDEX_URL",
        "MTPX_CARRY_DEBUG",
    }
)
"""Variables with a field of their own."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the process's environment asks for. `None`: the platform's own place; without an index,
    pip is asked where a wheel lies. `settings`: what further `MTPX_` variables say, by the name after
    that, in small letters."""

    cache_dir: Path | None = None
    state_dir: Path | None = None
    config_dir: Path | None = None
    index_url: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    carry_debug: bool = False
    no_color: bool = False
    term: str = "dumb"
    cc: str | None = None
    cxx: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Read `environ` (the process's own if not given). An empty value counts as unset; `~` is
        the home directory."""
        env = os.environ if environ is None else environ
        return cls(
            cache_dir=_folder(env.get("MTPX_CACHE_DIR")),
            state_dir=_folder(env.get("MTPX_STATE_DIR")),
            config_dir=_folder(env.get("MTPX_CONFIG_DIR")),
            index_url=env.get("MTPX_INDEX_URL") or env.get("PIP_INDEX_URL") or None,
            settings={
                name.removeprefix(PREFIX).lower(): value
                for name, value in env.items()
                if name.startswith(PREFIX) and name not in OWN and value
            },
            carry_debug=env.get("MTPX_CARRY_DEBUG", "") not in ("", "0"),
            no_color=bool(env.get("NO_COLOR")),
            term=env.get("TERM", "dumb"),
            cc=env.get("CC", "").strip() or None,
            cxx=env.get("CXX", "").strip() or None,
        )


def _folder(value: str | None) -> Path | None:
    if not value:
        return None
    # `expanduser` raises where there is no home; the literal path is then the honest reading.
    return Path(os.path.expanduser(value)).absolute()  # noqa: PTH111
