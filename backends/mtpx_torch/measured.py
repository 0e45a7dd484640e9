"""What was measured on this machine when a model was loaded, kept so that the next load need not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import torch

from mtpx import paths
from mtpx.digests import write_atomically
from mtpx.hardware import cpu_name

FILE = "measured-choices.json"


class Choice(msgspec.Struct, frozen=True):
    """Milliseconds of each alternative, measured under `key`."""

    key: list[str]
    ms: dict[str, float]


def machine(device: torch.device) -> list[str]:
    """What a measurement holds for: the device, how many threads, which torch."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return [name, str(torch.get_num_threads()), str(torch.__version__)]


def remembered(
    key: Sequence[str], names: Sequence[str], measure: Callable[[], Mapping[Any, float]]
) -> Mapping[str, float]:
    """Milliseconds of every one of `names`: kept from an earlier load, else measured now and kept."""
    wanted, known = list(key), _known()
    for choice in known:
        if choice.key == wanted and set(choice.ms) == set(names):
            return choice.ms
    ms = dict(measure())
    others = [choice for choice in known if choice.key != wanted]
    # Not being able to remember costs a second at the next load, and nothing else.
    with suppress(OSError):
        path = paths.state_dir() / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode([*others, Choice(wanted, ms)]))
    return ms


def _known() -> list[Choice]:
    try:
        data = (paths.state_dir() / FILE).read_bytes()
        return msgspec.json.decode(data, type=list[Choice])
    except (OSError, msgspec.MsgspecError, ValueError):
        return []
