"""Settings as defaults of the commands' flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import click


class Defaults(Mapping[str, Any]):
    """Command → flag → what is set for it. Nothing is read before somebody asks.

    Settings that cannot be read give no defaults here, so that `--help` always works; a command
    that means to do something calls `require_settings` first.
    """

    def __getitem__(self, command: str) -> dict[str, Any]:
        if not self._any:
            return {}  # without a look at numpy, so that `--help` is quick
        from mtpx.settings import APPLIES

        takes = APPLIES.get(command, ())
        return {name: self._values[name] for name in takes if name in self._values}

    def __iter__(self) -> Iterator[str]:
        from mtpx.settings import APPLIES

        return iter(APPLIES)

    def __len__(self) -> int:
        from mtpx.settings import APPLIES

        return len(APPLIES)

    @cached_property
    def _any(self) -> bool:
        """Whether there may be something set."""
        from mtpx.config import Environment
        from mtpx.paths import settings_file

        env = Environment.from_environ()
        try:
            return bool(env.settings) or settings_file(env).exists()
        except OSError:
            return True  # `require_settings` says what is wrong with it

    @cached_property
    def _values(self) -> dict[str, Any]:
        from mtpx import settings
        from mtpx.errors import SettingsError

        try:
            return {name: found.value for name, found in settings.load().items()}
        except SettingsError:
            return {}


def require_settings() -> None:
    """Raises `SettingsError` when what is set cannot be used."""
    from mtpx import settings

    settings.load()


def use(ctx: click.Context) -> None:
    """Let the commands of this group take their defaults from the settings."""
    ctx.default_map = Defaults()  # type: ignore[assignment]  # a mapping is all click asks of it
