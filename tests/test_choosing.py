"""Which policy a command line and the settings ask for together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import Command

from mtpx import settings
from mtpx.config import Environment
from mtpx.errors import PolicyError, SettingsError
from mtpx.policy.registry import PolicyOptions
from mtpx_cli.choosing import PARTS, Chosen, choose


def chosen(depth: Any = None, *, typed: str = "", **given: Any) -> Chosen:
    """What `choose` makes of these; `typed` names those that stand on the command line."""
    parts = dict.fromkeys(PARTS) | {"tables": ()} | given
    return choose(depth, parts, lambda name: name in typed.split())


def test_nothing_said_is_nothing_asked_for() -> None:
    assert chosen() == Chosen()


@pytest.mark.parametrize("depth", ["off", 0])
def test_off_is_a_plain_run_whichever_policy_is_set(depth: Any) -> None:
    assert chosen(depth, policy="measured") == Chosen("off")


def test_a_typed_number_is_meant_and_one_from_the_settings_is_a_taste() -> None:
    assert chosen(2, typed="depth") == Chosen(2)
    assert chosen(2) == Chosen(policy=PolicyOptions("fixed", depth=2))


def test_a_typed_policy_wins_over_a_depth_from_the_settings() -> None:
    found = chosen(2, policy="measured", typed="policy")
    assert found == Chosen(policy=PolicyOptions("measured"))


def test_a_typed_depth_wins_over_a_policy_from_the_settings() -> None:
    assert chosen(2, policy="measured", typed="depth") == Chosen(2)


def test_depth_auto_lets_the_policy_choose_that_is_set() -> None:
    found = chosen("auto", policy="measured", objective="energy", typed="depth")
    assert found == Chosen("auto", PolicyOptions("measured", objective="energy"))


def test_typed_depth_auto_is_not_answered_by_a_fixed_depth_from_the_settings() -> None:
    found = chosen("auto", policy="fixed", typed="depth")
    assert found == Chosen("auto", PolicyOptions())


def test_settings_of_another_policy_are_left_aside() -> None:
    found = chosen(policy="ollama", objective="energy", slack=0.2, cost_feedback=False)
    assert found == Chosen(policy=PolicyOptions("ollama"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"objective": "energy"}, "objective is an option of the policy 'measured'"),
        ({"slack": 0.2}, "slack is an option of the policy 'measured'"),
        ({"tables": (Path("t"),)}, "table is an option of the policy 'measured'"),
        ({"policy": "ollama", "cost_feedback": False}, "for the policy 'adaptive'"),
        ({"depth": 2, "cost_feedback": False}, "this one is 'fixed'"),
        ({"depth": 2, "policy": "measured"}, "depth 2 is a fixed depth"),
        ({"policy": "measured", "slack": 1.0}, "slack is a fraction"),
        ({"policy": "none"}, "there is no policy 'none'"),
    ],
)
def test_typed_options_that_do_not_go_together_are_refused(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PolicyError, match=sentence):
        chosen(**given, typed=" ".join(given))


def test_a_planners_option_typed_with_its_policy_reaches_it() -> None:
    found = chosen(policy="measured", slack=0.3, tables=(Path("t"),), typed="policy slack tables")
    assert found.policy == PolicyOptions("measured", slack=0.3, tables=(Path("t"),))


# Settings


def loaded(folder: Path, text: str = "", **variables: str) -> dict[str, Any]:
    (folder / "config.toml").write_text(text)
    env = Environment(config_dir=folder, settings=variables)
    return {name: found.value for name, found in settings.load(env).items()}


def test_the_environment_wins_also_where_depth_and_policy_cannot_both_be_had(
    tmp_path: Path,
) -> None:
    assert loaded(tmp_path, "depth = 2", policy="measured") == {"policy": "measured"}
    assert loaded(tmp_path, 'policy = "measured"', depth="2") == {"depth": 2}


def test_cost_feedback_is_switched_off_by_its_known_variable(tmp_path: Path) -> None:
    assert loaded(tmp_path, adaptive_verify_cost_feedback="0") == {"cost_feedback": False}
    assert loaded(tmp_path, "cost_feedback = false") == {"cost_feedback": False}
    env = Environment(settings={"adaptive_verify_cost_feedback": "0", "cost_feedback": "0"})
    assert settings.unknown_variables(env) == ["MTPX_COST_FEEDBACK"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('\npolicy = "adaptiv"', "line 2: there is no policy 'adaptiv'"),
        ("slack = 1.5", "line 1: slack is a fraction"),
        ('objective = "fun"', "line 1: objective cannot be 'fun'"),
        ("cost_feedback = 3", "line 1: cost_feedback cannot be 3"),
    ],
)
def test_a_setting_that_is_none_is_said_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        loaded(tmp_path, text)


# As the command line shows it


@pytest.mark.parametrize("text", ["depth = 2", 'depth = "auto"', 'policy = "measured"'])
def test_a_pack_without_a_head_decodes_plain_whatever_the_settings_say(
    mtpx: Command, own_folders: Path, tmp_path: Path, text: str
) -> None:
    from tiny_pack import make_tiny_pack

    (own_folders / "config").mkdir()
    (own_folders / "config" / "config.toml").write_text(text)
    pack = make_tiny_pack(tmp_path / "bare", head=False)
    done = mtpx("run", "Hello", "--pack", str(pack), "--max-tokens", "2")
    assert (done.status, done.err.count("the pack has no MTP head")) == (0, 1)


def test_the_measured_policy_without_a_table_says_which_command_makes_one(
    mtpx: Command, tiny_pack: Path
) -> None:
    said = mtpx("run", "Hello", "--pack", str(tiny_pack), "--policy", "measured").complaint
    assert "there is no cost table of tiny" in said
    assert "`mtpx measure tiny --calibrate` makes one" in said
