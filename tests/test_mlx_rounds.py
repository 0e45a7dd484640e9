"""How an MLX round meets the device: one evaluation, and nothing that waits for the step in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from torch_makers import make_pack

from mtpx import backends
from mtpx.backend import EngineOptions
from mtpx.packs import Pack
from mtpx.sampling import Sampling
from mtpx_mlx import MlxBackend, engine
from mtpx_mlx.engine import MlxEngine

PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("pack"))


def opened(pack: Pack, how: Sampling, *, pipeline: bool) -> tuple[MlxEngine, Any]:
    on = MlxBackend().load(pack, EngineOptions(max_width=2, pipeline=pipeline))
    slot = on.open(PROMPT, how, 0)
    while not on.prefill(slot, 64):
        pass
    return on, slot


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the host has waited for the device since it was last asked."""
    calls: list[None] = []
    real = mx.eval

    def counting(*args: Any) -> None:
        calls.append(None)
        real(*args)

    monkeypatch.setattr(mx, "eval", counting)

    def since() -> int:
        count = len(calls)
        calls.clear()
        return count

    return since


@pytest.mark.parametrize(
    "how",
    [
        Sampling(),
        Sampling(temperature=1.0, top_p=0.9),
        Sampling(repeat_penalty=1.2),
        Sampling(logprobs=2),
    ],
    ids=["greedy", "sampled", "penalised", "logprobs"],
)
def test_a_round_evaluates_once(pack: Pack, how: Sampling, evaluations: Callable[[], int]) -> None:
    on, slot = opened(pack, how, pipeline=False)
    evaluations()
    for _ in range(3):
        drafts = on.propose([slot], [3])
        on.verify([slot], drafts, drafts.counts)
        assert evaluations() == 1
        on.plain([slot])
        assert evaluations() == 1


def test_reading_confidences_first_is_the_second_evaluation(
    pack: Pack, evaluations: Callable[[], int]
) -> None:
    on, slot = opened(pack, Sampling(), pipeline=False)
    evaluations()
    drafts = on.propose([slot], [3])
    assert drafts.confidence.shape == (1, 3)
    assert evaluations() == 1
    on.verify([slot], drafts, drafts.counts)
    assert evaluations() == 1


def test_a_pipelined_step_reads_what_is_in_flight_and_asks_for_nothing_new(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything new would be computed after the next step, which is launched already: the wait for
    this token would be a wait for the next one, too."""
    on, slot = opened(pack, Sampling(), pipeline=True)
    on.plain([slot])
    flight, asked = slot.flight, []
    real = engine.read

    def watched(parts: Any, *also: Any) -> Any:
        asked.extend([*(a for part in parts for a in part.values()), *also])
        return real(parts, *also)

    monkeypatch.setattr(engine, "read", watched)
    on.plain([slot])
    assert slot.flight is not flight
    assert sorted(map(id, asked)) == sorted([id(flight.token), id(flight.peak)])


def test_the_backend_says_which_architectures_it_reads() -> None:
    assert backends.readers(["gemma2"]) == ["mlx"]
    assert backends.readers(["spaghetti", "../llama", "cache"]) == []
