"""Depth "auto": the adaptive policy behind an answer, and what it keeps for the next process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_pack import make_tiny_pack

import mtpx
from mtpx.errors import PolicyError
from mtpx.policy import FixedDepth, store
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.registry import PolicyOptions
from mtpx.simulate.light import play
from mtpx.simulate.scenario import Scenario
from mtpx.trace.reader import read
from mtpx.trace.schema import BeliefRecord, RequestRecord, Round, RunRecord
from mtpx_cli.run import speculation

LONG = {"max_tokens": 90, "ignore_eos": True, "temperature": 0.0}


@pytest.fixture(autouse=True)
def _own(own_folders: Path) -> None:
    pass


def _adaptive(model: mtpx.Model) -> AdaptiveDepth:
    policy = model._policies.use(PolicyOptions())
    assert isinstance(policy, AdaptiveDepth)
    return policy


def test_the_text_is_the_plain_text_and_the_policy_chose_several_depths(tiny_pack: Path) -> None:
    seen: list[Round] = []
    with mtpx.load(tiny_pack, threads=1) as model:
        plain = model.generate("one two", depth="off", **LONG)
        auto = model.generate("one two", on_round=seen.append, **LONG)
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
            rounds = model._policies.use(PolicyOptions()).state()
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
        assert not _adaptive(model).seen.costs


WARM = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0}


def test_a_seed_asks_for_a_text_again_and_so_for_a_depth_that_follows_no_clock(
    tiny_pack: Path,
) -> None:
    with mtpx.load(tiny_pack, threads=1) as model:
        one, again = (model.generate("one two", seed=5, **WARM) for _ in range(2))
        assert (one.depth, one.token_ids) == (1, again.token_ids)
        assert model.generate("one two", seed=5, depth="auto", **WARM).depth == "auto"
        assert model.generate("one two", seed=5, temperature=0.0, max_tokens=4).depth == "auto"


def test_a_policy_of_ones_own_chooses_and_nothing_of_it_is_kept(tiny_pack: Path) -> None:
    seen: list[Round] = []
    with mtpx.load(tiny_pack, threads=1) as model:
        model.generate("one two", policy=FixedDepth(3), on_round=seen.append, **LONG)
    assert max(round.depth for round in seen) == 3
    assert not store.kept()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depth": 2, "policy": "adaptive"}, "depth 2 is a fixed depth"),
        ({"depth": 2, "policy": FixedDepth(1)}, "depth 2 is a fixed depth"),
        ({"policy": "nonsense"}, "there is no policy 'nonsense'; there are adaptive"),
        ({"policy": "measured"}, "`mtpx measure tiny --calibrate` makes one"),
        ({"policy": PolicyOptions(cost_feedback=False)}, "no configured costs"),
    ],
)
def test_a_policy_that_cannot_be_used_is_one_sentence(
    tiny_pack: Path, options: dict[str, Any], sentence: str
) -> None:
    with mtpx.load(tiny_pack, threads=1) as model, pytest.raises(PolicyError, match=sentence):
        model.stream("one two", **options)


def test_the_models_own_policy_holds_unless_an_answer_names_another(tiny_pack: Path) -> None:
    with mtpx.load(tiny_pack, threads=1, policy="fixed") as model:
        assert model.generate("one two", max_tokens=2).depth == 1
        assert model.generate("one two", max_tokens=2, policy="ollama").depth == "auto"
    with mtpx.load(tiny_pack, threads=1, policy=PolicyOptions("fixed", depth=9)) as model:
        assert model.generate("one two", max_tokens=2).depth == 4


def test_a_pack_without_a_head_decodes_plain_whichever_policy_is_set(tmp_path: Path) -> None:
    pack = make_tiny_pack(tmp_path, head=False)
    for policy in ("adaptive", "measured", PolicyOptions("fixed", depth=2)):
        with mtpx.load(pack, threads=1, policy=policy) as model:
            for depth in (None, "auto"):
                found = model.generate("one two", max_tokens=2, depth=depth)
                assert (found.depth, found.speculation) == (0, "the pack has no MTP head")


def test_what_is_learned_without_cost_feedback_does_not_replace_what_was_measured(
    tiny_pack: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_pack, tmp_path / "priced")
    manifest = folder / "pack.toml"
    manifest.write_text("prior_costs = [1.0, 1.1, 1.2]\n" + manifest.read_text())
    with mtpx.load(folder, threads=1) as model:
        model.generate("one two", **LONG)
        model.generate("one two", policy=PolicyOptions(cost_feedback=False), **LONG)
    states = {s.key.policy: s.state for s in store.kept().values() if isinstance(s, store.Saved)}
    assert states["adaptive"]["costs"]
    assert not states["adaptive, configured costs"]["costs"]


class Parks(FixedDepth):
    name = "parks"

    def explain(self) -> dict[str, Any]:
        return {"parked": "it never pays"}


def test_an_answer_in_which_nothing_was_drafted_says_why(tiny_pack: Path) -> None:
    with mtpx.load(tiny_pack, threads=1) as model:
        found = model.generate("one two", policy=Parks(0), max_tokens=5)
        assert found.speculation == "parked by the policy 'parks', it never pays"
        assert (found.policy, found.mean_depth) == ("parks", 0.0)
        assert model.generate("one two", policy=Parks(1), max_tokens=5).speculation == "on"


def test_the_line_under_an_answer_says_how_deep_the_policy_went_or_why_it_parked(
    tiny_pack: Path,
) -> None:
    with mtpx.load(tiny_pack, threads=1) as model:
        parked = model.generate("one two", policy=Parks(0), max_tokens=5)
        drafted = model.generate("one two", policy=Parks(1), max_tokens=30, ignore_eos=True)
    assert speculation(parked) == "plain: parked by the policy 'parks', it never pays"
    assert speculation(drafted).startswith("parks: 1.0 drafts a round, accepted ")


def test_the_adaptive_policy_says_why_it_parks() -> None:
    policy = AdaptiveDepth()
    play(policy, Scenario(acceptance=[0.1], cost_ms={1: [10.0, 20.0]}), rounds=200)
    assert policy.selected == 0
    said = policy.explain()["parked"]
    assert said.startswith("drafts do not pay here: a round at depth 1 takes 2.")
    assert " times a plain one and gives 1." in said
