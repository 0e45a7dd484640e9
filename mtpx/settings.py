"""What a person sets once: a TOML file in the settings folder, and the environment.

A flag wins over the environment, the environment over the file, the file over the default. Every
setting is called like its flag (`max-tokens` or `max_tokens`) and, in the environment, `MTPX_` and its
name (`MTPX_MAX_TOKENS`); `cost_feedback` is `MTPX_ADAPTIVE_VERIFY_COST_FEEDBACK` there. See `mtpx config`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec.inspect import (
    BoolType,
    FloatType,
    IntType,
    LiteralType,
    NoneType,
    StructType,
    UnionType,
    type_info,
)

from mtpx import paths
from mtpx.config import PREFIX, Environment
from mtpx.errors import MtpxError, SettingsError
from mtpx.precision import Precision, Tier

LIMIT = 1 << 20
"""Bytes. Settings are a page of text; what is larger is something else under the name."""

Count = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set; `None` is not set. Ranges of sampling are `mtpx.sampling`'s."""

    pack: str | None = None
    backend: str | None = None
    device: str | None = None
    threads: Count | None = None
    context: Annotated[int, msgspec.Meta(ge=2)] | None = None
    precision: Literal["auto", Precision] | None = None
    tier: Literal["auto", Tier] | None = None
    compile: Literal["auto", "now", "background", "off"] | None = None
    depth: Annotated[int, msgspec.Meta(ge=0)] | Literal["off", "auto"] | None = None
    policy: str | None = None
    objective: Literal["speed", "balanced", "energy"] | None = None
    slack: float | None = None
    cost_feedback: bool | None = None
    max_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    system: str | None = None
    thinking: Literal["on", "off"] | None = None
    keep_traces: bool | None = None
    trace_text: bool | None = None
    session: str | None = None
    session_budget: Annotated[int, msgspec.Meta(ge=0)] | None = None
    snapshot_min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    quiet: bool | None = None


SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)

DEFAULTS: dict[str, str] = {
    "pack": "the last one used, else the embedded one",
    "backend": "auto",
    "device": "auto",
    "threads": "the backend's choice",
    "context": "the backend's choice",
    "precision": "auto",
    "tier": "auto",
    "compile": "auto; in a chat background",
    "depth": "auto",
    "policy": "adaptive",
    "objective": "speed",
    "slack": "0.1",
    "cost_feedback": "True",
    "max_tokens": "the command's",
    **dict.fromkeys(SAMPLING, "the pack's"),
    "system": "none",
    "thinking": "the template's",
    "keep_traces": "True",
    "trace_text": "False",
    "session": "none",
    "session_budget": "4096 MB",
    "snapshot_min_tokens": "256",
    "quiet": "False",
}
"""What holds where nothing is set, in words."""

VARIABLES = {"cost_feedback": "MTPX_ADAPTIVE_VERIFY_COST_FEEDBACK"}
"""Settings whose variable is not called like them: a name that is known from elsewhere."""

CHOOSING = ("depth", "policy", "objective", "slack", "cost_feedback")

COMMON = ("pack", "backend", "device", "threads", "context", "precision", "tier", "compile")
"""What every command that loads a model takes. `mtpx bench` takes no more but where costs come from: what
a verdict compares, and how it samples, stands on its command line."""

APPLIES: dict[str, tuple[str, ...]] = {
    "chat": Settings.__struct_fields__,
    "run": (*COMMON, *CHOOSING, "max_tokens", *SAMPLING),
    "bench": (*COMMON, "cost_feedback"),
    "doctor": (*COMMON, *CHOOSING),
    "warm": COMMON[:-1],  # all but how it compiles, which is its business
    "measure": ("pack", "backend", "device", "threads", "precision", "tier"),
}
"""Command → the settings it takes."""


@dataclass(frozen=True, slots=True)
class Found:
    """A setting's value and where it came from: a variable's name, or "FILE, line N"."""

    value: Any
    source: str


def load(env: Environment | None = None) -> dict[str, Found]:
    """What is set, by name. Raises `SettingsError` when the file or a variable cannot be used."""
    env = env or Environment.from_environ()
    path = paths.settings_file(env)
    written, variables = _from_file(path), _from_environment(env.settings)
    for one, other in (("depth", "policy"), ("policy", "depth")):
        # The environment wins over the file also where the two cannot both be had.
        if one in variables and other in written and other not in variables:
            del written[other]
    found = written | variables
    _check_sampling(found)
    _check_policy(found)
    _check_session(found)
    return found


def _from_file(path: Path) -> dict[str, Found]:
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"the settings {path} cannot be read: {why}") from None
    if len(data) > LIMIT:
        raise SettingsError(f"{path} is larger than settings can be ({LIMIT >> 20} MiB)")
    try:
        text = data.decode()
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise SettingsError(f"{path}, line {line}, column {column}: not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}{_place(str(error), text)}") from None
    found = {}
    for written, value in table.items():
        line = _line_of(written, text)
        where = f"{path}, line {line}" if line else str(path)
        name = _known(written.replace("-", "_"), written, where)
        found[name] = Found(_converted(name, value, where, strict=True), where)
    return found


def _place(said: str, text: str) -> str:
    """ ", line L, column C: what is wrong" of tomllib's "what is wrong (at line L, column C)"."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", said)
    if not match:
        return f": {said}"
    line = match[2] or text.count("\n") + 1
    column = match[3] or len(text) - text.rfind("\n")
    return f", line {line}, column {column}: {match[1]}"


def _line_of(key: str, text: str) -> int:
    """The line a top-level key is written on, from 1; 0 where it cannot be told."""
    pattern = re.compile(rf"""\s*\[*["']?{re.escape(key)}["']?\s*[=.\]]""")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return number
    return 0


def _from_environment(variables: dict[str, str]) -> dict[str, Found]:
    found = {}
    for name in Settings.__struct_fields__:
        where = variable(name)
        value = variables.get(where.removeprefix(PREFIX).lower())
        if value is not None:
            found[name] = Found(_converted(name, value, where, strict=False), where)
    return found


def unknown_variables(env: Environment | None = None) -> list[str]:
    """Variables that look like settings and are none."""
    env = env or Environment.from_environ()
    known = {variable(name) for name in Settings.__struct_fields__}
    return [
        name for name in (PREFIX + given.upper() for given in env.settings) if name not in known
    ]


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return VARIABLES.get(name, PREFIX + name.upper())


def check(name: str, value: str, where: str) -> Any:
    """`value` as the setting `name` takes it. Raises `SettingsError` that begins with `where`."""
    found = _converted(name, value, where, strict=False)
    _check_sampling({name: Found(found, where)})
    _check_policy({name: Found(found, where)})
    return found


def _known(name: str, written: str, where: str) -> str:
    names = Settings.__struct_fields__
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
    raise SettingsError(f"{where}: there is no setting {written!r}; {hint}")


def _converted(name: str, value: object, where: str, *, strict: bool) -> Any:
    try:
        return getattr(msgspec.convert({name: value}, Settings, strict=strict), name)
    except msgspec.ValidationError:
        raise SettingsError(f"{where}: {name} cannot be {value!r}: {_wanted(name)}") from None


def _wanted(name: str) -> str:
    """What the setting takes, in words."""
    if name == "depth":
        return "a number of drafts, off or auto"
    kinds = {field.name: field.type for field in cast(StructType, type_info(Settings)).fields}
    union = cast(UnionType, kinds[name])
    kind = next(one for one in union.types if not isinstance(one, NoneType))
    match kind:
        case LiteralType(values):
            *others, last = map(str, values)
            return f"{', '.join(others)} or {last}"
        case IntType(ge=None):
            return "a whole number"
        case IntType(ge=least):
            return f"a whole number, {least} or more"
        case FloatType():
            return "a number"
        case BoolType():
            return "true or false"
        case _:
            return "text (in quotes in the file)"


def _check_sampling(found: dict[str, Found]) -> None:
    from mtpx.sampling import Sampling

    for name in SAMPLING:
        if name in found and found[name].value is not None:
            try:
                Sampling(**{name: found[name].value})
            except MtpxError as error:
                raise SettingsError(f"{found[name].source}: {error}") from None


def _check_session(found: dict[str, Found]) -> None:
    if "session" in found and found["session"].value is not None:
        from mtpx.sessions import checked

        try:
            checked(found["session"].value)
        except MtpxError as error:
            raise SettingsError(f"{found['session'].source}: {error}") from None


def _check_policy(found: dict[str, Found]) -> None:
    """A policy's name and a slack that are none are refused where they are written."""
    if not found.keys() & {"policy", "slack"}:
        return
    from mtpx.policy.registry import MEASURED, PolicyOptions

    checks: dict[str, Callable[..., object]] = {
        "policy": PolicyOptions,
        "slack": partial(PolicyOptions, MEASURED, None),
    }
    for name, make in checks.items():
        if name in found and found[name].value is not None:
            try:
                make(found[name].value)
            except MtpxError as error:
                raise SettingsError(f"{found[name].source}: {error}") from None
