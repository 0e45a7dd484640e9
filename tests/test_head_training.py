"""Training a head from nothing, on a model small enough to do it in seconds."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from command import Command
from tiny_pack import make_tiny_pack
from torch_makers import save_model
from training_makers import trunk_of

import mtpx
from mtpx import manifest, packs
from mtpx.errors import MtpxError, TrainingError
from mtpx.round import Round
from mtpx_train import Recipe, train
from mtpx_train import recipe as recipes
from mtpx_train.acceptance import estimated
from mtpx_train.batches import collate, sequences
from mtpx_train.fit import Fit, FitPlan, Vocabulary
from mtpx_train.generate import Answer
from mtpx_train.head import DraftHead
from mtpx_train.recipe import Workplace, disk_need
from mtpx_train.shards import About, read_shard, write_shard
from mtpx_train.start import start_from

RECIPE = Recipe(tokens=300, epochs=2, draft_vocab=64, longest=16, wave=8, batch=64, seed=3)


class Killed(BaseException):
    """The process is gone, in the middle of it."""


class Stages:
    """Notes what is told; `dies_at` a (stage, share done) ends the run there."""

    def __init__(self, dies_at: tuple[str, float] | None = None) -> None:
        self.told: list[tuple[str, int, int]] = []
        self.dies_at = dies_at

    def __call__(self, stage: str, done: int, total: int, remark: str) -> None:
        self.told.append((stage, done, total))
        if self.dies_at and stage == self.dies_at[0] and done / total >= self.dies_at[1]:
            raise Killed


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_pack(tmp_path_factory.mktemp("headless"), head=False)


@pytest.fixture(autouse=True)
def _checkpoint_after_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtpx_train.fit.CHECKPOINT_S", 0.0)


@pytest.fixture(scope="module")
def trained(headless: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A finished training: its folder (`out`, `work`), and what `train` returned."""
    folder = tmp_path_factory.mktemp("trained")
    outcome = run(headless, folder)
    return folder, outcome


def run(pack: Path, folder: Path, recipe: Recipe = RECIPE, stage: Any = None) -> Any:
    return train(
        str(pack),
        folder / "out",
        folder / "work",
        recipe,
        device="cpu",
        judged=1,
        stage=stage or Stages(),
    )


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "out" / "head.safetensors").read_bytes()).hexdigest()


def test_the_same_seed_gives_the_same_head(
    headless: Path, trained: tuple[Path, Any], tmp_path: Path
) -> None:
    run(headless, tmp_path)
    assert digest(tmp_path) == digest(trained[0])


def test_another_seed_gives_another_head(
    headless: Path, trained: tuple[Path, Any], tmp_path: Path
) -> None:
    run(headless, tmp_path, msgspec.structs.replace(RECIPE, seed=4))
    assert digest(tmp_path) != digest(trained[0])


@pytest.mark.parametrize(
    "dies_at", [("questions", 0.0), ("answers", 0.5), ("training", 0.5), ("measuring", 0.0)]
)
def test_a_run_that_was_killed_goes_on_to_the_head_it_would_have_made(
    headless: Path, trained: tuple[Path, Any], tmp_path: Path, dies_at: tuple[str, float]
) -> None:
    with pytest.raises(Killed):
        run(headless, tmp_path, stage=Stages(dies_at))
    again = Stages()
    run(headless, tmp_path, stage=again)
    assert digest(tmp_path) == digest(trained[0])
    if dies_at[0] == "training":
        first = next(done / total for stage, done, total in again.told if stage == "training")
        assert first >= 0.5


def test_a_run_whose_time_for_answers_is_over_goes_on_with_all_it_has(
    headless: Path, trained: tuple[Path, Any], tmp_path: Path
) -> None:
    shutil.copytree(trained[0] / "work" / "answers", tmp_path / "work" / "answers")
    shards = sorted((tmp_path / "work" / "answers").glob("answers-*"))
    assert len(shards) > 2
    shards[-1].unlink()
    (tmp_path / "work" / "answers" / "seconds").write_text("3600")
    run(headless, tmp_path, msgspec.structs.replace(RECIPE, minutes=1.0))
    assert sorted((tmp_path / "work" / "answers").glob("answers-*")) == shards[:-1]
    evidence = tomllib.loads((tmp_path / "out" / "pack.toml").read_text())["evidence"]
    held = [sequences(read_shard(path)) for path in shards[:-1]]
    assert evidence["head_training"]["answer_tokens"] == sum(a.answer for s in held for a in s)


def test_training_raises_acceptance_on_prompts_it_has_not_seen(trained: tuple[Path, Any]) -> None:
    _, outcome = trained
    first, last = outcome.curve[0], outcome.curve[-1]
    assert first[0] == 0
    assert last[0] >= RECIPE.tokens * RECIPE.epochs
    assert sum(last[1]) > sum(first[1]) - 0.05


def test_the_result_is_a_pack_that_drafts_and_says_what_it_was_trained_on(
    trained: tuple[Path, Any], headless: Path
) -> None:
    folder, outcome = trained
    said = manifest.read(folder / "out" / "pack.toml").evidence
    made = said["head_training"]
    assert made["answer_tokens"] >= RECIPE.tokens
    assert made["trained_for"] == packs.resolve(headless).weights_digest
    assert made["draft_vocabulary"] == 64
    assert said["acceptance"]["held_out"] == outcome.held_out
    with mtpx.load(folder / "out") as model:
        plain = model.generate("Hi", raw=True, max_tokens=20, temperature=0.0, depth="off")
        drafted = model.generate("Hi", raw=True, max_tokens=20, temperature=0.0, depth=3)
    assert drafted.text == plain.text
    assert drafted.rounds < plain.rounds


def test_the_pack_comes_with_a_picture_of_its_curve(trained: tuple[Path, Any]) -> None:
    folder, outcome = trained
    drawn = (folder / "out" / "acceptance.svg").read_text()
    assert drawn.count("<circle") == 3 * len(outcome.curve)


def test_the_head_drafts_in_the_engine_as_it_did_in_training(
    trained: tuple[Path, Any], headless: Path, tmp_path: Path
) -> None:
    """Confidences of every round of a greedy answer, against those of the training's own forward."""
    from safetensors.torch import load_file

    folder, _ = trained
    trunk = trunk_of(headless / "weights")
    stored = load_file(folder / "out" / "head.safetensors")
    rounds: list[Round] = []
    with mtpx.load(folder / "out") as model:
        prompt = model.encode([{"role": "user", "content": "Name three rivers."}])
        answer = model.generate(
            prompt, max_tokens=30, temperature=0.0, depth=3, on_round=rounds.append
        )
    tokens = torch.tensor([*prompt, *answer.token_ids])
    with torch.inference_mode():
        none = torch.zeros(1, dtype=torch.long)
        _, hidden = trunk.forward(tokens[None], trunk.cache(1, len(tokens)), 0, none)
    made = Answer(
        tokens, len(prompt), hidden[0], torch.zeros(len(answer.token_ids)), "made", True, True
    )
    write_shard(tmp_path / "s.safetensors", [made], [About("made", True, True, [])])
    (sequence,) = sequences(read_shard(tmp_path / "s.safetensors"))
    batch = collate([sequence], 3, torch.float32)
    batch.hidden[0, : len(tokens) - 1] = hidden[0, :-1]
    head = DraftHead(trunk.config, start_from(trunk, [sequence]))
    fill(head, stored)
    ids = stored["mtp.draft_vocab"].long()
    with torch.no_grad():
        states = head(batch, trunk.embedding, trunk.rotary, 3)
        logits = [state[0] @ trunk.output[ids].T for state in states]
    judged = 0
    for record in rounds:
        (slot,) = record.slots
        column = slot.position - len(prompt) - 1
        if column < 0:
            continue  # the answer's first token, of which training makes nothing
        for step, confidence in enumerate((slot.confidences or [])[: slot.accepted + 1]):
            mine = torch.log_softmax(logits[step][column], dim=-1).max()
            assert float(mine) == pytest.approx(confidence, abs=2e-3)
            judged += 1
    assert judged > 8


def fill(head: DraftHead, stored: dict[str, torch.Tensor]) -> None:
    """Put an exported head's weights back into a head in training."""

    def take(*names: str) -> torch.Tensor:
        return torch.cat([stored[f"mtp.{name}.weight"].float() for name in names])

    layer = "layers.0."
    with torch.no_grad():
        head.norm_embedding.copy_(take("pre_fc_norm_embedding"))
        head.norm_hidden.copy_(take("pre_fc_norm_hidden"))
        head.fc.copy_(take("fc"))
        head.norm.copy_(take("norm"))
        head.attention_norm.copy_(take(f"{layer}input_layernorm"))
        head.ffn_norm.copy_(take(f"{layer}post_attention_layernorm"))
        head.qkv.copy_(take(*(f"{layer}self_attn.{x}_proj" for x in "qkv")))
        head.out.copy_(take(f"{layer}self_attn.o_proj"))
        head.gate_up.copy_(take(f"{layer}mlp.gate_proj", f"{layer}mlp.up_proj"))
        head.down.copy_(take(f"{layer}mlp.down_proj"))


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(
    trained: tuple[Path, Any], headless: Path, tmp_path: Path
) -> None:
    trunk = trunk_of(headless / "weights")
    shards = sorted((trained[0] / "work" / "answers").glob("answers-*"))
    answers = [a for path in shards for a in sequences(read_shard(path))]
    ids = torch.arange(3, 40)
    with torch.inference_mode():
        vocabulary = Vocabulary(ids, trunk.output[ids].clone())
    head = DraftHead(trunk.config, start_from(trunk, answers))
    plan = FitPlan(tokens=10_000, seed=0, batch=64)
    fit = Fit(head, trunk.embedding, vocabulary, trunk.rotary, answers, plan, tmp_path)

    def poison(progress: Any, loss: torch.Tensor) -> None:
        if progress.batches == 3:
            answers[0].shard.hidden[:] = torch.nan
            for answer in answers:
                answer.shard.hidden[:] = torch.nan

    with pytest.raises(TrainingError, match="not a number at batch 4"):
        fit.run(poison)
    kept = torch.load(fit.path, weights_only=True)
    assert kept["progress"]["batches"] == 3
    assert all(bool(torch.isfinite(w).all()) for w in kept["head"].values())


def test_a_folder_of_another_recipe_is_refused(
    trained: tuple[Path, Any], headless: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained[0] / "work", tmp_path / "work")
    with pytest.raises(TrainingError, match=r"another recipe \(seed is 3 there, 9 here\)"):
        run(headless, tmp_path, msgspec.structs.replace(RECIPE, seed=9))


def test_answers_serve_a_training_of_other_epochs_once_the_old_one_is_deleted(
    trained: tuple[Path, Any], headless: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained[0] / "work", tmp_path / "work")
    longer = msgspec.structs.replace(RECIPE, epochs=3)
    with pytest.raises(TrainingError, match="epochs is 2"):
        run(headless, tmp_path, longer)
    shutil.rmtree(tmp_path / "work" / "fit")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "work" / "answers").glob("*-*")}
    run(headless, tmp_path, longer)
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "work" / "answers").glob("*-*")}
    assert after == before


def test_a_folder_of_another_pack_is_refused(trained: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(trained[0] / "work", tmp_path / "work")
    other = make_tiny_pack(tmp_path / "other", head=False)
    config = other / "weights" / "config.json"
    config.write_text(config.read_text() + "\n")
    (other / "pack.toml").unlink()
    with pytest.raises(TrainingError, match="another pack"):
        run(other / "weights", tmp_path)


def test_a_damaged_record_of_the_recipe_is_said(headless: Path, tmp_path: Path) -> None:
    (tmp_path / "work" / "answers").mkdir(parents=True)
    (tmp_path / "work" / "answers" / "made-by.json").write_text("{")
    with pytest.raises(TrainingError, match="is damaged"):
        run(headless, tmp_path)


def test_too_small_a_disk_is_said_before_anything_is_made(
    headless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(recipes.shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    with pytest.raises(TrainingError, match=r"training needs about .* are free there"):
        run(headless, tmp_path)
    assert not list((tmp_path / "work").rglob("*.safetensors"))


def test_the_disk_forecast_covers_what_a_training_leaves(
    trained: tuple[Path, Any], headless: Path
) -> None:
    trunk = trunk_of(headless / "weights")
    left = sum(f.stat().st_size for f in (trained[0] / "work").rglob("*") if f.is_file())
    parameters = 5 * trunk.config.hidden * (trunk.config.hidden + trunk.config.ffn)
    # Prompts are all of a tiny recipe's rows, and the text beside them weighs what states do.
    recipe = msgspec.structs.replace(RECIPE, tokens=1_000_000)
    assert disk_need(recipe, 576, parameters) > 1_000_000 * 2 * 576
    assert left > 0


def test_a_full_folder_that_is_no_pack_is_not_written_to(headless: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(TrainingError, match="is not empty"):
        run(headless, tmp_path)


def test_the_packs_own_folder_is_not_written_to(headless: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="own folder"):
        train(str(headless), headless, tmp_path, RECIPE, stage=Stages())


def test_a_trunk_of_another_family_is_refused_with_what_is_supported(tmp_path: Path) -> None:
    folder = make_tiny_pack(tmp_path / "pack", head=False) / "weights"
    config = json.loads((folder / "config.json").read_text())
    config["model_type"], config["architectures"] = "mamba", ["MambaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(MtpxError, match="supported: llama, mistral"):
        run(folder, tmp_path)


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_pack(tmp_path / "pack", head=False) / "weights"
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    with pytest.raises(TrainingError, match="no chat template"):
        run(folder, tmp_path)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_other_families_with_biases_and_norms_of_their_own_can_be_trained(
    family: str, headless: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "weights"
    save_model(folder, family, vocab_size=512, max_position_embeddings=256)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(headless / "weights" / name, folder)
    outcome = run(folder, tmp_path)
    assert outcome.held_out[0] > 0


def test_the_estimate_is_what_the_engine_finds_where_rounds_begin(
    trained: tuple[Path, Any],
) -> None:
    """Not equal: rounds do not begin at every token. Far apart, one of the two would be wrong."""
    _, outcome = trained
    assert outcome.held_out[0] == pytest.approx(outcome.curve[-1][1][0], abs=0.25)


def test_the_command_trains_and_tells_in_json(
    mtpx: Command, headless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtpx_train.Recipe", lambda **given: RECIPE)
    done = mtpx(
        *("head", "train", str(headless), "--out", str(tmp_path / "out")),
        *("--judge", "1", "--json", "--quiet"),
    )
    assert (done.status, done.err) == (0, "")
    told = json.loads(done.out)
    assert len(told["held_out"]) == 3
    assert told["folder"] == str(tmp_path / "out")


def test_the_command_shows_every_stage(
    mtpx: Command, headless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtpx_train.Recipe", lambda **given: RECIPE)
    done = mtpx(
        *("head", "train", str(headless), "--out", str(tmp_path / "out"), "--judge", "1"),
    )
    assert done.status == 0
    for stage in ("questions", "answers", "start", "training", "measuring"):
        assert f"{stage}: 100 %" in done.err
    assert "prompts written by hand" in done.out


def test_a_device_that_is_not_here_is_said(mtpx: Command, headless: Path, tmp_path: Path) -> None:
    done = mtpx(
        *("head", "train", str(headless), "--out", str(tmp_path / "out"), "--device", "tpu")
    )
    assert "'tpu' is no device to train on here" in done.complaint


def test_the_estimate_needs_no_gradient(trained: tuple[Path, Any], headless: Path) -> None:
    trunk = trunk_of(headless / "weights")
    answers = sequences(read_shard(trained[0] / "work" / "answers" / "held-out.safetensors"))
    ids = torch.arange(3, 40)
    with torch.inference_mode():
        vocabulary = Vocabulary(ids, trunk.output[ids].clone())
    head = DraftHead(trunk.config, start_from(trunk, answers[:8]))
    counts = estimated(head, trunk.embedding, vocabulary, trunk.rotary, answers)
    assert counts.reached[0] > counts.accepted[0] > 0


def test_a_workplace_counts_what_is_there(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    recipe = msgspec.structs.replace(RECIPE, tokens=1000)
    whole = place.require_room(recipe, 32, 1000)
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / "x").write_bytes(b"x" * 1000)
    assert place.require_room(recipe, 32, 1000) == whole - 1000
