"""The first stage: questions, answers and their hidden states, wave after wave.

Work goes in cycles. A cycle's requests are drawn at once, the model's own questions written first;
follow-ups and rewritings are made from the answers of the cycle before. Requests of about the same
length share a wave, and every finished wave is a file: a run that was killed goes on with the wave it
was in, and gives what it would have given.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mtpx.digests import write_atomically
from mtpx.errors import PackError
from mtpx.text import ChatTemplate, Tokenizer
from mtpx_train.generate import Prompt, decode_lanes
from mtpx_train.mixture import Mixture, read_mixture
from mtpx_train.shards import About, read_about, write_shard

if TYPE_CHECKING:
    from mtpx_train.trunk import BatchTrunk

Messages = list[dict[str, str]]

Report = Callable[[str, int, int], None]
"""Told (stage, done, total), as work goes on."""

QUESTION_TEMPERATURES = (0.8, 0.9, 1.0, 1.1)
MARK = "@@@"


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How much to generate: at least `tokens` of answers, each at most `longest`; `wave` sequences
    side by side, `waves` to a cycle; `greedy` of them at temperature 0, the others at
    `temperature`. Longer prompts than `prompt_limit` are left out."""

    tokens: int
    seed: int
    prompt_limit: int
    longest: int = 224
    question: int = 80
    wave: int = 128
    waves: int = 12
    greedy: float = 0.65
    temperature: float = 0.8


class AnswerStage:
    """Fills `folder` with shards."""

    def __init__(
        self,
        trunk: BatchTrunk,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        end_ids: frozenset[int],
        plan: AnswerPlan,
        folder: Path,
    ) -> None:
        self.trunk, self.tokenizer, self.template = trunk, tokenizer, template
        self.end_ids, self.plan, self.folder = end_ids, plan, folder
        self.mixture: Mixture = read_mixture()

    def run(self, report: Report, enough: Callable[[], bool] = lambda: False) -> list[Path]:
        """→ the shards, oldest first, once they hold the plan's tokens; none is begun once `enough()`,
        but for the first. What is there already counts whatever `enough()` says."""
        done: list[Path] = []
        total, cycle = 0, 0
        earlier: list[About] = []
        while True:
            if done and not self._shard(cycle, 0).exists() and enough():
                return done
            requests = self._requests(cycle, earlier, report)
            earlier = []
            size = self.plan.wave
            for number, at in enumerate(range(0, len(requests), size)):
                path = self._shard(cycle, number)

                def tick(more: int, before: int = total) -> None:
                    report("answers", min(before + more, self.plan.tokens), self.plan.tokens)

                if not path.exists():
                    if done and enough():
                        return done
                    tick(0)
                    self._answer(path, requests[at : at + size], cycle, number, tick)
                about, tokens = read_about(path)
                earlier += about
                total += tokens
                done.append(path)
                tick(0, total)
                if total >= self.plan.tokens:
                    return done
            cycle += 1

    def _shard(self, cycle: int, number: int) -> Path:
        return self.folder / f"answers-{cycle:03}-{number:03}.safetensors"

    def _answer(
        self,
        path: Path,
        requests: Sequence[tuple[Prompt, Messages]],
        cycle: int,
        number: int,
        tick: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        seed = random.Random(f"{self.plan.seed} answers {cycle} {number}").getrandbits(48)
        prompts = [prompt for prompt, _ in requests]
        answers = decode_lanes(self.trunk, prompts, self.plan.longest, self.end_ids, seed, tick)
        about = []
        for answer, (_, messages) in zip(answers, requests, strict=True):
            text = self.tokenizer.decode(answer.tokens[answer.start :].tolist())
            said = [*messages, {"role": "assistant", "content": text}]
            about.append(About(answer.kind, answer.greedy, answer.ended, said))
        write_shard(path, answers, about)

    def _requests(
        self, cycle: int, earlier: Sequence[About], report: Report
    ) -> list[tuple[Prompt, Messages]]:
        """A cycle's prompts, shortest first, with the conversations they end."""
        plan, mixture = self.plan, self.mixture
        rng = random.Random(f"{plan.seed} requests {cycle}")
        wanted = plan.wave * plan.waves
        drawn: list[tuple[str, Messages]] = []
        drawn += self._own(cycle, round(mixture.own.share * wanted), report)
        drawn += self._follow_ups(earlier, round(mixture.follow_up.share * wanted), rng)
        drawn += self._rewritings(earlier, round(mixture.rewriting.share * wanted), rng)
        while len(drawn) < wanted:
            kind, text = mixture.request(rng)
            drawn.append((kind, [{"role": "user", "content": text}]))
        requests = []
        for kind, messages in drawn:
            system = mixture.system(rng) if messages[0]["role"] != "system" else None
            if system is not None:
                messages = [{"role": "system", "content": system}, *messages]
            tokens = self.tokenizer.encode(self.template.render(messages))
            temperature = 0.0 if rng.random() < plan.greedy else plan.temperature
            if len(tokens) <= plan.prompt_limit:
                requests.append((Prompt(tokens, temperature, kind), messages))
        rng.shuffle(requests)
        requests.sort(key=lambda request: len(request[0].tokens))
        return requests

    def _own(self, cycle: int, count: int, report: Report) -> list[tuple[str, Messages]]:
        """Questions the model writes into the bare opening of a user turn."""
        texts: dict[str, None] = {}
        # An instruction model may have little to ask: what is missing is made up of templates.
        for wave in range(2 * -(-count // self.plan.wave)):
            report("questions", min(len(texts), count), count)
            texts |= dict.fromkeys(self._questions(cycle, wave))
            if len(texts) >= count:
                break
        report("questions", count, count)
        return [("own", [{"role": "user", "content": text}]) for text in list(texts)[:count]]

    def _questions(self, cycle: int, wave: int) -> list[str]:
        path = self.folder / f"questions-{cycle:03}-{wave:03}.json"
        if not path.exists():
            opening = self.tokenizer.encode(user_opening(self.template))
            warmth = QUESTION_TEMPERATURES
            prompts = [
                Prompt(opening, warmth[i % len(warmth)], "own") for i in range(self.plan.wave)
            ]
            seed = random.Random(f"{self.plan.seed} questions {cycle} {wave}").getrandbits(48)
            answers = decode_lanes(self.trunk, prompts, self.plan.question, self.end_ids, seed)
            texts = [
                self.tokenizer.decode(answer.tokens[answer.start :].tolist()).strip()
                for answer in answers
                if answer.ended
            ]
            write_atomically(path, json.dumps(texts).encode())
        return [text for text in json.loads(path.read_bytes()) if len(text) > 12]

    def _follow_ups(
        self, earlier: Sequence[About], count: int, rng: random.Random
    ) -> list[tuple[str, Messages]]:
        fit = [a for a in earlier if a.ended and len(a.messages) <= 3]
        chosen = rng.sample(fit, min(count, len(fit)))
        return [
            (
                "follow_up",
                [
                    *about.messages,
                    {
                        "role": "user",
                        "content": self.mixture.fill(
                            rng.choice(self.mixture.follow_up.requests), rng
                        ),
                    },
                ],
            )
            for about in chosen
        ]

    def _rewritings(
        self, earlier: Sequence[About], count: int, rng: random.Random
    ) -> list[tuple[str, Messages]]:
        texts = [found for a in earlier for found in quotable(a.messages[-1]["content"])]
        made = []
        for what, text in rng.sample(texts, min(count, len(texts))):
            kind, request = self.mixture.rewriting_of(text, what, rng)
            made.append((kind, [{"role": "user", "content": request}]))
        return made


def user_opening(template: ChatTemplate) -> str:
    """The text before a user's first words. Raises `PackError` where the template has no such place."""
    before, found, _ = template.render(
        [{"role": "user", "content": MARK}], add_generation_prompt=False
    ).partition(MARK)
    if not found:
        raise PackError(
            "the model's chat template leaves out what the user says; nothing to train on"
        )
    return before


def quotable(text: str) -> list[tuple[str, str]]:
    """What of an answer can be given back to be rewritten: ("code", ...) and ("passage", ...)."""
    code = [c.strip("\n") for c in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)]
    found = [("code", c) for c in code[:1] if 30 < len(c) < 500]
    prose = [p.strip() for p in re.sub(r"```.*?(```|$)", "", text, flags=re.DOTALL).split("\n\n")]
    passages = [p for p in prose if 120 < len(p) < 420 and p[-1] in ".!?"]
    return found + [("passage", p) for p in passages[:1]]
