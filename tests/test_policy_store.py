"""What a policy learned, kept between processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from mtpx.config import Environment
from mtpx.errors import PolicyError
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.store import FORMAT, kept, load, reset, save
from mtpx.simulate import SimulatedEngine
from mtpx.simulate.light import play
from mtpx.simulate.scenario import Scenario
from mtpx_cli.policy import policy as command

INFO = SimulatedEngine().info


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("MTPX_STATE_DIR", str(tmp_path))
    return Environment(state_dir=tmp_path)


@pytest.fixture
def learned() -> AdaptiveDepth:
    policy = AdaptiveDepth()
    play(policy, Scenario(), rounds=200)
    return policy


def test_what_was_learned_comes_back(env: Environment, learned: AdaptiveDepth) -> None:
    save(learned, INFO, env)
    other = AdaptiveDepth()
    assert load(other, INFO, env) == ""
    assert other.selected == learned.selected
    assert other.explain()["acceptance"].keys() == learned.explain()["acceptance"].keys()


def test_nothing_kept_is_nothing_to_say(env: Environment) -> None:
    assert load(AdaptiveDepth(), INFO, env) == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights_digest", "other"),
        ("head_digest", "other"),
        ("dtype", "bfloat16"),
        ("quantisation", "q4"),
        ("tier", "row-invariant"),
        ("libraries", {"torch": "9"}),
        ("details", {"threads": "7"}),
    ],
)
def test_another_key_is_refused_in_one_line_that_names_it(
    env: Environment, learned: AdaptiveDepth, field: str, value: object
) -> None:
    save(learned, INFO, env)
    fresh = AdaptiveDepth()
    said = load(fresh, replace(INFO, **{field: value}), env)  # type: ignore[arg-type]
    assert "does not apply" in said
    assert "\n" not in said
    name = {"weights_digest": "weights", "head_digest": "head", "details": "threads"}
    assert name.get(field, field) in said
    assert not fresh.seen.costs


def test_a_digest_that_differs_is_told_by_its_first_digits(
    env: Environment, learned: AdaptiveDepth
) -> None:
    save(learned, replace(INFO, head_digest="ab" * 32), env)
    said = load(AdaptiveDepth(), replace(INFO, head_digest="cd" * 32), env)
    assert said.endswith("head was abababababab, is cdcdcdcdcdcd")


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"\xff\xfe", b"null", b"{" * 9000, b'{"format":1}', b"x" * (1 << 21)],
    ids=lambda b: repr(b[:8]),
)
def test_a_file_that_is_no_state_is_a_sentence_and_a_cold_start(
    env: Environment, learned: AdaptiveDepth, damage: bytes
) -> None:
    path = save(learned, INFO, env)
    path.write_bytes(damage)
    fresh = AdaptiveDepth()
    said = load(fresh, INFO, env)
    assert path.name in said
    assert "\n" not in said
    assert not fresh.seen.costs
    assert isinstance(kept(env)[path], PolicyError)


def test_a_state_of_another_format_or_shape_is_a_sentence(
    env: Environment, learned: AdaptiveDepth
) -> None:
    path = save(learned, INFO, env)
    for change in ({"format": FORMAT - 1}, {"state": {}}, {"state": {"policy": "ollama"}}):
        save(learned, INFO, env)
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        assert "not used" in load(AdaptiveDepth(), INFO, env)


def test_two_writers_and_a_reader_always_find_a_whole_state(
    env: Environment, learned: AdaptiveDepth
) -> None:
    save(learned, INFO, env)
    said: list[str] = []

    def write() -> None:
        for _ in range(20):
            save(learned, INFO, env)

    def look() -> None:
        for _ in range(40):
            said.append(load(AdaptiveDepth(), INFO, env))

    threads = [Thread(target=write), Thread(target=write), Thread(target=look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(said) == {""}
    assert len(kept(env)) == 1


def test_a_folder_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, learned: AdaptiveDepth
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(PolicyError, match="cannot keep"):
        save(learned, INFO, Environment(state_dir=blocked))


def test_show_lists_what_was_learned_and_reset_forgets_it(
    env: Environment, learned: AdaptiveDepth
) -> None:
    run = CliRunner().invoke
    assert "Nothing was learned yet" in run(command, ["show"]).output
    path = save(learned, INFO, env)
    shown = run(command, ["show"]).output
    assert INFO.pack in shown
    assert "ms a round by depth" in shown
    assert str(path) in run(command, ["show", "--json"]).output
    assert "Nothing was learned for other" in run(command, ["reset", "other"]).output
    assert "Forgot 1 state" in run(command, ["reset", INFO.pack]).output
    assert reset(env=env) == []


def test_show_says_what_is_wrong_with_a_damaged_file(
    env: Environment, learned: AdaptiveDepth
) -> None:
    path = save(learned, INFO, env)
    path.write_text("{}")
    assert "not a policy's state" in " ".join(CliRunner().invoke(command, ["show"]).output.split())
