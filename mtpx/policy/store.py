"""What a policy learned, kept between processes.

One JSON file a (pack, backend, device) in the state directory, with the whole key written inside: what was
measured under another key is refused and named, never approximated. A file is replaced as a whole,
so a process that reads while another writes sees the older or the newer state, and of two that
write the later one stays.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mtpx.backend import EngineInfo
from mtpx.config import Environment
from mtpx.digests import write_atomically
from mtpx.errors import PolicyError
from mtpx.paths import state_dir
from mtpx.policy import DepthPolicy

FORMAT = 2

LARGEST = 1 << 20
"""Bytes. A state is some kilobytes; a larger file is none."""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What costs and acceptances were measured under. `threads` "" where the backend says none."""

    pack: str
    weights: str
    head: str
    backend: str
    device: str
    dtype: str
    quantisation: str
    tier: str
    threads: str
    libraries: dict[str, str]
    policy: str

    @classmethod
    def of(cls, info: EngineInfo, policy: str) -> Key:
        return cls(
            pack=info.pack,
            weights=info.weights_digest,
            head=info.head_digest,
            backend=info.backend,
            device=info.device,
            dtype=info.dtype,
            quantisation=info.quantisation,
            tier=info.tier,
            threads=info.details.get("threads", ""),
            libraries=dict(info.libraries),
            policy=policy,
        )

    def differs(self, other: Key) -> list[str]:
        """Names of the fields that differ, with both values; of a digest the first twelve digits."""
        pairs = [(f, getattr(self, f), getattr(other, f)) for f in self.__struct_fields__]
        return [
            f"{field} was {_shown(mine)}, is {_shown(theirs)}"
            for field, mine, theirs in pairs
            if mine != theirs
        ]


def _shown(value: object) -> str:
    shown = str(value)
    return shown[:12] if re.fullmatch(r"[0-9a-f]{64}", shown) else repr(value)


class Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: the key, and the policy's `state()`."""

    format: int
    key: Key
    state: dict[str, Any]


def policies_dir(env: Environment | None = None) -> Path:
    """Where states are kept."""
    return state_dir(env) / "policies"


def path_for(key: Key, env: Environment | None = None) -> Path:
    """The file of this key's pack, backend, device and policy."""
    words = "\0".join((key.pack, key.backend, key.device, key.policy))
    digest = hashlib.sha256(words.encode()).hexdigest()[:12]
    readable = "".join(c if c.isalnum() or c in "-._" else "-" for c in key.pack)[:48]
    return policies_dir(env) / f"{readable}-{digest}.json"


def save(
    policy: DepthPolicy, info: EngineInfo, env: Environment | None = None, *, name: str = ""
) -> Path:
    """Keep what `policy` learned on this engine, under `name` or its own. Raises `PolicyError` when it
    cannot be written."""
    key = Key.of(info, name or policy.name)
    path = path_for(key, env)
    try:
        data = msgspec.json.format(msgspec.json.encode(Saved(FORMAT, key, policy.state())))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise PolicyError(f"cannot keep what the policy learned in {path}: {why}") from error
    return path


def load(
    policy: DepthPolicy, info: EngineInfo, env: Environment | None = None, *, name: str = ""
) -> str:
    """Restore `policy` from what was kept for this engine, under `name` or its own. "" if it was, or
    nothing is kept; else one line that says why not. Never raises: a policy that starts cold is no
    reason not to answer."""
    key = Key.of(info, name or policy.name)
    path = path_for(key, env)
    try:
        saved = read(path)
        if saved is None:
            return ""
        differs = saved.key.differs(key)
        if differs:
            return f"what the policy learned before does not apply here: {'; '.join(differs)}"
        policy.restore(saved.state)
    except PolicyError as error:
        return f"what the policy learned before is not used: {error}"
    except Exception as error:  # somebody's own policy
        said = f"{type(error).__name__}: {error}"
        return f"what the policy learned before is not used: it cannot be restored: {said}"
    return ""


def read(path: Path) -> Saved | None:
    """A kept state, `None` if there is no file. Raises `PolicyError` if it is something else."""
    try:
        if path.stat().st_size > LARGEST:
            raise PolicyError(f"{path} is too large to be a policy's state")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PolicyError(f"cannot read {path}: {error.strerror}") from error
    try:
        saved = msgspec.json.decode(data, type=Saved)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PolicyError(f"{path} is not a policy's state: {error}") from error
    if saved.format != FORMAT:
        raise PolicyError(f"{path} has format {saved.format}; this version reads {FORMAT}")
    return saved


def kept(env: Environment | None = None) -> Mapping[Path, Saved | PolicyError]:
    """Every file in the state directory, read; or why it could not be."""
    found: dict[Path, Saved | PolicyError] = {}
    folder = policies_dir(env)
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            saved = read(path)
        except PolicyError as error:
            found[path] = error
        else:
            if saved is not None:
                found[path] = saved
    return found


def reset(pack: str | None = None, env: Environment | None = None) -> list[Path]:
    """Forget what was learned for `pack`, or everything. Returns the files removed. Raises
    `PolicyError` when one cannot be."""
    gone: list[Path] = []
    for path, saved in kept(env).items():
        if pack is not None and not (isinstance(saved, Saved) and saved.key.pack == pack):
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise PolicyError(f"cannot remove {path}: {error.strerror}") from error
        gone.append(path)
    return gone
