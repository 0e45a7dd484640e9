"""The embedded model: the text of warm turns is that of cold ones."""

from __future__ import annotations

from itertools import islice

import pytest

import mtpx
from mtpx import packs
from mtpx.bench.suites import suite, suite_names
from mtpx.bench.timed import Task, logit_gap
from mtpx.carry import Adopted
from mtpx.sampling import Sampling
from mtpx.session import Session

pytestmark = [pytest.mark.model, pytest.mark.slow]

CONVERSATIONS, TURNS, TOKENS = 20, 6, 12
TIE = 2e-3
"""How far apart two logits may be for rounding to decide between them (float32, thousands of terms)."""


def test_warm_text_is_cold_text_in_every_turn() -> None:
    questions = [p.content for name in suite_names() for p in suite(name)]
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in questions]
    asked = iter(texts * (1 + CONVERSATIONS * TURNS // len(texts)))
    ties = turns = 0
    with mtpx.load(packs.EMBEDDED, context=2048, precision="float32", compile="off") as model:
        for _ in range(CONVERSATIONS):
            session = Session(model)
            for turn, question in enumerate(islice(asked, TURNS)):
                reply = session.ask(question, max_tokens=TOKENS, temperature=0.0, depth=2)
                warm = "".join(reply)
                result = reply.result
                told = session.messages(session.turns[session.left : -1], question)
                cold = model.generate(told, max_tokens=TOKENS, temperature=0.0, depth="off")
                if turn:
                    assert result.reused is not None
                    assert isinstance(result.reused.carry, Adopted)
                    assert result.reused.tokens > 0
                turns += 1
                if warm != cold.text:
                    task = Task(model.encode(told), Sampling(), 0, TOKENS, model.end_ids)
                    gap = logit_gap(model.engine, task, cold.token_ids, result.token_ids)
                    assert gap is not None, (warm, cold.text)
                    assert gap < TIE, (gap, warm, cold.text)
                    ties += 1
    assert turns == CONVERSATIONS * TURNS
    assert ties <= 1
