"""One answer: its text, its figures, and what is left of it however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    END,
    PROMPT,
    ROUND_MS,
    TOKENIZER,
    engine_for,
    ids,
    log_softmax,
    stream_of,
)

from mtpx.answer import Generation
from mtpx.backend import Outcome, Slot
from mtpx.errors import BackendError, NonFiniteLogits, PolicyError
from mtpx.generation import Stream
from mtpx.policy import FixedDepth
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.simulate import SimulatedEngine
from mtpx.simulate.language import mix
from mtpx.trace.reader import read
from mtpx.trace.schema import BeliefRecord, EndRecord, RequestRecord
from mtpx.trace.writer import TraceWriter

BLUE = ids("The", " sky", " is", " blue", ".")
DEPTHS = st.integers(0, 4)


def whole(stream: Stream) -> Generation:
    for _ in stream:
        pass
    return stream.result


def records(path: Path, kind: type[Any]) -> list[Any]:
    return [record for record in read(path) if type(record) is kind]


class Counting(TraceWriter):
    """A trace that counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


# Text


@given(DEPTHS)
def test_an_answer_is_what_the_target_says_at_any_depth(depth: int) -> None:
    found = whole(stream_of(engine_for(BLUE), depth=depth))
    assert (found.text, found.stop) == ("The sky is blue.", "end")
    assert found.token_ids == [*BLUE, END]
    assert found.tokens == len(BLUE) + 1


@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=4)), DEPTHS)
def test_a_stop_string_ends_the_text_before_it_at_any_depth(
    said: str, stops: list[str], depth: int
) -> None:
    found = whole(stream_of(engine_for(ids(said)), depth=depth, stop=stops))
    # The stop string that is complete first, and of those the longest.
    ends = [(said.find(s) + len(s), said.find(s)) for s in stops if s in said]
    assert found.text == (said[: min(ends)[1]] if ends else said)
    assert found.stop == ("stop" if ends else "end")


@given(st.text("abc", max_size=20), st.text("abc", min_size=1, max_size=3), DEPTHS)
def test_after_a_stop_string_the_tokens_are_those_the_text_needs(
    said: str, stop: str, depth: int
) -> None:
    found = whole(stream_of(engine_for(ids(said)), depth=depth, stop=[stop]))
    if found.stop == "stop":
        assert found.token_ids == ids(found.text)
        assert found.tokens == len(found.token_ids)


def test_a_token_that_a_stop_string_cuts_in_two_is_one_of_the_texts() -> None:
    found = whole(stream_of(engine_for(BLUE), stop=["ue."]))
    assert (found.text, found.token_ids) == ("The sky is bl", BLUE[:4])


def test_a_stop_string_in_mid_round_leaves_the_trace_with_all_that_was_decoded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.jsonl"
    found = whole(stream_of(engine_for(BLUE), depth=4, stop=[" is"], trace=TraceWriter(path)))
    (end,) = records(path, EndRecord)
    assert (found.tokens, end.tokens) == (2, 5)
    assert end.tokens == sum(r.committed for r in records(path, Round))


def test_a_stop_string_that_was_only_begun_is_delivered_at_the_end() -> None:
    assert whole(stream_of(engine_for(BLUE), stop=["blue.!"])).text == "The sky is blue."


@given(st.text(max_size=12).filter(lambda s: "\ufffd" not in s), DEPTHS)
def test_a_character_is_delivered_whole_however_its_bytes_fall_on_tokens(
    said: str, depth: int
) -> None:
    pieces = list(stream_of(engine_for(ids(said)), depth=depth, budget=200))
    assert "".join(pieces) == said
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_cut_by_the_budget_shows_as_a_replacement() -> None:
    assert whole(stream_of(engine_for(ids("né")), budget=2)).text == "n\ufffd"


# Where it ends


@given(DEPTHS)
def test_a_budget_of_one_is_one_token_and_no_rate(depth: int) -> None:
    found = whole(stream_of(engine_for(BLUE), depth=depth, budget=1))
    assert (found.text, found.stop, found.tokens, found.rounds) == ("The", "length", 1, 1)
    assert found.tok_s is None
    assert found.ttft_ms is not None


@given(DEPTHS, st.integers(1, 6))
def test_an_answer_that_fills_the_context_says_so(depth: int, room: int) -> None:
    engine = engine_for(ids("abcdefgh"), context=len(PROMPT) + room)
    found = whole(stream_of(engine, depth=depth, budget=room))
    assert (found.stop, found.tokens) == ("context", room)


def test_an_answer_that_ends_as_the_context_is_full_has_ended() -> None:
    engine = engine_for(BLUE, context=len(PROMPT) + len(BLUE) + 1)
    assert whole(stream_of(engine, budget=len(BLUE) + 1)).stop == "end"


def test_an_ignored_end_is_passed_and_what_follows_is_in_no_rate(tmp_path: Path) -> None:
    said = [*ids("ab"), END, *ids("cd")]
    path = tmp_path / "t.jsonl"
    stream = stream_of(engine_for(said), budget=5, ignore_eos=True, trace=TraceWriter(path))
    found = whole(stream)
    (end,) = records(path, EndRecord)
    assert (found.text, found.stop, end.tail_tokens) == ("abcd", "length", 2)
    assert found.tok_s == end.rate == pytest.approx(2 / (2 * ROUND_MS / 1e3))
    assert records(path, RequestRecord)[0].ignore_eos


# Figures


def test_the_rate_counts_what_came_after_the_first_round_in_the_time_it_took() -> None:
    found = whole(stream_of(engine_for(ids("abcdefgh")), depth=2, budget=9))
    assert (found.tokens, found.rounds) == (9, 3)
    assert found.tok_s == pytest.approx(6 / (2 * ROUND_MS / 1e3))


def test_the_rate_is_the_traces_own(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    found = whole(stream_of(engine_for(BLUE), depth=1, trace=TraceWriter(path)))
    assert found.tok_s == records(path, EndRecord)[0].rate


def test_the_first_token_is_timed_from_the_opening_on_prefill_included() -> None:
    found = whole(stream_of(engine_for(BLUE)))
    assert found.prefill_ms == pytest.approx(len(PROMPT) - 1)
    assert found.ttft_ms == pytest.approx(len(PROMPT) - 1 + ROUND_MS)


def test_acceptance_counts_a_position_only_where_all_before_it_stood() -> None:
    engine = engine_for(ids("abcdefghijklmnop"), acceptance=(1.0, 0.0, 1.0))
    found = whole(stream_of(engine, depth=3, budget=8))
    first, second = found.accepted_per_position
    # Rounds of two tokens; the last but one has room for two drafts, the last for one.
    assert (found.rounds, first.reached, first.rate) == (4, 4, 1.0)
    assert (second.reached, second.accepted, second.rate) == (3, 0, 0.0)


def test_log_probabilities_are_the_targets_own_and_the_request_is_parked(tmp_path: Path) -> None:
    engine, path = engine_for(BLUE), tmp_path / "t.jsonl"
    stream = stream_of(
        engine,
        depth=2,
        sampling=Sampling(logprobs=2, temperature=5.0),
        why_plain="log-probabilities were asked for",
        trace=TraceWriter(path),
    )
    found = whole(stream)
    assert found.speculation == "log-probabilities were asked for"
    assert all(slot.drafted == 0 for round in records(path, Round) for slot in round.slots)
    assert found.logprobs is not None
    assert [p.token for p in found.logprobs] == found.token_ids
    state = engine.language.start
    for token in PROMPT:
        state = mix(state, token)
    for said in found.logprobs:
        expected = log_softmax(engine.language.logits(state))
        assert said.logprob == pytest.approx(expected[said.token])
        assert said.text == TOKENIZER.token_text(said.token)
        assert [v for _, _, v in said.top] == pytest.approx(sorted(expected)[::-1][:2])
        state = mix(state, said.token)


def test_log_probabilities_end_where_a_stop_string_cut_the_tokens() -> None:
    found = whole(stream_of(engine_for(BLUE), sampling=Sampling(logprobs=0), stop=[" is"]))
    assert found.logprobs is not None
    assert [p.token for p in found.logprobs] == found.token_ids == BLUE[:2]


def test_progress_through_the_prompt_never_passes_its_end() -> None:
    prompt = [65] * 700
    engine, seen = engine_for(BLUE, prompt=prompt), []
    whole(stream_of(engine, tokens=prompt, on_prefill=lambda *at: seen.append(at)))
    assert seen == [(256, 700), (512, 700), (700, 700)]


# Cut short


def interrupting(engine: SimulatedEngine, rounds: int, error: BaseException) -> SimulatedEngine:
    """Makes the plain step after this many raise."""
    real, steps = engine.plain, iter(range(10**6))

    def plain(slots: Sequence[Slot]) -> list[Outcome]:
        if next(steps) == rounds:
            raise error
        return real(slots)

    engine.plain = plain  # type: ignore[method-assign]
    return engine


def test_ctrl_c_in_decode_keeps_what_was_made(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    stream = stream_of(
        interrupting(engine_for(BLUE), 2, KeyboardInterrupt()), trace=TraceWriter(path)
    )
    with pytest.raises(KeyboardInterrupt):
        whole(stream)
    assert (stream.result.text, stream.result.stop) == ("The sky", "interrupt")
    (end,) = records(path, EndRecord)
    assert (end.stop, end.tokens) == ("interrupt", 2)


def test_ctrl_c_in_prefill_leaves_a_request_without_its_time_and_an_end(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    path, prompt = tmp_path / "t.jsonl", [65] * 600
    stream = stream_of(
        engine_for(BLUE, prompt=prompt), tokens=prompt, on_prefill=stop, trace=TraceWriter(path)
    )
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert (stream.result.tokens, stream.result.stop) == (0, "interrupt")
    assert records(path, RequestRecord)[0].prefill_ms is None
    assert records(path, EndRecord)[0].stop == "interrupt"


def test_a_round_that_ctrl_c_cuts_after_its_tokens_were_committed_counts_nowhere(
    tmp_path: Path,
) -> None:
    class Interrupting(FixedDepth):
        def observe(self, round: Round) -> None:
            if round.index == 1:
                raise KeyboardInterrupt

    path = tmp_path / "t.jsonl"
    stream = stream_of(engine_for(BLUE), policy=Interrupting(0), trace=TraceWriter(path))
    with pytest.raises(KeyboardInterrupt):
        whole(stream)
    assert (stream.result.text, stream.result.tokens, stream.result.rounds) == ("The", 1, 1)
    assert records(path, EndRecord)[0].tokens == len(records(path, Round)) == 1


def test_held_back_text_is_kept_when_ctrl_c_comes() -> None:
    stream = stream_of(interrupting(engine_for(BLUE), 4, KeyboardInterrupt()), stop=[" blue!"])
    with pytest.raises(KeyboardInterrupt):
        whole(stream)
    assert stream.result.text == "The sky is blue"


def test_walking_away_keeps_what_was_made_and_frees_the_engine(tmp_path: Path) -> None:
    engine, path = engine_for(BLUE), tmp_path / "t.jsonl"
    with stream_of(engine, trace=TraceWriter(path)) as stream:
        assert next(stream) == "The"
    assert (stream.result.text, stream.result.stop) == ("The", "interrupt")
    assert records(path, EndRecord)[0].stop == "interrupt"
    assert whole(stream_of(engine)).stop == "end"


def test_walking_away_after_the_last_piece_is_no_interruption() -> None:
    with stream_of(engine_for(BLUE), budget=2) as stream:
        assert [next(stream), next(stream)] == ["The", " sky"]
    assert stream.result.stop == "length"


def test_walking_away_before_the_first_piece_leaves_a_whole_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    stream = stream_of(engine_for(BLUE), trace=TraceWriter(path))
    stream.close()
    assert (stream.result.text, stream.result.stop) == ("", "interrupt")
    assert [type(r) for r in read(path)] == [RequestRecord, EndRecord]
    assert list(stream) == []


def test_there_is_no_result_before_the_end() -> None:
    stream = stream_of(engine_for(BLUE))
    next(stream)
    with pytest.raises(RuntimeError, match="not finished"):
        _ = stream.result


def test_an_error_in_decode_leaves_the_text_and_an_end_with_its_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    sentence = "the logits are not finite"
    stream = stream_of(
        interrupting(engine_for(BLUE), 2, NonFiniteLogits(sentence)), trace=TraceWriter(path)
    )
    with pytest.raises(NonFiniteLogits):
        whole(stream)
    assert (stream.result.text, stream.result.stop) == ("The sky", "error")
    (end,) = records(path, EndRecord)
    assert (end.stop, end.error, end.tokens) == ("error", sentence, 2)


def test_a_bug_in_a_callback_is_told_with_its_kind(tmp_path: Path) -> None:
    def broken(round: Round) -> None:
        raise KeyError("lost")

    path = tmp_path / "t.jsonl"
    with pytest.raises(KeyError):
        whole(stream_of(engine_for(BLUE), on_round=broken, trace=TraceWriter(path)))
    assert records(path, EndRecord)[0].error == "KeyError: 'lost'"


def test_a_request_the_engine_refuses_leaves_an_end_with_the_sentence(tmp_path: Path) -> None:
    engine, path = engine_for(BLUE), tmp_path / "t.jsonl"
    with stream_of(engine) as first:
        next(first)
        with pytest.raises(BackendError):
            whole(stream_of(engine, trace=TraceWriter(path)))
    assert "are open" in records(path, EndRecord)[0].error


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), NonFiniteLogits("no")])
def test_the_trace_is_closed_once_however_the_answer_ends(
    tmp_path: Path, error: BaseException | None
) -> None:
    engine, trace = engine_for(BLUE), Counting(tmp_path / "t.jsonl")
    stream = stream_of(interrupting(engine, 1, error) if error else engine, trace=trace)
    with contextlib.suppress(KeyboardInterrupt, NonFiniteLogits):
        whole(stream)
    stream.close()
    assert trace.closed == 1


def test_the_slot_and_the_trace_are_let_go_of_even_if_the_last_record_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, trace = engine_for(BLUE), Counting(tmp_path / "t.jsonl")
    stream = stream_of(engine, trace=trace)
    next(stream)

    def again(record: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trace, "write", again)
    with pytest.raises(KeyboardInterrupt):
        stream.close()
    assert trace.closed == 1
    assert (stream.result.text, stream.result.stop) == ("The", "interrupt")
    assert whole(stream_of(engine)).stop == "end"


# What the trace is told


class Believing(FixedDepth):
    """Believes in the number of rounds it has seen."""

    seen = 0

    def observe(self, round: Round) -> None:
        self.seen += 1

    def explain(self) -> dict[str, Any]:
        return {"seen": self.seen}


@pytest.mark.parametrize(
    ("budget", "expected"), [(10, [9]), (64, [63]), (65, [63, 64]), (130, [63, 127, 129])]
)
def test_beliefs_are_recorded_every_64_rounds_and_at_the_end(
    tmp_path: Path, budget: int, expected: list[int]
) -> None:
    path = tmp_path / "t.jsonl"
    engine = engine_for(ids("a" * 200))
    whole(stream_of(engine, policy=Believing(0), budget=budget, trace=TraceWriter(path)))
    beliefs = records(path, BeliefRecord)
    assert [b.round for b in beliefs] == expected
    assert [b.belief["seen"] for b in beliefs] == [index + 1 for index in expected]


def test_a_policy_that_cannot_explain_itself_is_named(tmp_path: Path) -> None:
    class Broken(FixedDepth):
        def explain(self) -> dict[str, Any]:
            raise ZeroDivisionError("no rounds")

    engine = engine_for(ids("a" * 200))
    stream = stream_of(
        engine, policy=Broken(0), budget=100, trace=TraceWriter(tmp_path / "t.jsonl")
    )
    with pytest.raises(PolicyError, match="'fixed' cannot explain itself: ZeroDivisionError"):
        whole(stream)


def test_a_policy_that_cannot_explain_itself_at_the_end_costs_no_end_record(tmp_path: Path) -> None:
    class Broken(FixedDepth):
        def explain(self) -> dict[str, Any]:
            return {"what": object()}

    path = tmp_path / "t.jsonl"
    found = whole(stream_of(engine_for(BLUE), policy=Broken(0), trace=TraceWriter(path)))
    assert found.stop == "end"
    assert records(path, EndRecord)[0].stop == "end"


def test_no_text_is_in_a_trace_unless_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    whole(stream_of(engine_for(BLUE), trace=TraceWriter(path)))
    assert b"sky" not in path.read_bytes()
    assert records(path, RequestRecord)[0].text is None


def test_with_text_the_trace_holds_prompt_and_answer(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    whole(stream_of(engine_for(BLUE), trace=TraceWriter(path), trace_text=True))
    assert records(path, RequestRecord)[0].text == "Why?"
    assert records(path, EndRecord)[0].text == "The sky is blue."
