"""An MLX conversation goes on after a restart as if there had been none, whatever its layers hold; a
state that is not this model's is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qwen_makers import make_qwen
from torch_makers import make_pack

pytest.importorskip("mlx.core")

from mtpx import frozen, packs, snapshots
from mtpx.backend import EngineOptions
from mtpx.carry import Adopted
from mtpx.errors import BackendError
from mtpx.frozen import Frozen, StateKey
from mtpx.packs import Pack
from mtpx.sampling import Sampling
from mtpx.testing.drive import opened
from mtpx_mlx import MlxBackend
from mtpx_mlx.engine import MlxEngine
from mtpx_mlx.models import light
from mtpx_mlx.slot import MlxSlot
from mtpx_mlx.snapshot import Snapshot
from mtpx_mlx.state import layer_states

KEY = StateKey("w", "h", "mlx", "float32", "none", "standard", "t")
PROMPT = [3 + (7 * i) % 41 for i in range(50)]
EVERY = 16


def attention(folder: Path) -> Pack:
    return make_pack(folder, head_dim=32)


def hybrid(folder: Path) -> Pack:
    return packs.resolve(make_qwen(folder))


def wide_hybrid(folder: Path) -> Pack:
    return packs.resolve(make_qwen(folder, head_dim=32))


def trained(folder: Path) -> Pack:
    return packs.resolve(Path(__file__).parent / "fixtures" / "tiny-hybrid")


KINDS: dict[str, tuple[Callable[[Path], Pack], dict[str, str]]] = {
    "keys and values": (attention, {}),
    "a window": (attention, {"window": "16"}),
    "a window that is not full": (attention, {"window": "128"}),
    "quantised": (attention, {"kv_bits": "8"}),
    "recurrent": (hybrid, {}),
    "recurrent, trained": (trained, {}),
    "recurrent and a window": (hybrid, {"window": "16"}),
    "recurrent and quantised": (wide_hybrid, {"kv_bits": "4"}),
}

Load = Callable[..., MlxEngine]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Loads an engine anew each time, as another process would. Recurrent states are kept every 16
    tokens and are always worth restoring."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY", EVERY)
    monkeypatch.setattr("mtpx_mlx.engine.SNAPSHOT_EVERY", EVERY)
    monkeypatch.setattr(snapshots._Pinned, "value", 0)
    made: dict[object, Pack] = {}
    loaded = []

    def load(kind: str, **changes: str) -> MlxEngine:
        pack, extra = KINDS[kind]
        if pack not in made:
            made[pack] = pack(tmp_path / pack.__name__)
        options = EngineOptions(device="cpu", context=256, extra={**extra, **changes})
        loaded.append(MlxBackend().load(made[pack], options))
        return loaded[-1]

    yield load
    for engine in loaded:
        engine.close()


def rounds(engine: MlxEngine, slot: MlxSlot, count: int) -> list[int]:
    """What so many rounds at depth 3 commit."""
    text = []
    for _ in range(count):
        drafts = engine.propose([slot], [3])
        text += engine.verify([slot], drafts, [3])[0].committed
    return text


def started(engine: MlxEngine, prompt: list[int], kept: object = None) -> MlxSlot:
    slot = opened(engine, prompt, session=9, reuse=kept, chunk=20)
    assert isinstance(slot, MlxSlot)
    return slot


def turn(engine: MlxEngine, prompt: list[int] = PROMPT) -> tuple[list[int], Snapshot]:
    slot = started(engine, prompt)
    rounds(engine, slot, 3)
    snapshot = slot.snapshot()
    slot.close()
    assert isinstance(snapshot, Snapshot)
    return list(slot.tokens), snapshot


def through_a_file(engine: MlxEngine, snapshot: object, path: Path) -> Frozen:
    frozen.write(path, engine.freeze(snapshot), KEY)
    held = frozen.read(path, KEY)
    assert held is not None
    return held


def next_turn(engine: MlxEngine, prompt: list[int], kept: object) -> tuple[Any, ...]:
    """(tokens reused, what became of the head's rows, how sure the first drafts are, the text)."""
    slot = started(engine, prompt, kept)
    sure = np.asarray(engine.propose([slot], [3]).confidence)[0].tolist()
    slot.close()
    slot = started(engine, prompt, kept)
    text = rounds(engine, slot, 3)
    reused = slot.reused
    slot.close()
    return reused.tokens, reused.carry, sure, text


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_turn_after_a_restart_is_that_without_one(
    load: Load, tmp_path: Path, kind: str
) -> None:
    engine = load(kind)
    said, snapshot = turn(engine)
    held = through_a_file(engine, snapshot, tmp_path / "state")
    prompt = [*said, 7, 40, 11]
    expected = next_turn(engine, prompt, snapshot)
    again = load(kind)
    assert next_turn(again, prompt, again.thaw(held)) == expected
    assert expected[0] == len(said) - 1
    assert isinstance(expected[1], Adopted)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("recurrent")])
def test_an_edited_question_after_a_restart_goes_on_from_an_earlier_state(
    load: Load, tmp_path: Path, kind: str
) -> None:
    engine = load(kind)
    _, snapshot = turn(engine)
    held = through_a_file(engine, snapshot, tmp_path / "state")
    prompt = [*PROMPT[:40], 1, 1, 1]
    expected = next_turn(engine, prompt, snapshot)
    again = load(kind)
    assert next_turn(again, prompt, again.thaw(held)) == expected
    assert expected[0] == 32


def test_a_state_kept_between_two_rounds_holds_the_rows_that_stand(load: Load) -> None:
    """A rejection leaves a recurrent layer with a state and rows to run on it, a plain step with a state
    alone."""
    engine, kept = load("recurrent"), []
    slot = started(engine, PROMPT)
    for number in range(8):
        if number % 2:
            engine.plain([slot])
        else:
            rounds(engine, slot, 1)
        kept.append(([*slot.tokens, 5, 6], slot.snapshot()))
    slot.close()
    seen = set()
    for prompt, snapshot in kept:
        held = engine.freeze(snapshot)
        seen.add(held.facts["target.0.rows"])
        assert next_turn(engine, prompt, engine.thaw(held)) == next_turn(engine, prompt, snapshot)
    assert 0 in seen
    assert max(seen) > 0


@pytest.mark.parametrize("kind", ["keys and values", "recurrent"])
def test_a_prompt_broken_off_at_once_is_kept_too(load: Load, kind: str) -> None:
    engine = load(kind)
    slot = engine.open(PROMPT, Sampling(), 0, session=9)
    held = engine.freeze(slot.snapshot())
    slot.close()
    assert next_turn(engine, PROMPT, engine.thaw(held))[0] == 0


# What is not this model's


def damages() -> dict[str, tuple[str, Callable[[Frozen], Frozen]]]:
    def without(name: str) -> Callable[[Frozen], Frozen]:
        return lambda f: replace(f, tensors={n: t for n, t in f.tensors.items() if n != name})

    def number(name: str, value: int) -> Callable[[Frozen], Frozen]:
        return lambda f: replace(f, facts={**f.facts, name: value})

    def swapped(name: str, other: str) -> Callable[[Frozen], Frozen]:
        return lambda f: replace(f, tensors={**f.tensors, name: f.tensors[other]})

    return {
        "values missing": ("keys and values", without("target.0.1")),
        "hidden states missing": ("keys and values", without("hidden")),
        "more rows than pairs": ("keys and values", number("head_rows", 1000)),
        "a pair that is not there": ("keys and values", number("head_key", 1000)),
        "hidden states beyond the end": ("keys and values", number("hidden_hi", 1000)),
        "more positions than tokens": ("keys and values", number("filled", 1000)),
        "fewer positions than rows": ("keys and values", number("filled", 5)),
        "another place in the window": ("a window", number("target.0.5", 40)),
        "another window": ("a window", number("target.0.4", 32)),
        "scales missing": ("quantised", without("target.0.0.1")),
        "a matrix missing": ("recurrent", without("target.0.state")),
        "a matrix for a window": ("recurrent", swapped("target.0.window", "target.0.state")),
        "rows that are not there": ("recurrent", number("target.0.rows", 3)),
        "an earlier state missing": ("recurrent", without("checkpoint.1.0.state")),
        "more earlier states than positions": ("recurrent", number("checkpoints", 1000)),
        "an earlier state after the end": ("recurrent", number("checkpoint.0", 1000)),
    }


@pytest.mark.parametrize("damage", damages())
def test_bytes_that_do_not_fit_are_refused(load: Load, damage: str) -> None:
    kind, harm = damages()[damage]
    engine = load(kind)
    held = engine.freeze(turn(engine)[1])
    engine.thaw(held)
    with pytest.raises(BackendError, match="the kept state does not fit this model: "):
        engine.thaw(harm(held))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("quantised", {"kv_bits": "4"}),
        ("a window", {"window": "32"}),
        ("keys and values", {"window": "16"}),
        ("keys and values", {"kv_bits": "8"}),
        ("keys and values", {"dtype": "float16"}),
        ("recurrent", {"dtype": "float16"}),
    ],
)
def test_a_state_of_other_options_is_refused(
    load: Load, kind: str, changes: dict[str, str]
) -> None:
    engine = load(kind)
    held = engine.freeze(turn(engine)[1])
    with pytest.raises(BackendError, match="does not fit this model"):
        load(kind, **changes).thaw(held)


def test_a_model_that_drafts_no_more_goes_on_without_the_heads_rows(load: Load) -> None:
    engine = load("recurrent")
    said, snapshot = turn(engine)
    held = engine.freeze(snapshot)
    engine.head = engine.proposer = None
    slot = opened(engine, [*said, 7], session=9, reuse=engine.thaw(held), head=False)
    assert slot.reused.tokens == len(said) - 1


def test_a_group_of_caches_comes_back_part_by_part(load: Load) -> None:
    """No model of the tests has such layers: the pieces alone."""
    import mlx.core as mx

    from mtpx_mlx.frozen_layers import Given, Taken

    caches = light("models.cache")

    def layer(rows: int) -> Any:
        (made,) = layer_states(
            [caches.CacheList(caches.KVCache(), caches.RotatingKVCache(max_size=8))]
        )
        values = mx.arange(rows, dtype=mx.float32).reshape(1, 1, -1, 1)
        for part in made.parts if rows else ():
            part.begin(0, rows)
            part.cache.update_and_fetch(values, values)
        return made

    given = Given()
    given.layer("one", layer(12))
    taken = Taken(given.tensors(), given.numbers)
    back = taken.layer("one", layer(0), layer(1), 12)
    assert [c.offset for c in back.cache.caches] == [12, 12]
    for mine, expected in zip(back.cache.caches, layer(12).cache.caches, strict=True):
        count = mine.keys.shape[2]
        np.testing.assert_array_equal(mine.keys, expected.keys[..., :count, :])
