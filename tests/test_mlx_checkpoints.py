"""A hybrid goes on from the deepest state that was kept at or below the place where prompts part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from qwen_makers import make_qwen

pytest.importorskip("mlx.core")

from mtpx import packs, snapshots
from mtpx.backend import EngineOptions
from mtpx.carry import Adopted
from mtpx.sampling import Sampling
from mtpx.testing import Subject
from mtpx.testing.drive import opened, plain_steps
from mtpx_mlx import MlxBackend
from mtpx_mlx.engine import MlxEngine
from mtpx_mlx.inspect import InspectableEngine
from mtpx_mlx.slot import MlxSlot

EVERY = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen(tmp_path_factory.mktemp("hybrid"))


@pytest.fixture
def engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlxEngine]:
    """Checkpoints every 32 tokens, worth restoring from 16 on."""
    monkeypatch.setattr("mtpx.snapshots.SNAPSHOT_EVERY", EVERY)
    monkeypatch.setattr("mtpx_mlx.engine.SNAPSHOT_EVERY", EVERY)
    monkeypatch.setattr(snapshots._Pinned, "value", 16)
    options = EngineOptions(device="cpu", context=512)
    loaded = InspectableEngine.of(MlxBackend().load(packs.resolve(folder), options))
    yield loaded
    loaded.close()


PROMPT = [3 + (7 * i) % 41 for i in range(100)]


def turn(
    engine: MlxEngine, tokens: list[int], reuse: object | None = None
) -> tuple[MlxSlot, object]:
    slot = opened(engine, tokens, session=5, reuse=reuse, chunk=20)
    plain_steps(engine, slot, 4)
    snapshot = slot.snapshot()
    slot.close()
    assert isinstance(slot, MlxSlot)
    return slot, snapshot


def reused(engine: MlxEngine, tokens: list[int], snapshot: object) -> tuple[int, str]:
    """What a prompt reuses, having checked that the state it goes on with is that of a fresh run."""
    slot = engine.open(tokens, Sampling(), 0, session=5, reuse=snapshot)
    while not engine.prefill(slot, 256):
        pass
    subject = Subject("hybrid", lambda options: engine, [[1, 2]], tolerance=1e-3)
    taken = slot.reused
    left = list(slot.tokens)
    logits = engine.logits(slot)  # type: ignore[attr-defined]
    slot.close()
    fresh = opened(engine, left, head=False)
    assert abs(logits - engine.logits(fresh)).max() < subject.tolerance  # type: ignore[attr-defined]
    fresh.close()
    return taken.tokens, taken.why


def test_states_are_kept_at_every_step_of_the_prompt_and_at_the_turns_end(
    engine: MlxEngine,
) -> None:
    slot, snapshot = turn(engine, PROMPT)
    positions = [c.position for c in snapshot.checkpoints]  # type: ignore[attr-defined]
    assert positions == [32, 64, 96, len(slot.tokens) - 1]


def test_the_next_turn_goes_on_from_the_turns_end(engine: MlxEngine) -> None:
    slot, snapshot = turn(engine, PROMPT)
    said = list(slot.tokens)
    assert reused(engine, [*said, 5, 6], snapshot) == (len(said) - 1, "")
    again = opened(engine, [*said, 5, 6], session=5, reuse=snapshot)
    assert isinstance(again.reused.carry, Adopted)
    again.close()


def test_an_edited_question_goes_back_to_the_state_before_it(engine: MlxEngine) -> None:
    _, snapshot = turn(engine, PROMPT)
    tokens, why = reused(engine, [*PROMPT[:70], 1, 1, 1], snapshot)
    assert tokens == 64
    assert why.endswith("the deepest state kept before that is after 64")


def test_states_of_earlier_turns_are_handed_on(engine: MlxEngine) -> None:
    slot, first = turn(engine, PROMPT)
    _, second = turn(engine, [*slot.tokens, *PROMPT[:40]], first)
    assert reused(engine, [*PROMPT[:70], 1, 1, 1], second)[0] == 64
    assert reused(engine, [*slot.tokens, 1, 1], second)[0] == len(slot.tokens) - 1


def test_a_shallow_state_is_not_worth_restoring(
    engine: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, snapshot = turn(engine, PROMPT)
    monkeypatch.setattr(snapshots._Pinned, "value", 65)
    tokens, why = reused(engine, [*PROMPT[:70], 1, 1, 1], snapshot)
    assert (tokens, why) == (0, "a state after 64 tokens is not worth it (under 65)")
