"""A tiny hybrid whose head was trained (tests/fixtures/tiny-hybrid): rollback and policies at real
acceptance rates, and a language whose tables only a long memory can answer from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_language import ASK, BEGIN, ENTRY, KEYS, STOP, VALUES, text

pytest.importorskip("mlx.core")

from mtpx import packs
from mtpx.backend import EngineOptions
from mtpx.decode import Request, decode
from mtpx.policy import DepthPolicy, FixedDepth
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.sampling import Sampling
from mtpx.testing import CHECKS, Check, Subject
from mtpx_mlx import MlxBackend
from mtpx_mlx.inspect import InspectableEngine

FOLDER = Path(__file__).parent / "fixtures" / "tiny-hybrid"
RNG = np.random.default_rng(2024)
PROMPTS = [text(RNG, length).tokens for length in (24, 17, 40)]
GREEDY = Sampling(temperature=0.0)


def load(options: EngineOptions) -> InspectableEngine:
    asked = EngineOptions(
        max_width=options.max_width,
        pipeline=options.pipeline,
        context=512,
        extra={"dtype": "float32"},
    )
    return InspectableEngine.of(MlxBackend().load(packs.resolve(FOLDER), asked))


@pytest.fixture(scope="module")
def engine() -> InspectableEngine:
    return load(EngineOptions())


def run(
    engine: InspectableEngine, policy: DepthPolicy, prompt: list[int], budget: int = 40, **how: Any
) -> tuple[list[int], list[Any]]:
    """(delivered tokens, rounds)."""
    sampling = how.pop("sampling", GREEDY)
    slot = engine.open(prompt, sampling, seed=7, **how)
    while not engine.prefill(slot, 512):
        pass
    request = Request(0, slot, sampling, budget)
    rounds = list(decode(engine, policy, [request]))
    slot.close()
    return request.delivered, rounds


def accepted_share(rounds: list[Any]) -> float:
    slots = [s for r in rounds for s in r.slots]
    return sum(s.accepted for s in slots) / sum(s.judged for s in slots)


def test_the_checkpoint_is_small_enough_to_be_committed() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 1_000_000


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_trained_hybrid_conforms(check: Check) -> None:
    found = check(Subject("trained hybrid", load, PROMPTS, tolerance=1e-3, temperature=2.5))
    assert not found.skipped


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_its_drafts_stand_often_and_not_always(engine: InspectableEngine, depth: int) -> None:
    """Sampled at temperature 1, where the language itself does not say what comes next."""
    rounds = []
    for prompt in PROMPTS:
        _, made = run(engine, FixedDepth(depth), prompt, 60, sampling=Sampling(temperature=1.0))
        rounds += made
    assert 0.5 < accepted_share(rounds) < 0.97
    kinds = {(s.verified, s.accepted) for r in rounds for s in r.slots}
    assert {(depth, accepted) for accepted in range(depth + 1)} <= kinds


@pytest.mark.parametrize("policy", [FixedDepth(3), AdaptiveDepth()], ids=["fixed", "adaptive"])
def test_any_policy_gives_the_plain_text(engine: InspectableEngine, policy: DepthPolicy) -> None:
    for prompt in PROMPTS:
        plain, _ = run(engine, FixedDepth(0), prompt, head=False)
        drafted, _ = run(engine, policy, prompt)
        assert drafted == plain


def asked(entries: int, seed: int) -> tuple[list[int], int]:
    """A text that ends by asking for a key of its table, and that key's value."""
    rng = np.random.default_rng(seed)
    keys = rng.choice(list(KEYS), size=entries, replace=False).tolist()
    values = rng.choice(list(VALUES), size=entries).tolist()
    tokens = [BEGIN]
    for key, value in zip(keys, values, strict=True):
        tokens += [key, value, ENTRY]
    filler = text(rng, 60).tokens
    words = filler[filler.index(STOP) + 1 :]
    while ASK in words:
        at = words.index(ASK)
        del words[at : at + 4]
    which = int(rng.integers(entries))
    cut = len(words) - 1 - words[::-1].index(STOP)
    return [*tokens, STOP, *words[: cut + 1], ASK, keys[which]], values[which]


def test_it_answers_from_the_table_far_back(engine: InspectableEngine) -> None:
    """After the key the target, and before it (the key is the draft's own input) the head."""
    target, head = 0, 0
    for seed in range(20):
        prompt, value = asked(4, seed)
        target += run(engine, FixedDepth(0), prompt, 1)[0] == [value]
        slot = engine.open(prompt, GREEDY, 0)
        while not engine.prefill(slot, 512):
            pass
        # The last pair joins the key's embedding with the state at the question mark.
        head += engine.drafted(engine.propose([slot], [1]))[0] == [value]
        slot.close()
    assert target >= 17
    assert head >= 15
