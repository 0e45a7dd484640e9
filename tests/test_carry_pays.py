"""What the carry is for: where drafts need long context, a head that begins blind guesses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from copying_language import PERIOD, VOCABULARY, Copier, make_copier

from mtpx.backend import EngineOptions
from mtpx.bench.turns import BLIND, COLD, PLAIN, WARM, TurnsResult, run_turns
from mtpx.sampling import Sampling
from mtpx.trace.acceptance import Proportion
from mtpx_torch import TorchBackend


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copier]:
    options = EngineOptions(device="cpu", threads=1, context=1024, compile="off")
    engine = TorchBackend().load(make_copier(tmp_path_factory.mktemp("copier")), options)
    yield Copier(engine)
    engine.close()


@pytest.fixture(scope="module")
def found(copier: Copier) -> TurnsResult:
    """Three conversations of four turns: the first question longer than the period, the others short."""
    random = np.random.default_rng(3)

    def question(length: int) -> str:
        return " ".join(str(t) for t in random.integers(3, VOCABULARY, length))

    talks = [[question(PERIOD + 10), *(question(6) for _ in range(3))] for _ in range(3)]
    return run_turns(copier, talks, depth=1, max_tokens=16, sampling=Sampling())


def accepted(found: TurnsResult, arm: str) -> Proportion:
    (position,) = next(a.acceptance for a in found.arms if a.arm == arm)
    assert position.conditional is not None
    return position.conditional


def test_the_hand_made_target_copies(copier: Copier) -> None:
    prompt = [int(t) for t in np.random.default_rng(1).integers(3, VOCABULARY, PERIOD + 5)]
    slot = copier.engine.open(prompt, Sampling(), 0, head=False)
    while not copier.engine.prefill(slot, 256):
        pass
    said = [copier.engine.plain([slot])[0].committed[0] for _ in range(PERIOD)]
    slot.close()
    assert said == (prompt + said)[len(prompt) - PERIOD :][:PERIOD]


def test_with_the_carry_as_many_drafts_stand_as_cold(found: TurnsResult) -> None:
    assert accepted(found, WARM) == accepted(found, COLD)
    assert accepted(found, COLD).low > 0.9


def test_without_it_fewer_stand(found: TurnsResult) -> None:
    assert accepted(found, BLIND).high < accepted(found, WARM).low


def test_the_text_is_the_same_in_all_arms(found: TurnsResult) -> None:
    assert all(arm.same_text == arm.turns == 9 for arm in found.arms)
    assert [arm.arm for arm in found.arms] == [COLD, BLIND, WARM, PLAIN]
