"""`mtpx.load` and what a program does with the model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiny_pack import CONTEXT, make_tiny_pack, write_manifest

import mtpx
from mtpx import packs
from mtpx.api import SEEDS, Model
from mtpx.errors import BackendError, PackError, PolicyError, PromptError, SamplingError
from mtpx.sampling import Sampling
from mtpx.trace.reader import read
from mtpx.trace.schema import EndRecord, RequestRecord, RunRecord

WARM = {"temperature": 1.0, "max_tokens": 12}


@pytest.fixture(autouse=True)
def _own(own_folders: Path) -> None:
    pass


@pytest.fixture(scope="module")
def model(tiny_pack: Path) -> Iterator[Model]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MTPX_STATE_DIR", str(tiny_pack.parent / "state"))
        loaded = mtpx.load(tiny_pack, threads=1)
    with loaded:
        yield loaded


# Loading


def test_importing_mtpx_imports_no_array_library() -> None:
    script = "import sys, mtpx; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_pack_loads_from_its_folder_and_is_the_default_from_then_on(tiny_pack: Path) -> None:
    with mtpx.load(tiny_pack) as loaded:
        assert loaded.pack.name == "tiny"
    assert packs.default_name() == str(tiny_pack)
    with mtpx.load() as loaded:
        assert loaded.pack.name == "tiny"


def test_a_pack_that_does_not_load_is_not_remembered(copied: Path) -> None:
    (copied / "weights" / "tokenizer.json").write_text("{}")
    write_manifest(copied)
    with pytest.raises(PackError, match=r"tokenizer\.json cannot be used"):
        mtpx.load(copied)
    assert packs.last_used() is None


def test_an_unknown_pack_is_told_before_a_backend_is_looked_for() -> None:
    with pytest.raises(PackError, match=r"no pack is called 'smollm'.*did you mean 'smollm2-135m'"):
        mtpx.load("smollm", backend="none of this name")


def test_a_missing_backend_is_told_before_anything_is_fetched() -> None:
    with pytest.raises(BackendError, match="there is no backend 'abacus'"):
        mtpx.load(packs.EMBEDDED, backend="abacus")


def test_a_template_that_cannot_be_used_is_told_before_the_weights_are_loaded(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = copied / "weights" / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "{% for %}"}))
    write_manifest(copied)

    def load(*args: Any) -> None:
        raise AssertionError("the weights were loaded")

    monkeypatch.setattr("mtpx_torch.TorchBackend.load", load)
    with pytest.raises(PackError, match="chat template cannot be used"):
        mtpx.load(copied)


# Prompts


def test_a_question_a_list_of_messages_and_its_text_are_the_same_prompt(model: Model) -> None:
    asked = model.generate("Hi", system="Be brief", max_tokens=4)
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    written = (
        "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    for other in (
        model.generate(messages, max_tokens=4),
        model.generate(written, raw=True, max_tokens=4),
    ):
        assert (other.prompt_tokens, other.token_ids) == (asked.prompt_tokens, asked.token_ids)


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ("", {}, "the prompt is empty"),
        (" \n", {}, "the prompt is empty"),
        ("", {"raw": True}, "the prompt is empty"),
        ([], {}, "at least one message"),
        ([{"content": "no role"}], {}, "not a mapping with a role"),
        ([{"role": "user", "content": "x"}], {"raw": True}, "a raw prompt is text"),
        ("x", {"raw": True, "system": "y"}, "no place for a system prompt"),
        ("a\udcffb", {}, "lone surrogate"),
        ("x", {"max_tokens": 0}, "max-tokens must be at least 1, got 0"),
        ("x", {"max_tokens": -5}, "max-tokens must be at least 1, got -5"),
        ("x", {"stop": ""}, "stop string must not be empty"),
        ("x", {"stop": ["a", ""]}, "stop string must not be empty"),
        (None, {}, r"text, a list of messages or a list of token ids, got None \(NoneType\)"),
        (b"x", {}, r"got b'x' \(bytes\); decode it first"),
        ([1, 2.5], {}, r"got a list with 2.5 \(float\) in it"),
        ([1, {"role": "user", "content": "x"}], {}, "both messages and numbers"),
        (["a", "b"], {}, r"got a list with 'a' \(str\) in it"),
        ({"role": "user"}, {}, "got .*dict"),
        ([True], {}, r"got a list with True \(bool\) in it"),
        ([10**9], {}, "token ids are from 0 to 511, got 1000000000"),
        ([-1], {}, "token ids are from 0 to 511, got -1"),
        ("x", {"max_tokens": 2.5}, r"max-tokens must be a whole number, got 2.5 \(float\)"),
        ("x", {"max_tokens": float("nan")}, "max-tokens must be a whole number, got nan"),
        ("x", {"max_tokens": None}, "max-tokens must be a whole number, got None"),
        ("x", {"max_tokens": True}, "max-tokens must be a whole number, got True"),
        ("x", {"stop": [1]}, r"stop must be text or a list of texts, got \[1\] \(list\)"),
        ("x", {"stop": None}, "stop must be text or a list of texts, got None"),
        ("x", {"system": 7}, "system must be text"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_one_sentence(
    model: Model, prompt: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PromptError, match=sentence):
        model.stream(prompt, **options)


@pytest.mark.parametrize("over", [0, 1, 10])
def test_a_prompt_longer_than_the_context_says_by_how_much(model: Model, over: int) -> None:
    text = "<|im_end|>" * (CONTEXT + over)
    with pytest.raises(
        PromptError, match=f"has {CONTEXT + over} tokens, {over + 1} more than fit .* {CONTEXT} "
    ):
        model.stream(text, raw=True)


def test_a_prompt_that_leaves_room_for_one_token_gets_one(model: Model) -> None:
    found = model.generate("<|im_end|>" * (CONTEXT - 1), raw=True, ignore_eos=True)
    assert (found.tokens, found.stop) == (1, "context")


def test_a_model_without_a_template_takes_text_only(model: Model) -> None:
    bare = Model(model.pack, model.engine, model.tokenizer, model.end_ids, template=None)
    with pytest.raises(PromptError, match="tiny has no chat template"):
        bare.stream("x")
    assert bare.generate("x", raw=True, max_tokens=1).tokens == 1


def test_a_manifest_of_another_family_is_refused_with_both_names(copied: Path) -> None:
    manifest = copied / "pack.toml"
    manifest.write_text(manifest.read_text().replace('family = "llama"\n', 'family = "qwen2"\n'))
    with pytest.raises(PackError, match=r"is of the family 'qwen2', and .* of the family 'llama'"):
        mtpx.load(copied)


# Sampling, seeds, depths


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"temperature": float("nan")}, "temperature must be from 0 to 100, got nan"),
        ({"temperature": float("inf")}, "temperature must be .* got inf"),
        ({"temperature": -0.1}, "temperature must be"),
        ({"temperature": 1e9}, "temperature must be"),
        ({"top_p": 0.0}, "top-p must be above 0"),
        ({"top_k": -1}, "top-k must be from 0"),
        ({"top_k": 1.5}, "Expected `int`, got `float`"),
        ({"top_k": 10**400}, "top-k must be .* got a huge integer"),
        ({"temperature": "hot"}, "Expected `float`, got `str`"),
        ({"repeat_penalty": 0.0}, "repeat-penalty must be from 0.01"),
        ({"logprobs": 101}, "logprobs must be from 0 to 100"),
        ({"tempreture": 1.0}, "no option 'tempreture'; did you mean 'temperature'"),
        ({"max_token": 1}, "no option 'max_token'; did you mean 'max_tokens'"),
        (
            {"qqq": 1},
            "no option 'qqq'; there are .*max_tokens.*, and of the sampling .*temperature",
        ),
        ({"seed": 1.5}, r"seed must be a whole number, got 1.5 \(float\)"),
        ({"seed": "1"}, r"seed must be a whole number, got '1' \(str\)"),
        ({"seed": -1}, "seed must be from 0 to 18446744073709551615, got -1"),
        ({"seed": SEEDS}, "seed must be from 0"),
    ],
)
def test_sampling_that_makes_no_sense_is_one_sentence(
    model: Model, parameters: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SamplingError, match=sentence):
        model.stream("x", **parameters)


def test_the_same_seed_gives_the_same_text_and_another_one_another(model: Model) -> None:
    one, again = (model.generate("x", seed=SEEDS - 1, **WARM) for _ in range(2))
    assert one.token_ids == again.token_ids
    assert model.generate("x", seed=0, **WARM).token_ids != one.token_ids


def test_a_seed_nobody_gave_is_recorded_and_gives_the_text_again(
    model: Model, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    found = model.generate("x", trace=path, depth=1, **WARM)
    assert [r.seed for r in read(path) if isinstance(r, RequestRecord)] == [found.seed]
    assert model.generate("x", seed=found.seed, depth=1, **WARM).token_ids == found.token_ids
    assert model.generate("x", **WARM).seed != found.seed


def test_a_packs_own_sampling_is_the_default_and_is_changed_by_field(copied: Path) -> None:
    write_manifest(copied, temperature=0.5, top_p=0.9)
    with mtpx.load(copied) as loaded:
        own = loaded.generate("x", max_tokens=1).sampling
        changed = loaded.generate("x", max_tokens=1, temperature=0.0).sampling
        replaced = loaded.generate("x", max_tokens=1, sampling=Sampling()).sampling
    assert own == Sampling(temperature=0.5, top_p=0.9)
    assert changed == Sampling(top_p=0.9)
    assert replaced == Sampling()


@pytest.mark.parametrize("depth", [None, 0, 1, 3, 4, "off"])
def test_a_greedy_answer_is_the_same_at_any_depth(model: Model, depth: Any) -> None:
    plain = model.generate("Hello", depth="off", temperature=0.0, max_tokens=20)
    found = model.generate("Hello", depth=depth, temperature=0.0, max_tokens=20)
    assert found.token_ids == plain.token_ids
    assert found.speculation == ("switched off" if depth in (0, "off") else "on")


@pytest.mark.parametrize(
    ("depth", "sentence"),
    [
        (5, "depth 5 is beyond this head's limit of 4"),
        (-1, "depth must be a number of drafts, off or auto"),
        (True, "depth must be a number of drafts, off or auto"),
        ("2", "depth must be a number of drafts, off or auto"),
    ],
)
def test_a_depth_the_head_does_not_have_is_one_sentence(
    model: Model, depth: Any, sentence: str
) -> None:
    with pytest.raises(PolicyError, match=sentence):
        model.stream("x", depth=depth)


def test_a_pack_without_a_head_decodes_plain_and_says_so(tmp_path: Path) -> None:
    with mtpx.load(make_tiny_pack(tmp_path, head=False)) as loaded:
        found = loaded.generate("x", max_tokens=4)
        assert (found.depth, found.speculation) == (0, "the pack has no MTP head")
        with pytest.raises(PolicyError, match="tiny has no MTP head"):
            loaded.stream("x", depth=1)


def test_log_probabilities_park_the_request_and_are_the_engines(model: Model) -> None:
    found = model.generate("Hello", logprobs=3, max_tokens=6, temperature=0.0, depth=2)
    assert found.speculation == "log-probabilities were asked for"
    assert (found.depth, found.accepted_per_position) == (2, [])
    assert found.logprobs is not None
    assert [p.token for p in found.logprobs] == found.token_ids
    for said in found.logprobs:
        values = [value for _, _, value in said.top]
        # Greedy: the token delivered is the likeliest.
        assert (said.top[0][0], said.logprob) == (said.token, values[0])
        assert values == sorted(values, reverse=True)
    plain = model.generate("Hello", max_tokens=6, temperature=0.0, depth="off")
    assert found.token_ids == plain.token_ids


def test_one_stop_string_may_be_given_as_text(model: Model) -> None:
    text = model.generate("Hello", max_tokens=20, temperature=0.0).text
    stop = text[3:5]
    found = model.generate("Hello", max_tokens=20, temperature=0.0, stop=stop)
    assert (found.text, found.stop) == (text[: text.index(stop)], "stop")


# Traces


def test_a_trace_tells_what_ran_and_how_it_ended(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    found = model.generate("Hello", max_tokens=8, depth=1, temperature=0.0, trace=path)
    run, request, *rounds, end = read(path)
    assert isinstance(run, RunRecord)
    assert (run.pack, run.policy_parameters) == ("tiny", {"depth": 1})
    assert isinstance(request, RequestRecord)
    assert (request.mode, request.prompt_tokens) == ("mtp", found.prompt_tokens)
    assert len(rounds) == found.rounds
    assert isinstance(end, EndRecord)
    assert (end.tokens, end.stop, end.rate) == (found.tokens, found.stop, found.tok_s)


def test_a_request_that_is_refused_leaves_no_trace(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(PromptError):
        model.stream("", trace=path)
    assert not path.exists()


def test_a_second_answer_beside_an_open_one_is_refused_and_the_first_goes_on(model: Model) -> None:
    with model.stream("Hello", max_tokens=5, temperature=0.0, ignore_eos=True) as first:
        pieces = [next(first)]
        with pytest.raises(BackendError, match="open"):
            model.generate("x")
        pieces += first
    assert first.result.tokens == 5
    assert first.result.text == "".join(pieces)


def test_an_answer_is_json_and_its_text(model: Model) -> None:
    found = model.generate("Hello", max_tokens=4)
    assert str(found) == found.text
    assert json.loads(msgspec.json.encode(found))["tokens"] == found.tokens


def test_breaking_out_of_a_stream_leaves_the_model_usable(model: Model) -> None:
    for _ in model.stream("one two", max_tokens=8, ignore_eos=True):
        break
    assert model.generate("one two", max_tokens=3, ignore_eos=True).tokens == 3


@pytest.mark.parametrize(("name", "value"), [("temperature", 1e-308), ("repeat_penalty", 5e-324)])
def test_a_value_that_would_overflow_the_logits_is_refused(
    model: Model, name: str, value: float
) -> None:
    with pytest.raises(SamplingError, match=name.replace("_", "-")):
        model.generate("one", **{name: value})
