"""What a bench will run, fixed before the first timed run.

Every MTP arm has its own blocks against plain, so that two depths are two comparisons. The sample
size is part of the design: a bench that stops when it likes what it sees proves nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from mtpx.bench.suites import BenchPrompt
from mtpx.errors import BenchError

PLAIN = "plain"
"""Name of the arm everything is compared with: the head off entirely."""

NULL = "null"
"""Name of the null control's second arm: plain once more, under another name."""

Order = Literal["ABBA", "BAAB"]


class Arm(msgspec.Struct, frozen=True):
    """One way of decoding: `depth` drafts a round; 0 is the plain run."""

    name: str
    depth: int

    @property
    def mode(self) -> str:
        return "mtp" if self.depth else "plain"


PLAIN_ARM = Arm(PLAIN, 0)
NULL_ARM = Arm(NULL, 0)


def mtp_arm(depth: int) -> Arm:
    """The arm of a fixed depth ≥ 1. Raises `BenchError`."""
    if depth < 1:
        raise BenchError(
            f"an MTP arm verifies at least 1 draft a round, got depth {depth}; "
            "depth 0 is plain decode, which --plain-baseline measures"
        )
    return Arm(f"depth {depth}", depth)


class PlannedBlock(msgspec.Struct, frozen=True):
    """One block: `pair` its id, `arm` the name of B, `order` of its four runs (A is plain)."""

    pair: int
    arm: str
    suite: str
    prompt: str
    order: Order


class Design(msgspec.Struct, frozen=True):
    """All of a bench: `blocks` in the order they are run. Without a baseline (`baseline` false) the
    MTP arm runs alone, once a block, and nothing can be concluded."""

    seed: int
    prompts: int
    repeats: int
    arms: list[Arm]
    blocks: list[PlannedBlock]
    baseline: bool = True

    def runs(self, block: PlannedBlock) -> list[Arm]:
        """The arms of a block's runs, in the order of their places."""
        other = next(arm for arm in self.arms if arm.name == block.arm)
        if not self.baseline:
            return [other]
        return [PLAIN_ARM if letter == "A" else other for letter in block.order]

    def work(self) -> Counter[str]:
        """Timed runs by the name of their arm."""
        return Counter(arm.name for block in self.blocks for arm in self.runs(block))

    def seconds(self, run_s: Mapping[str, float]) -> float:
        """Estimated duration in s, from how long one run of each arm took to warm up."""
        return sum(count * run_s.get(name, 0.0) for name, count in self.work().items())


def choose(
    prompts: Sequence[BenchPrompt], total: int | None, per_suite: int, seed: int
) -> list[BenchPrompt]:
    """The prompts a bench uses: `per_suite` of every suite, or `total` shared out evenly.

    Which of a suite's prompts is drawn by `seed`. Raises `BenchError` when there are not as many.
    """
    suites: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        suites.setdefault(prompt.suite, []).append(prompt)
    if not suites:
        raise BenchError("a bench needs at least one prompt; name a suite or a prompt file")
    asked = dict.fromkeys(suites, per_suite)
    if total is not None:
        if total < 1:
            raise BenchError(f"--prompts must be 1 or more, got {total}")
        available = sum(len(members) for members in suites.values())
        if total > available:
            raise BenchError(
                f"--prompts {total} is more than the {available} prompts of "
                f"{', '.join(suites)}; add prompts with --prompt-file, or blocks with --repeats"
            )
        asked = _share(total, {name: len(members) for name, members in suites.items()})
    chosen: list[BenchPrompt] = []
    for name, members in suites.items():
        count = min(asked[name], len(members))
        picks = random.Random(f"{seed}/{name}").sample(range(len(members)), count)
        chosen += [members[i] for i in sorted(picks)]
    return chosen


def _share(total: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """`total` shared out one by one, in turn, to suites that still have prompts."""
    given = dict.fromkeys(sizes, 0)
    while sum(given.values()) < total:
        for name, size in sizes.items():
            if given[name] < size and sum(given.values()) < total:
                given[name] += 1
    return given


def design(
    prompts: Sequence[BenchPrompt],
    arms: Iterable[Arm],
    *,
    repeats: int = 1,
    seed: int = 0,
    baseline: bool = True,
) -> Design:
    """A seeded design: `repeats` blocks a prompt and arm.

    Within a repeat the suites take turns, the prompts of a suite are shuffled and so are the arms of
    a prompt; ABBA and BAAB are equally frequent (to within one) for every arm, in shuffled
    order. A prompt's repeats lie a whole pass apart, so that they see different moments of the
    machine. Raises `BenchError` for no prompt, no arm, doubled arms or fewer than 1 repeat.
    """
    arms = list(arms)
    if repeats < 1:
        raise BenchError(f"--repeats must be 1 or more, got {repeats}")
    if not prompts or not arms:
        raise BenchError("a bench needs at least one prompt and one arm")
    doubled = [name for name, n in Counter(arm.name for arm in arms).items() if n > 1]
    if doubled:
        raise BenchError(f"the arm {doubled[0]!r} is given twice; name every depth once")
    rng = random.Random(seed)
    orders = {arm.name: _orders(len(prompts) * repeats, rng) for arm in arms}
    planned: list[PlannedBlock] = []
    for _ in range(repeats):
        for prompt in _interleaved(prompts, rng):
            for arm in rng.sample(arms, len(arms)):
                order = orders[arm.name].pop()
                planned.append(PlannedBlock(len(planned), arm.name, prompt.suite, prompt.id, order))
    return Design(seed, len(prompts), repeats, arms, planned, baseline)


def _orders(count: int, rng: random.Random) -> list[Order]:
    first: list[Order] = ["ABBA", "BAAB"]
    rng.shuffle(first)
    orders = [first[i % 2] for i in range(count)]
    rng.shuffle(orders)
    return orders


def _interleaved(prompts: Sequence[BenchPrompt], rng: random.Random) -> list[BenchPrompt]:
    """Suites in turn, each in a fresh random order of its prompts."""
    queues: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        queues.setdefault(prompt.suite, []).append(prompt)
    for queue in queues.values():
        rng.shuffle(queue)
    out: list[BenchPrompt] = []
    while any(queues.values()):
        for name in rng.sample(sorted(queues), len(queues)):
            if queues[name]:
                out.append(queues[name].pop())
    return out
