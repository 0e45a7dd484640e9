"""Where files live, in one place.

The platform's own folders (on Linux `~/.cache/mtpx`, `~/.local/state/mtpx`, `~/.config/mtpx`),
each overridden by an environment variable: `MTPX_CACHE_DIR`, `MTPX_STATE_DIR`, `MTPX_CONFIG_DIR`.
Nothing here creates a folder: whoever writes does.
"""

from __future__ import annotations

from pathlib import Path

from mtpx.config import Environment


def cache_dir(env: Environment | None = None) -> Path:
    """What can be fetched or computed again: weights."""
    env = env or Environment.from_environ()
    if env.cache_dir:
        return env.cache_dir
    import platformdirs

    return platformdirs.user_cache_path("mtpx", appauthor=False)


def state_dir(env: Environment | None = None) -> Path:
    """What a run leaves behind: traces, the last pack's name, what a policy learned."""
    env = env or Environment.from_environ()
    if env.state_dir:
        return env.state_dir
    import platformdirs

    return platformdirs.user_state_path("mtpx", appauthor=False)


def config_dir(env: Environment | None = None) -> Path:
    """What a person sets."""
    env = env or Environment.from_environ()
    if env.config_dir:
        return env.config_dir
    import platformdirs

    return platformdirs.user_config_path("mtpx", appauthor=False)


def settings_file(env: Environment | None = None) -> Path:
    """What a person set (`mtpx.settings`)."""
    return config_dir(env) / "config.toml"


def weights_dir(env: Environment | None = None) -> Path:
    """Fetched weights: one folder a pack and digest."""
    return cache_dir(env) / "weights"


def traces_dir(env: Environment | None = None) -> Path:
    """Traces that were given no name of their own."""
    return state_dir(env) / "traces"


def sessions_dir(env: Environment | None = None) -> Path:
    """Conversations that are kept under a name: one folder each (`mtpx.sessions`)."""
    return state_dir(env) / "sessions"


def last_pack_file(env: Environment | None = None) -> Path:
    """Holds the name of the pack used last."""
    return state_dir(env) / "last-pack"
