"""The models a bench holds: the one it is of, and beside it, where that is another one, the model in the
precision that `--precision auto` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from mtpx.backend import Engine, EngineInfo
from mtpx.bench.fastest import Fastest
from mtpx.errors import BenchError, MtpxError
from mtpx.memory import host_memory
from mtpx.precision import PRECISIONS

BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5}
"""Of a weight: what a model in one precision takes says what it takes in another, nearly."""


class PackName(Protocol):
    """The part of a pack that a trace names."""

    @property
    def name(self) -> str: ...


class BenchModel(Protocol):
    """What a bench needs of a loaded model. `encode` applies the chat template to messages and takes
    text as it is."""

    @property
    def engine(self) -> Engine: ...

    @property
    def end_ids(self) -> frozenset[int]: ...

    @property
    def pack(self) -> PackName: ...

    # Any: a model may accept more than messages or text.
    def encode(self, content: Any, /) -> list[int]: ...


Load = Callable[[str], AbstractContextManager[BenchModel]]
"""Loads the model in a precision, or in what "auto" takes."""


@dataclass(frozen=True, slots=True)
class Models:
    """`fastest` is the same model in the fastest precision; where there is none, `no_fastest` is the
    sentence why, and `missed` says that there should have been one."""

    model: BenchModel
    fastest: BenchModel | None = None
    no_fastest: str = ""
    missed: bool = False


@contextmanager
def alone(load: Load, precision: str, why: str) -> Iterator[Models]:
    """The model by itself, with the sentence why."""
    with load(precision) as model:
        yield Models(model, None, why)


@contextmanager
def beside_fastest(load: Load, precision: str, good: Sequence[str]) -> Iterator[Models]:
    """The model in `precision`, and in the one that "auto" takes if that is another one of those that the
    pack declares `good`. That one is loaded first: where it is the one asked for, no other has to be.

    One that cannot be had, or not both at once, leaves the model alone with a sentence. Raises what `load`
    raises for the model itself.
    """
    with ExitStack() as stack:
        auto, why = None, ""
        if precision in PRECISIONS and good:
            auto, why = _tried(stack, load, "auto")
        if auto is None:
            model = stack.enter_context(load(precision))
            yield Models(model, None, why or _same(model, good), missed=bool(why))
            return
        if auto.engine.info.dtype == precision:
            yield Models(auto, None, _same(auto, good))
            return
        why = _too_large(auto.engine.info, precision)
        if not why:
            beside, why = _tried(stack, load, precision)
            if beside is not None:
                yield Models(beside, auto)
                return
        # Both together cannot be had: the one that is asked for has the memory to itself.
        stack.close()
        yield Models(stack.enter_context(load(precision)), None, why, missed=True)


def _tried(stack: ExitStack, load: Load, precision: str) -> tuple[BenchModel | None, str]:
    try:
        return stack.enter_context(load(precision)), ""
    except MtpxError as error:
        return None, f"plain decode in the fastest precision was not timed beside it: {error}"


def _too_large(loaded: EngineInfo, precision: str) -> str:
    """The sentence, if the model once more, in `precision`, takes more memory than is free. A CUDA device
    says so itself; a host may kill the process instead."""
    free = host_memory().free
    size = loaded.plain_step_bytes * BYTES[precision] / BYTES.get(loaded.dtype, 4.0)
    if free is None or size <= free or loaded.details.get("device", "").startswith("cuda"):
        return ""
    return (
        "plain decode in the fastest precision was not timed beside it: the model in "
        f"{loaded.dtype} and in {precision} together does not fit, the second takes about "
        f"{size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free"
    )


def _same(model: BenchModel, good: Sequence[str]) -> str:
    """Why there is no other precision to beat."""
    dtype, name = model.engine.info.dtype, model.pack.name
    if not good:
        return f"{name} does not say which precisions it is good in, so plain decode in others was not timed"
    if dtype not in good:
        return f"plain decode is in {dtype}, which auto takes here as the fastest precision"
    which = "only" if len(good) == 1 else "fastest"
    return f"plain decode is in {dtype}, the {which} precision here that {name} declares good"


def fastest_of(models: Models) -> Fastest | None:
    """What a design says of the model in the fastest precision. Raises `BenchError` where that is not the
    same model on the same device."""
    if models.fastest is None:
        return None
    own, other = models.model.engine.info, models.fastest.engine.info
    for name, value in SAME.items():
        if value(own) != value(other):
            raise BenchError(
                f"{own.pack} in {own.dtype} cannot be compared with plain decode in {other.dtype}: their "
                f"{name} differs ({value(own)!r} and {value(other)!r})"
            )
    return Fastest(other.dtype, other.tier, other.plain_step_bytes)


SAME: dict[str, Callable[[EngineInfo], object]] = {
    "pack": lambda info: info.pack,
    "weights digest": lambda info: info.weights_digest,
    "backend": lambda info: info.backend,
    "device": lambda info: info.device,
    "vocabulary size": lambda info: info.vocab_size,
}
"""What must be the same in both precisions, by the name a refusal gives it."""
