"""Work broken off by Ctrl-C, wherever it comes: the slot goes on as if nothing had happened.

The fast tests try every eleventh place of those where Python looks for signals; `pytest -m slow
tests/test_broken_off.py` tries them all, some minutes a kind of engine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broken_off import Watch, places
from qwen_makers import make_qwen
from torch_makers import make_pack

from mtpx import packs
from mtpx.backend import EngineOptions, Slot
from mtpx.errors import BackendError
from mtpx.sampling import Sampling
from mtpx.testing.drive import opened, plain_steps

WITHIN = ("mtpx", "mlx_lm")
PROMPT = [7, 3, 9, 11, *range(20, 36)]
LONG = [*range(3, 40)] * 3
"""More tokens than the rows of a forward that a recurrent layer keeps one by one."""

REPEATS = Sampling(temperature=0.0, repeat_penalty=1.2)
LATER = 3
"""Tokens decoded after what was broken off, at least."""


def torch_engine(folder: Path) -> Any:
    from mtpx_torch import TorchBackend
    from mtpx_torch.inspect import InspectableEngine

    options = EngineOptions(device="cpu", context=256, pipeline=True, compile="off")
    return InspectableEngine.of(TorchBackend().load(make_pack(folder), options))


def mlx_engine(folder: Path, hybrid: bool = False, **extra: str) -> Any:
    pytest.importorskip("mlx.core")
    from mtpx_mlx import MlxBackend
    from mtpx_mlx.inspect import InspectableEngine

    pack = packs.resolve(make_qwen(folder)) if hybrid else make_pack(folder, head_dim=32)
    options = EngineOptions(device="cpu", context=256, extra=extra)
    return InspectableEngine.of(MlxBackend().load(pack, options))


KINDS: dict[str, Callable[[Path], Any]] = {
    "torch": torch_engine,
    "mlx": mlx_engine,
    "mlx hybrid": lambda folder: mlx_engine(folder, hybrid=True),
    "mlx window": lambda folder: mlx_engine(folder, window="16"),
    "mlx quantised": lambda folder: mlx_engine(folder, kv_bits="8"),
}


@pytest.fixture(params=[11, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def every(request: pytest.FixtureRequest) -> int:
    """Of the places, one in so many is tried."""
    step: int = request.param
    return step


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    loaded = KINDS[request.param](tmp_path_factory.mktemp("broken"))
    yield loaded
    loaded.close()


class Undisturbed:
    """What slots that were never disturbed hold: `text`, and the (logits, three drafts) `after` so many
    tokens of it, decoded one by one."""

    def __init__(self, engine: Any, prompt: list[int], sampling: Sampling, more: int) -> None:
        slot = opened(engine, prompt, sampling)
        self.after = {len(prompt): _held(engine, slot)}
        for _ in range(more):
            plain_steps(engine, slot, 1)
            self.after[len(slot.tokens)] = _held(engine, slot)
        self.text = list(slot.tokens)
        slot.close()


def _held(engine: Any, slot: Slot) -> tuple[Any, list[int]]:
    return engine.logits(slot), drafts(engine, slot)


def drafts(engine: Any, slot: Slot) -> list[int]:
    made: list[int] = engine.drafted(engine.propose([slot], [3]))[0]
    return made


def drafted_round(engine: Any, slot: Slot) -> None:
    made = engine.propose([slot], [3])
    engine.verify([slot], made, made.counts)


def plain_round(engine: Any, slot: Slot) -> None:
    engine.plain([slot])


def finish(engine: Any, slot: Slot) -> None:
    while not engine.prefill(slot, 256):
        pass


@pytest.mark.parametrize("sampling", [Sampling(), REPEATS], ids=["greedy", "penalised"])
@pytest.mark.parametrize("work", [drafted_round, plain_round], ids=["drafted", "plain"])
def test_a_round_broken_off_anywhere_leaves_the_state_right(
    engine: Any, every: int, work: Callable[[Any, Slot], None], sampling: Sampling
) -> None:
    undisturbed = Undisturbed(engine, PROMPT, sampling, 20)

    def begun() -> Slot:
        slot = opened(engine, PROMPT, sampling)
        for _ in range(2):  # so that a step is in flight, and that rows were rejected
            work(engine, slot)
        return slot

    slot = begun()
    stops = places(lambda: work(engine, slot), WITHIN)
    slot.close()
    for stop in stops[::every]:
        slot = begun()
        assert Watch(WITHIN, stop).run(lambda: work(engine, slot))  # noqa: B023
        check(engine, slot, undisturbed, stop)
        while len(slot.tokens) < len(PROMPT) + 6 + LATER:
            work(engine, slot)
        check(engine, slot, undisturbed, stop)
        slot.close()


WHERE = [(drafted_round, "read"), (plain_round, "read"), (drafted_round, "head")]


@pytest.mark.parametrize(("work", "where"), WHERE, ids=["verify", "plain", "propose"])
def test_a_round_broken_off_where_it_spends_its_time(
    engine: Any,
    work: Callable[[Any, Slot], None],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undisturbed = Undisturbed(engine, PROMPT, Sampling(), 16)
    slot = opened(engine, PROMPT, Sampling())
    work(engine, slot)

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "head":
            patch.setattr(engine.head, "forward", interrupted)
        else:
            patch.setattr(f"{type(engine).__mro__[1].__module__}.read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            work(engine, slot)
    work(engine, slot)
    check(engine, slot, undisturbed, 0)
    slot.close()


def test_a_prompt_broken_off_anywhere_is_read_to_its_end(engine: Any, every: int) -> None:
    undisturbed = Undisturbed(engine, LONG, REPEATS, 4)
    slot = engine.open(LONG, REPEATS, 0, session=1)
    stops = places(lambda: finish(engine, slot), WITHIN)
    slot.close()
    for stop in stops[::every]:
        slot = engine.open(LONG, REPEATS, 0, session=1)
        assert Watch(WITHIN, stop).run(lambda: finish(engine, slot))  # noqa: B023
        check(engine, slot, undisturbed, stop)
        slot.close()


def test_taking_over_broken_off_anywhere_leaves_room_to_take_over_again(
    engine: Any, every: int
) -> None:
    undisturbed = Undisturbed(engine, LONG, REPEATS, 4)
    slot = opened(engine, LONG, REPEATS, session=1)
    plain_steps(engine, slot, 2)
    saved = slot.snapshot()
    prompt = list(slot.tokens)
    slot.close()
    kept: list[Slot] = []

    def take_over() -> None:
        kept.append(engine.open(prompt, REPEATS, 0, session=1, reuse=saved))

    stops = places(take_over, WITHIN)
    kept.pop().close()
    for stop in stops[::every]:
        Watch(WITHIN, stop).run(take_over)
        if not kept:
            take_over()
        check(engine, kept[0], undisturbed, stop)
        kept.pop().close()


def test_a_slot_that_nobody_holds_takes_no_place(engine: Any) -> None:
    engine.open(LONG, REPEATS, 0, session=1)
    slot = engine.open(LONG, REPEATS, 0, session=1)
    with pytest.raises(BackendError, match="1 sequences are open"):
        engine.open(LONG, REPEATS, 0, session=1)
    slot.close()


def check(engine: Any, slot: Slot, undisturbed: Undisturbed, stop: int) -> None:
    """The slot, its prompt read to the end, holds what an undisturbed one does."""
    finish(engine, slot)
    count = len(slot.tokens)
    assert list(slot.tokens) == undisturbed.text[:count], f"stopped at {stop}"
    logits, drafted = undisturbed.after[count]
    found, now = _held(engine, slot)
    assert np.abs(found - logits).max() < 1e-3 * np.abs(logits).max(), f"stopped at {stop}"
    assert now == drafted, f"stopped at {stop}"
