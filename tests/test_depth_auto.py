"""Depth "auto": the adaptive policy behind an answer, and what it keeps for the next process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mtpx
from mtpx.policy import store
from mtpx.trace.reader import read
from mtpx.trace.schema import BeliefRecord, RequestRecord, Round, RunRecord

LONG = {"max_tokens": 90, "ignore_eos": True, "temperature": 0.0}


@pytest.fixture(autouse=True)
def _own(own_folders: Path) -> None:
    pass


def test_the_text_is_the_plain_text_and_the_policy_chose_several_depths(tiny_pack: Path) -> None:
    seen: list[Round] = []
    with mtpx.load(tiny_pack, threads=1) as model:
        plain = model.generate("one two", depth="off", **LONG)
        auto = model.generate("one two", depth="auto", on_round=seen.append, **LONG)
    assert auto.token_ids == plain.token_ids
    assert (plain.depth, auto.depth) == (0, "auto")
    assert len({round.depth for round in seen}) > 1


def test_a_trace_tells_the_policy_its_parameters_and_its_beliefs(
    tiny_pack: Path, tmp_path: Path
) -> None:
    with mtpx.load(tiny_pack, threads=1) as model:
        model.generate("one two", depth="auto", trace=tmp_path / "t.jsonl", **LONG)
    records = list(read(tmp_path / "t.jsonl"))
    (run,) = [r for r in records if isinstance(r, RunRecord)]
    (request,) = [r for r in records if isinstance(r, RequestRecord)]
    assert run.policy == "adaptive"
    assert (request.mode, request.depth) == ("mtp", None)
    assert any(isinstance(r, BeliefRecord) for r in records)
    assert all(r.decision and r.decision.reason for r in records if isinstance(r, Round))


def test_what_was_learned_outlives_the_model(tiny_pack: Path) -> None:
    for _ in range(2):
        with mtpx.load(tiny_pack, threads=1) as model:
            model.generate("one two", depth="auto", **LONG)
            rounds = model._learning.policy.state()
    (saved,) = store.kept().values()
    assert isinstance(saved, store.Saved)
    assert json.loads(json.dumps(saved.state)) == json.loads(json.dumps(rounds))


def test_what_was_learned_elsewhere_is_refused_in_one_sentence(tiny_pack: Path) -> None:
    with mtpx.load(tiny_pack, threads=1) as model:
        model.generate("one two", depth="auto", **LONG)
    said: list[str] = []
    with mtpx.load(tiny_pack, threads=2, warn=said.append) as model:
        model.generate("one two", depth="auto", max_tokens=4)
    assert len(said) == 1
    assert "threads was '1', is '2'" in said[0]


def test_a_state_directory_that_cannot_be_written_is_said_once(
    tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MTPX_STATE_DIR", str(tmp_path / "file"))
    said: list[str] = []
    with mtpx.load(tiny_pack, threads=1, warn=said.append) as model:
        for _ in range(2):
            assert model.generate("one two", depth="auto", max_tokens=4).tokens == 4
    assert len(said) == 1


def test_log_probabilities_park_it_and_teach_it_nothing(tiny_pack: Path) -> None:
    with mtpx.load(tiny_pack, threads=1) as model:
        answer = model.generate("one two", depth="auto", logprobs=1, **LONG)
        assert answer.speculation == "log-probabilities were asked for"
        assert answer.rounds == answer.tokens
        assert not model._learning.policy.costs
