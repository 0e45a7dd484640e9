"""A policy against answers of which everything is known: what the head would have drafted at every position.

    python tests/whole_answers.py record answers.json --prompts 80 [--precision int4]
    python tests/whole_answers.py play answers.json [--slow 0.001] [--runs 16]

`record` (torch backend) decodes prompts of all suites greedily with a policy that drafts and verifies nothing, so
that every position is a round's first: its confidences, and how many drafts would have stood. Then it times fixed
depths.
`play` lets the adaptive policy decode these answers on a virtual clock with those times, and says how much
faster than the best fixed depth it is, while it learns and after. `--slow`: how often, per round, the machine gets
1.3 to 1.9 times slower for 3 to 40 rounds. What takes a bench an hour takes seconds, with the same drafts for all.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import mtpx
from mtpx.backend import FloatArray
from mtpx.bench.design import gather
from mtpx.policy import Batch, DepthPolicy, FixedDepth, StoppingPolicy
from mtpx.policy.adaptive import AdaptiveDepth
from mtpx.policy.drafting import beside_ms
from mtpx.round import Decision, Round, Route, SlotRound

DEEPEST = 6
SUITES = ("chat", "code", "prose", "rewrite", "structured")
READING, ROUTE = 0.02, Route("compiled", "")
"""ms of a reading beside a step of the head (the embedded model, compiled)."""

NOISE, WAVES = 0.05, ((0.9, 0.04), (0.9995, 0.045))
"""Relative noise of a round's parts; of whole rounds, as (what is left of it in the next round, its deviation):
what 90,000 rounds of a bench showed on a virtual machine with two cores."""


class Everywhere:
    """Drafts `DEEPEST` at every position and verifies none of it."""

    name = "everywhere"
    wants_confidence = True
    read: list[float]

    def propose(self, batch: Batch) -> int:
        self.read = []
        return min(DEEPEST, batch.limit)

    def verify(self, confidence: FloatArray) -> list[int]:
        self.read = [float(c) for c in confidence[0]]
        return [0]

    def decision(self) -> Decision:
        return Decision(reason="fixed")

    def observe(self, round: Round) -> None: ...
    def explain(self) -> dict[str, Any]:
        return {}

    def parameters(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


def record(path: Path, prompts: int, precision: str, tokens: int) -> None:
    answers = []
    times: dict[int, list[tuple[float, float]]] = defaultdict(list)
    with mtpx.load(precision=precision) as model:
        engine: Any = model.engine
        propose, drafted = engine.propose, list[int]()

        def noted(*args: Any, **named: Any) -> Any:
            drafts = propose(*args, **named)
            drafted[:] = [int(token) for token in drafts.slots[0].tokens]
            return drafts

        chosen = list(gather(SUITES, (), prompts, 0))
        engine.propose = noted
        for prompt in chosen:
            ids, policy, text = list(model.encode(prompt.content)), Everywhere(), list[int]()
            seen: list[tuple[int, list[float], list[int]]] = []
            model.generate(
                ids,
                max_tokens=tokens,
                temperature=0.0,
                policy=policy,
                on_round=lambda r, p=policy, s=seen: s.append(  # type: ignore[misc]
                    (r.slots[0].position, p.read, list(drafted) if p.read else [])
                ),
                before_close=lambda slot, t=text: t.extend(slot.tokens),  # type: ignore[misc]
            )
            rows = [
                [at, read, next((j for j, (a, b) in enumerate(zip(tokens, text[at:], strict=False))
                                 if a != b), min(len(tokens), len(text) - at))]
                for at, read, tokens in seen
            ]  # fmt: skip
            answers.append(
                {"suite": prompt.suite, "start": len(ids), "end": len(text), "rows": rows}
            )
            print(f"{len(answers)} of {len(chosen)} answers", flush=True)
        engine.propose = propose
        for prompt in chosen[:6]:
            for depth in range(DEEPEST + 1):
                model.generate(
                    list(model.encode(prompt.content)),
                    max_tokens=60,
                    temperature=0.0,
                    ignore_eos=True,
                    policy=FixedDepth(depth),
                    on_round=lambda r: times[r.depth].append((r.verify_ms, beside_ms(r))),
                )
    costs = [[statistics.median(x) for x in zip(*times[d], strict=True)] for d in sorted(times)]
    path.write_text(json.dumps({"costs": costs, "answers": answers}))


class Machine:
    """Plays answers. `slow`: chance, per round, that it gets slower for a while."""

    def __init__(self, costs: list[list[float]], slow: float, seed: int) -> None:
        self.costs, self.slow, self.random = costs, slow, random.Random(seed)
        self.request, self.left, self.factor = 0, 0, 1.0
        self.waves = [self.random.gauss(0.0, size) for _, size in WAVES]

    def play(self, policy: DepthPolicy, answer: dict[str, Any]) -> float:
        """ms a token."""
        self.request += 1
        rows = {at: (read, stands) for at, read, stands in answer["rows"]}
        at, last, spent, index = answer["start"], -1, 0.0, 0
        stopping = policy if isinstance(policy, StoppingPolicy) else None
        while at < answer["end"]:
            read, stands = rows.get(at, ([], 0))
            limit = len(read)
            made = depth = min(policy.propose(Batch([limit], [at], [True], lambda _: ROUTE)), limit)
            asked = 0
            if depth > 1 and stopping is not None and stopping.wants_steps:
                made = asked = 1
                while made < depth and stopping.go_on(np.array([read[:made]]))[0]:
                    made, asked = made + 1, min(made + 1, depth - 1)
            verified = made
            if made and policy.wants_confidence:
                asked += 1
                verified = policy.verify(np.array([read[:made]]))[0]
            accepted = min(stands, verified, answer["end"] - at - 1)
            forward = self.costs[verified][0] * (1.0 if last in (-1, verified) else 1.025)
            beside = self.costs[made][1] + READING * asked
            pace = self._pace()
            forward, beside = forward * pace * self._noise(), beside * pace * self._noise()
            slot = SlotRound(
                self.request, at, made, verified, accepted, accepted + 1, False, read[:made] or None
            )
            round = Round(index, 0, made, [slot], forward + beside, ROUTE, False, beside, forward)
            round.ask_ms = READING * asked * pace
            round.decision = policy.decision()
            policy.observe(round)
            at, last, spent, index = (
                at + accepted + 1,
                verified,
                spent + forward + beside,
                index + 1,
            )
        return spent / (answer["end"] - answer["start"])

    def _pace(self) -> float:
        """How slow the machine is in this round."""
        if self.left:
            self.left -= 1
        elif self.random.random() < self.slow:
            self.left, self.factor = self.random.randint(3, 40), self.random.uniform(1.3, 1.9)
        for i, (stays, size) in enumerate(WAVES):
            fresh = math.sqrt(1.0 - stays * stays) * size
            self.waves[i] = stays * self.waves[i] + self.random.gauss(0.0, fresh)
        return (self.factor if self.left else 1.0) * math.exp(sum(self.waves))

    def _noise(self) -> float:
        return math.exp(NOISE * self.random.gauss(0.0, 1.0))


def play(path: Path, slow: float, runs: int, passes: int = 3) -> None:
    found = json.loads(path.read_text())
    answers, costs = found["answers"], found["costs"]
    fixed = {
        depth: statistics.mean(
            math.log(Machine(costs, 0.0, 1).play(FixedDepth(depth), a)) for a in answers
        )
        for depth in range(4)
    }
    best = min(fixed, key=lambda depth: fixed[depth])
    print(f"best fixed depth of {len(answers)} answers: {best}")
    shares: dict[tuple[int, str], list[float]] = defaultdict(list)
    for seed in range(runs):
        policy, order = AdaptiveDepth(), list(answers)
        mine, other = Machine(costs, slow, seed), Machine(costs, slow, 1000 + seed)
        shuffle = random.Random(seed)
        for number in range(passes):
            shuffle.shuffle(order)
            for answer in order:
                share = math.log(other.play(FixedDepth(best), answer) / mine.play(policy, answer))
                shares[number, answer["suite"]].append(share)
                shares[number, "all"].append(share)
    for number in range(passes):
        parts = [
            f"{suite} {math.exp(statistics.mean(shares[number, suite])):.3f}"
            for suite in (*SUITES, "all")
            if shares[number, suite]
        ]
        print(f"adaptive, pass {number + 1}: " + ", ".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("record", "play"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--prompts", type=int, default=80)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--runs", type=int, default=16)
    given = parser.parse_args()
    if given.what == "record":
        record(given.file, given.prompts, given.precision, given.max_tokens)
    else:
        play(given.file, given.slow, given.runs)


if __name__ == "__main__":
    main()
