"""Warm turns give the cold turns' text: conversations of random tokens on every backend and kind of
target, with answers asked again, questions edited and plain turns among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qwen_makers import make_qwen
from torch_makers import make_pack

from mtpx import packs, snapshots
from mtpx.backend import Engine, EngineOptions
from mtpx.carry import Adopted
from mtpx.testing import Finding, Subject
from mtpx.testing.drive import compare_texts, drafted_steps, opened, plain_steps, plain_text

CONVERSATIONS, TURNS = 20, 6
OPTIONS = EngineOptions(device="cpu", context=512)
EAGER = EngineOptions(device="cpu", context=512, compile="off")
VOCABULARY = 48

Kind = Callable[[Path], Engine]


def torch_llama(folder: Path) -> Engine:
    from mtpx_torch import TorchBackend
    from mtpx_torch.inspect import InspectableEngine

    return InspectableEngine.of(TorchBackend().load(make_pack(folder), EAGER))


def mlx_llama(folder: Path) -> Engine:
    pytest.importorskip("mlx.core")
    from mtpx_mlx import MlxBackend
    from mtpx_mlx.inspect import InspectableEngine

    return InspectableEngine.of(MlxBackend().load(make_pack(folder), OPTIONS))


def mlx_hybrid(folder: Path) -> Engine:
    pytest.importorskip("mlx.core")
    from mtpx_mlx import MlxBackend
    from mtpx_mlx.inspect import InspectableEngine

    return InspectableEngine.of(MlxBackend().load(packs.resolve(make_qwen(folder)), OPTIONS))


KINDS: list[Kind] = [torch_llama, mlx_llama, mlx_hybrid]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    loaded = request.param(tmp_path_factory.mktemp("warm"))
    with pytest.MonkeyPatch.context() as patch:
        # Conversations of tests are short, and recurrent states are to be restored in them.
        patch.setattr(snapshots._Pinned, "value", 0)
        yield loaded
    loaded.close()


def subject(engine: Engine) -> Subject:
    return Subject("warm", lambda options: engine, [[1, 2]], tolerance=1e-3)


def test_a_warm_turns_text_is_the_cold_turns(engine: Engine) -> None:
    """The answers are drafted at depth 1, now and then decoded plain; the cold text is a plain run's."""
    random = np.random.default_rng(7)

    def some(least: int, most: int) -> list[int]:
        return [int(t) for t in random.integers(3, VOCABULARY, random.integers(least, most))]

    found, adopted, reused = Finding(), 0, 0
    for number in range(CONVERSATIONS):
        history, kept = some(3, 12), None
        for turn in range(TURNS):
            prompt = history + some(2, 6)
            head = random.random() > 0.2
            slot = opened(engine, prompt, session=number + 1, reuse=kept, head=head)
            if turn:
                adopted += isinstance(slot.reused.carry, Adopted)
                reused += slot.reused.tokens
            said = drafted_steps(engine, slot, 3) if head else plain_steps(engine, slot, 4)
            kept = slot.snapshot()
            slot.close()
            cold = plain_text(engine, prompt, len(said))
            what = f"conversation {number + 1}, turn {turn + 1}"
            found.add(compare_texts(subject(engine), engine, prompt, cold, said, what))
            # The next question follows; or this one is edited, or its answer was cut short.
            if (fate := random.random()) > 0.35:
                history = prompt + said
            elif fate > 0.15:
                history = prompt + said[:1]
    assert found.compared > 3 * CONVERSATIONS * TURNS
    assert found.ties <= 1
    assert adopted > CONVERSATIONS
    assert reused > CONVERSATIONS * TURNS
