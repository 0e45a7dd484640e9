"""A head for a pack, from nothing: answers, start, training, held-out acceptance, pack folder.

Every stage leaves what it made in the working folder and takes up what it finds there, so that a run
that was killed goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mtpx import packs
from mtpx.checkpoint import open_checkpoint
from mtpx.digests import write_atomically
from mtpx.errors import TrainingError
from mtpx.text import ChatTemplate, Tokenizer, load_tokenizer
from mtpx_train.acceptance import (
    Counts,
    estimated,
    first_of_each,
    held_out_prompts,
    measured,
    suite_prompts,
    together,
)
from mtpx_train.answers import AnswerPlan, AnswerStage
from mtpx_train.batches import Answered, sequences
from mtpx_train.curve import CURVE, acceptance_curve
from mtpx_train.fit import CHECKPOINT, Fit, FitPlan, Progress, Vocabulary, most_frequent
from mtpx_train.generate import Prompt, decode_wave
from mtpx_train.head import DraftHead, Start
from mtpx_train.packing import check_out, save_head, write_pack
from mtpx_train.recipe import Recipe, Workplace
from mtpx_train.shards import About, Shard, read_shard, write_shard
from mtpx_train.start import start_from, unfitted
from mtpx_train.trunk import BatchTrunk

if TYPE_CHECKING:
    from mtpx.bench.suites import BenchPrompt
    from mtpx.checkpoint import Checkpoint
    from mtpx.packs import Pack

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Trunks a head of one Llama block can be made for."""

ANSWERS_SHARE = 0.45
"""Of `minutes`: what generating may take. Training gets the rest but a tenth, for the measurements."""

FIT_SHARE = 0.45

START_ANSWERS = 64
"""Answers the start is fitted to: some eight thousand tokens for a regression on two thousand inputs."""

HELD_OUT_TOKENS = 96
"""Tokens an answer is judged over."""

PROMPT_LIMIT = 448
"""Tokens of a prompt, at most: long ones cost much and teach little about the answer."""

CURVE_POINTS = 12

Stage = Callable[[str, int, int, str], None]
"""Told (stage, done, total, remark) as work goes on."""


@dataclass(slots=True)
class Outcome:
    """What a training came to: the pack's folder; `curve`, (answer tokens seen, estimated acceptance
    per position); measured acceptance per suite, and of the prompts written by hand."""

    folder: Path
    curve: list[tuple[int, list[float]]] = field(default_factory=list)
    suites: dict[str, list[float]] = field(default_factory=dict)
    held_out: list[float] = field(default_factory=list)


def train(
    pack_name: str,
    out: Path,
    work: Path | None,
    recipe: Recipe,
    *,
    device: str = "auto",
    threads: int | None = None,
    judged: int | None = None,
    stage: Stage,
    offline: bool = False,
) -> Outcome:
    """Train a head for a pack and write the pack with it to `out`. At the end acceptance is measured
    over the prompts written by hand and every bench suite, or `judged` prompts of each.

    Raises `MtpxError` for what cannot be trained or written, before anything is computed where it can
    be known then.
    """
    pack = packs.resolve(pack_name, offline=offline)
    check_out(out, pack)
    where = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    dtype = _dtype(where)
    with open_checkpoint(pack.weights) as checkpoint:
        config = checkpoint.config
        if config.family not in FAMILIES:
            raise TrainingError(
                f"a head cannot be trained for a {config.family} trunk; for {', '.join(FAMILIES)} it can"
            )
        tokenizer = load_tokenizer(pack.weights, checkpoint)
        if tokenizer.chat_template is None:
            raise TrainingError(
                f"{pack.name} has no chat template, so it cannot be asked anything to learn from"
            )
        place = Workplace(work or _default_work(pack))
        place.claim(recipe, pack.weights_digest, str(dtype).removeprefix("torch."))
        parameters = 5 * config.hidden * (config.hidden + config.ffn)
        place.require_room(recipe, config.hidden, parameters)
        with torch.inference_mode():
            trunk = BatchTrunk(checkpoint, dtype, where, _room(config.context))
        work_ = _Training(place, recipe, trunk, tokenizer, checkpoint, pack, stage)
        return work_.run(out, device, judged)


class _Training:
    """The stages, one after another."""

    def __init__(
        self,
        place: Workplace,
        recipe: Recipe,
        trunk: BatchTrunk,
        tokenizer: Tokenizer,
        checkpoint: Checkpoint,
        pack: Pack,
        stage: Stage,
    ) -> None:
        self.place, self.recipe, self.trunk = place, recipe, trunk
        self.tokenizer, self.checkpoint, self.pack, self.stage = tokenizer, checkpoint, pack, stage
        assert tokenizer.chat_template is not None
        self.template = ChatTemplate(tokenizer.chat_template, tokenizer.special_texts)
        self.end_ids = frozenset((*checkpoint.config.end_ids, *tokenizer.end_ids))

    def run(self, out: Path, device: str, judged: int | None) -> Outcome:
        held_out = self._held_out()
        answers, kinds = self._answers()
        if not answers:
            raise TrainingError(
                f"{self.pack.name} gave no answer of two tokens or more; there is nothing to learn from"
            )
        ids, covered = most_frequent(answers, self.recipe.draft_vocab, self.trunk.config.vocab)
        with torch.inference_mode():
            matrix = self.trunk.output[ids.to(self.trunk.device)].clone()
        vocabulary = Vocabulary(ids, matrix)
        outcome = Outcome(out)
        head, progress = self._fit(answers, held_out, vocabulary, outcome)
        save_head(out, head.export(), ids)
        evidence: dict[str, Any] = {
            "head_training": {
                "how": "mtpx head train: the target's own answers, cross-entropy against its distribution",
                "trained_for": self.pack.weights_digest,
                "precision": str(self.trunk.dtype).removeprefix("torch."),
                "answer_tokens": sum(s.answer for s in answers),
                "answer_tokens_seen": progress.tokens,
                "answers_by_kind": kinds,
                "draft_vocabulary": len(ids),
                "draft_vocabulary_covers": round(covered, 4),
                "seed": self.recipe.seed,
                "peak_rate": self.recipe.rate,
                "curve_tokens_seen": [tokens for tokens, _ in outcome.curve],
                "curve_position_1": [rates[0] for _, rates in outcome.curve],
                "curve_position_2": [rates[1] for _, rates in outcome.curve],
                "curve_position_3": [rates[2] for _, rates in outcome.curve],
            }
        }
        write_pack(out, self.pack, self.checkpoint, evidence)
        self._measure(out, device, judged, outcome)
        evidence["acceptance"] = {
            "how": f"greedy, {HELD_OUT_TOKENS} tokens a prompt, depth 3, given that the positions "
            "before were accepted",
            "held_out": outcome.held_out,
            **outcome.suites,
        }
        write_pack(out, self.pack, self.checkpoint, evidence)
        write_atomically(out / CURVE, acceptance_curve(outcome.curve).encode())
        return outcome

    def _held_out(self) -> list[Answered]:
        """The target's greedy answers to the prompts written by hand, for the curve."""
        path = self.place.answers / "held-out.safetensors"
        if not path.exists():
            prompts = held_out_prompts()
            wave = [Prompt(self.tokenizer.encode(self._text(p)), 0.0, p.suite) for p in prompts]
            wave = [
                p for p in wave if len(p.tokens) + HELD_OUT_TOKENS <= len(self.trunk.rotary.cos)
            ]
            if not wave:
                raise TrainingError(
                    f"the context of {self.pack.name} is too short to answer any prompt in"
                )
            self.stage("held-out answers", 0, 1, "")
            made = decode_wave(self.trunk, wave, HELD_OUT_TOKENS, self.end_ids, 0)
            about = [About(a.kind, True, a.ended, []) for a in made]
            write_shard(path, made, about)
            self.stage("held-out answers", 1, 1, "")
        return sequences(read_shard(path))

    def _text(self, prompt: BenchPrompt) -> str:
        content = prompt.content
        return content if isinstance(content, str) else self.template.render(content)

    def _answers(self) -> tuple[list[Answered], dict[str, int]]:
        """Sequences to train on, and how many there are of each kind."""
        recipe = self.recipe
        longest = min(recipe.longest, len(self.trunk.rotary.cos) // 2)
        plan = AnswerPlan(
            tokens=recipe.tokens,
            seed=recipe.seed,
            longest=longest,
            wave=recipe.wave,
            prompt_limit=min(PROMPT_LIMIT, len(self.trunk.rotary.cos) - longest),
        )
        maker = AnswerStage(
            self.trunk, self.tokenizer, self.template, self.end_ids, plan, self.place.answers
        )
        clock = Clock(self.place.answers / "seconds", recipe.minutes, ANSWERS_SHARE)
        files = maker.run(lambda stage, done, total: self.stage(stage, done, total, ""), clock.over)
        shards: list[Shard] = [read_shard(path) for path in files]
        kinds: dict[str, int] = {}
        for about in (a for shard in shards for a in shard.about):
            kinds[about.kind] = kinds.get(about.kind, 0) + 1
        return [s for shard in shards for s in sequences(shard)], dict(sorted(kinds.items()))

    def _start(self, answers: list[Answered]) -> Start:
        if (self.place.fit / CHECKPOINT).exists():
            return unfitted(self.trunk)  # its weights are about to be replaced
        self.stage("start", 0, 1, "")
        spread = max(1, len(answers) // START_ANSWERS)
        start = start_from(self.trunk, answers[::spread][:START_ANSWERS])
        self.stage("start", 1, 1, "")
        return start

    def _fit(
        self,
        answers: list[Answered],
        held_out: list[Answered],
        vocabulary: Vocabulary,
        outcome: Outcome,
    ) -> tuple[DraftHead, Progress]:
        recipe, trunk = self.recipe, self.trunk
        torch.manual_seed(recipe.seed)
        head = DraftHead(trunk.config, self._start(answers)).to(trunk.device)
        total = round(recipe.epochs * sum(s.answer for s in answers))
        seconds = None if recipe.minutes is None else 60 * FIT_SHARE * recipe.minutes
        plan = FitPlan(
            tokens=total,
            seconds=seconds,
            seed=recipe.seed,
            batch=recipe.batch,
            rate=recipe.rate,
        )
        fit = Fit(head, trunk.embedding, vocabulary, trunk.rotary, answers, plan, self.place.fit)

        def judge() -> Counts:
            return estimated(head, trunk.embedding, vocabulary, trunk.rotary, held_out)

        def report(progress: Progress, loss: torch.Tensor) -> None:
            done = plan.done(progress)
            if done * CURVE_POINTS >= len(progress.curve):
                progress.curve.append((progress.tokens, judge().rates))
            remark = f"loss {loss[0]:.2f}, held-out acceptance " + " ".join(
                f"{rate:.2f}" for rate in progress.curve[-1][1]
            )
            self.stage("training", round(1000 * done), 1000, remark)

        fit.resume()
        if not fit.progress.curve:
            fit.progress.curve.append((0, judge().rates))
        fit.run(report)
        outcome.curve = fit.progress.curve
        return head, fit.progress

    def _measure(self, out: Path, device: str, judged: int | None, outcome: Outcome) -> None:
        """Through the engine: what a person will get."""
        from mtpx.api import load

        # A few hundred short answers: a compiler would take longer than it saves.
        with load(out, backend="torch", device=device, offline=True, compile="off") as model:
            room = model.engine.info.context_limit - HELD_OUT_TOKENS

            def chosen(prompts: list[BenchPrompt]) -> list[BenchPrompt]:
                return first_of_each(
                    [p for p in prompts if len(model.encode(p.content)) <= room], judged
                )

            by_hand, suites = chosen(held_out_prompts()), chosen(suite_prompts())
            total = len(by_hand) + len(suites)

            def report(done: int) -> None:
                self.stage("measuring", done, total, "")

            report(0)
            found = measured(model, by_hand, HELD_OUT_TOKENS, report)
            outcome.held_out = together(found).rates
            found = measured(
                model, suites, HELD_OUT_TOKENS, lambda done: report(len(by_hand) + done)
            )
            outcome.suites = {name: counts.rates for name, counts in sorted(found.items())}


class Clock:
    """Time spent in a stage over all its runs, kept in a file; `over` once its share is used up."""

    def __init__(self, path: Path, minutes: float | None, share: float) -> None:
        self.path = path
        self.limit = None if minutes is None else 60 * share * minutes
        self.before = float(path.read_text()) if path.exists() else 0.0
        self.began = time.monotonic()

    def over(self) -> bool:
        spent = self.before + time.monotonic() - self.began
        self.path.write_text(f"{spent:.1f}")
        return self.limit is not None and spent >= self.limit


def _default_work(pack: Pack) -> Path:
    from mtpx import paths

    return paths.state_dir() / "training" / f"{pack.name}-{pack.weights_digest[:12]}"


def _room(context: int) -> int:
    """Columns of a wave: what the longest prompt and answer take, in as much context as there is."""
    return min(context, 1024)


def _device(asked: str) -> torch.device:
    from mtpx.errors import BackendError

    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda") or (
        device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    ):
        raise BackendError(f"{asked!r} is no device to train on here; give cpu, cuda or auto")
    return device


def _dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where it is fast: twice float32's pace, and its noise is less than the head's error."""
    if device.type == "cuda":
        return torch.bfloat16
    fast = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if fast else torch.float32
