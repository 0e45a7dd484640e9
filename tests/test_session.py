"""A conversation: what becomes a turn, what leaves the context, what is reused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mtpx
from mtpx.carry import Adopted
from mtpx.errors import PromptError
from mtpx.session import Reply, Session, Turn

GREEDY = {"temperature": 0.0, "max_tokens": 8}


@pytest.fixture(scope="module")
def model(tiny_pack: Path) -> Iterator[mtpx.Model]:
    with mtpx.load(tiny_pack) as loaded:
        yield loaded


@pytest.fixture
def session(model: mtpx.Model) -> Session:
    return Session(model)


def ask(session: Session, question: str, **options: Any) -> Reply:
    reply = session.ask(question, **{**GREEDY, **options})
    assert "".join(reply) == reply.result.text
    return reply


def test_an_answer_becomes_a_turn_and_the_next_prompt_holds_it(session: Session) -> None:
    first = ask(session, "Hello").result
    second = ask(session, "And?").result
    assert session.turns == [Turn("Hello", first.text), Turn("And?", second.text)]
    told = session.messages(session.turns[:1], "And?")
    assert second.prompt_tokens == len(session.model.encode(told))
    assert session.used == second.prompt_tokens + second.tokens


def test_reuse_changes_no_token(session: Session) -> None:
    for question in ("Hello", "And?", "More"):
        mine = ask(session, question).result.token_ids
        told = session.messages(session.turns[:-1], question)
        assert mine == session.model.generate(told, **GREEDY).token_ids


def test_what_the_turn_before_computed_is_not_computed_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(session, "A question of some length to begin with, so that there is something to keep")
    told: list[tuple[int, int]] = []
    result = ask(session, "And?", on_prefill=lambda done, total: told.append((done, total))).result
    assert result.reused is not None
    assert result.prompt_tokens / 2 < result.reused.tokens < result.prompt_tokens
    assert told == [(result.prompt_tokens, result.prompt_tokens)]


def test_an_answer_that_is_broken_off_stays_as_far_as_it_came(session: Session) -> None:
    reply = session.ask("Hello", **GREEDY)
    piece = next(iter(reply))
    reply.close()
    assert reply.result.stop == "interrupt"
    assert session.turns == [Turn("Hello", reply.result.text)]
    assert reply.result.text.startswith(piece)


def test_a_question_without_an_answer_is_no_turn(session: Session) -> None:
    reply = session.ask("Hello", **GREEDY)
    reply.close()
    assert (session.turns, reply.result.text) == ([], "")


def test_an_error_leaves_the_conversation_as_it_was(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(session, "Hello")
    before = list(session.turns)
    monkeypatch.setattr(
        type(session.model.engine), "verify", lambda *_: (_ for _ in ()).throw(PromptError("no"))
    )
    with pytest.raises(PromptError, match="no"):
        ask(session, "And?", depth=2)
    assert session.turns == before


def test_replacing_puts_the_new_answer_in_the_last_turns_place(session: Session) -> None:
    ask(session, "Hello")
    ask(session, "And?")
    reply = ask(session, "Or?", replace=True)
    assert [turn.question for turn in session.turns] == ["Hello", "Or?"]
    told = session.messages(session.turns[:1], "Or?")
    assert reply.result.prompt_tokens == len(session.model.encode(told))


def test_there_is_nothing_to_replace_or_undo_at_first(session: Session) -> None:
    with pytest.raises(PromptError, match="no turn to replace"):
        session.ask("x", replace=True, max_tokens=1)
    with pytest.raises(PromptError, match="no turn to take back"):
        session.undo()


def test_undo_takes_the_last_turn_back(session: Session) -> None:
    ask(session, "Hello")
    ask(session, "And?")
    assert session.undo().question == "And?"
    assert [turn.question for turn in session.turns] == ["Hello"]


def test_the_oldest_turns_leave_whole_and_the_system_prompt_stays(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.system = "Be kind"
    seen: list[list[dict[str, str]]] = []
    real = type(session.model).encode
    monkeypatch.setattr(
        type(session.model),
        "encode",
        lambda self, messages, **k: seen.append(messages) or real(self, messages, **k),
    )
    forgot = [ask(session, f"question {i} of some length").forgot for i in range(12)]
    last = seen[-1]
    context = session.model.engine.info.context_limit
    assert forgot[0] == 0
    assert sum(forgot) == session.left > 0
    assert last[0] == {"role": "system", "content": "Be kind"}
    kept = [message["content"] for message in last[1:]]
    assert kept == [
        text for turn in session.turns[session.left : -1] for text in (turn.question, turn.answer)
    ] + ["question 11 of some length"]
    assert len(real(session.model, last)) <= context - GREEDY["max_tokens"]
    assert len(session.turns) == 12


def test_a_question_that_fits_in_no_context_is_refused_and_no_turn_is_lost(
    session: Session,
) -> None:
    ask(session, "Hello")
    with pytest.raises(PromptError, match="more than fit in the context"):
        ask(session, "word " * 500)
    assert (len(session.turns), session.left) == (1, 0)


def test_reset_forgets_the_turns_and_keeps_the_system_prompt(session: Session) -> None:
    session.system = "Be kind"
    ask(session, "Hello")
    session.reset()
    assert (session.turns, session.system, session.used) == ([], "Be kind", 0)


# Templates that rewrite history

REWRITES = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{{ m['content'].split('e')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Leaves the beginning of earlier answers out, as templates of thinking models leave out the thinking."""


def test_a_template_that_rewrites_earlier_answers_keeps_what_is_before_them(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = session.model
    assert model.template is not None
    monkeypatch.setattr(
        model, "template", type(model.template)(REWRITES, model.tokenizer.special_texts)
    )
    question = "A question of some length to begin with, so that there is something to keep"
    first = ask(session, question, max_tokens=24).result
    second = ask(session, "And?").result
    assert second.reused is not None
    shared = len(model.encode(session.messages([], question))) - 1
    assert shared <= second.reused.tokens < shared + first.tokens
    assert second.reused.why.startswith("the prompt leaves the earlier one at token ")
    told = session.messages(session.turns[:1], "And?")
    assert second.token_ids == model.generate(told, **GREEDY).token_ids


def test_undo_goes_back_to_what_was_computed_before(session: Session) -> None:
    question = "A question of some length to begin with, so that there is something to keep"
    ask(session, question)
    ask(session, "And?")
    session.undo()
    result = ask(session, "Or else?").result
    assert result.reused is not None
    assert result.reused.tokens >= len(session.model.encode(session.messages([], question))) - 1
    assert isinstance(result.reused.carry, Adopted)


def test_a_session_logs_what_it_stores_and_adopts(model: mtpx.Model) -> None:
    said: list[str] = []
    session = Session(model, log=said.append)
    ask(session, "Hello")
    ask(session, "And?")
    assert ["adopts" in line for line in said] == [True, False, True, False]
    assert "rows of the head up to pair" in said[1]
