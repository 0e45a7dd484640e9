"""What a bench will run, fixed before the first timed run.

Every MTP arm has its own blocks against plain, so that two depths are two comparisons. The sample
size is part of the design: a bench that stops when it likes what it sees proves nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from mtpx.bench.fastest import Fastest, Order, with_third
from mtpx.bench.looks import check_looks
from mtpx.bench.policies import options_named
from mtpx.bench.suites import BenchPrompt, distinct, prompt_file, suite
from mtpx.errors import BenchError

PLAIN = "plain"
"""Name of the arm everything is compared with: the head off entirely."""

NULL = "null"
"""Name of the null control's second arm: plain once more, under another name."""

DEFAULT_SUITES = ("chat", "code")

PER_SUITE = 6
"""Prompts drawn from a shipped suite unless told: the least that gives every suite its verdict."""

MOST_SEED = 2**48
"""A block's runs are seeded by this and the block's number, and together they must be a seed."""


class Arm(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way of decoding: `depth` drafts a round, or as many as `policy` (a name) says; 0 without a
    policy is the plain run."""

    name: str
    depth: int
    policy: str = ""

    @property
    def mode(self) -> str:
        return "mtp" if self.depth or self.policy else "plain"

    def deepest(self, limit: int) -> int:
        """The most drafts a round may verify, for a head that drafts up to `limit`."""
        return limit if self.policy else self.depth


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


def policy_arm(name: str) -> Arm:
    """The arm of a policy of `mtpx.bench.policies`, under its name. Raises `PolicyError` for a name that is
    none."""
    options_named(name)
    return Arm(name, 0, name)


class PlannedBlock(msgspec.Struct, frozen=True):
    """One block: `pair` its id, `arm` the name of B, `order` of its four runs (A is plain), or of six with
    plain decode in the fastest precision (C)."""

    pair: int
    arm: str
    suite: str
    prompt: str
    order: Order


class Design(msgspec.Struct, frozen=True):
    """All of a bench: `blocks` in the order they are run. Without a baseline (`baseline` false) the
    MTP arm runs alone, once a block, and nothing can be concluded. `looks`: how often the bench looks
    at its result and may stop, the end included. `fastest` is the plain decode that MTP has to beat beside
    that of its own precision; where there is none, `no_fastest` says why, or that it is the same."""

    seed: int
    prompts: int
    repeats: int
    arms: list[Arm]
    blocks: list[PlannedBlock]
    baseline: bool = True
    looks: int = 1
    fastest: Fastest | None = None
    no_fastest: str = ""

    def runs(self, block: PlannedBlock) -> list[Arm]:
        """The arms of a block's runs, in the order of their places."""
        other = next(arm for arm in self.arms if arm.name == block.arm)
        if not self.baseline:
            return [other]
        arms = {"A": PLAIN_ARM, "B": other}
        if self.fastest is not None:
            arms["C"] = Arm(self.fastest.arm, 0)
        return [arms[letter] for letter in block.order]

    def work(self) -> Counter[str]:
        """Timed runs by the name of their arm."""
        return Counter(arm.name for block in self.blocks for arm in self.runs(block))


def gather(
    suites: Sequence[str], files: Sequence[Path], total: int | None = None, seed: int = 0
) -> list[BenchPrompt]:
    """The prompts of a bench, from shipped suites and one's own files.

    With `total`, that many in all, shared out evenly; else 6 of every suite and all of one's own.
    With neither suite nor file, chat and code. Raises `BenchError`, also for two prompts alike.
    """
    names = list(dict.fromkeys(suites)) or ([] if files else list(DEFAULT_SUITES))
    shipped = [suite(name) for name in names]
    own = [prompt for file in files for prompt in prompt_file(file)]
    if total is not None:
        return distinct(choose([p for members in shipped for p in members] + own, total, seed))
    drawn = [choose(members, min(PER_SUITE, len(members)), seed) for members in shipped]
    return distinct([prompt for members in drawn for prompt in members] + own)


def choose(prompts: Sequence[BenchPrompt], total: int, seed: int) -> list[BenchPrompt]:
    """`total` of these prompts, drawn by `seed`, shared out evenly among their suites.

    Raises `BenchError` when there are not as many.
    """
    if not 1 <= total <= len(prompts):
        raise BenchError(
            f"--prompts must be 1 to {len(prompts)}, which is how many prompts there are; got {total}. "
            "More come with --prompt-file, more blocks on each with --repeats"
        )
    suites: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        suites.setdefault(prompt.suite, []).append(prompt)
    asked = _share(total, {name: len(members) for name, members in suites.items()})
    chosen: list[BenchPrompt] = []
    for name, members in suites.items():
        picks = random.Random(f"{seed}/{name}").sample(range(len(members)), asked[name])
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
    looks: int = 1,
) -> Design:
    """A seeded design: `repeats` blocks a prompt and arm.

    Within a repeat the suites take turns, the prompts of a suite are shuffled and so are the arms of
    a prompt; ABBA and BAAB are equally frequent (to within one) for every arm, in shuffled
    order. A prompt's repeats lie a whole pass apart, so that they see different moments of the
    machine. Raises `BenchError` for no prompt, no arm, doubled arms, fewer than 1 repeat, and for looks
    that are not 1 to 5 or are at more than one comparison, and a seed that is none.
    """
    if not 0 <= seed <= MOST_SEED:
        raise BenchError(f"--seed must be from 0 to {MOST_SEED}, got {seed}")
    arms = list(arms)
    check_looks(looks)
    if looks > 1 and (len(arms) != 1 or not baseline):
        raise BenchError("--looks is for one comparison: one depth against plain runs")
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
    return Design(seed, len(prompts), repeats, arms, planned, baseline, looks)


def against_fastest(plan: Design, fastest: Fastest) -> Design:
    """`plan` with plain decode in the fastest precision in every block of an MTP arm. The blocks, their
    order, and which of A and B goes first stay as they are."""
    placed: dict[int, Order] = {}
    for arm in plan.arms:
        if arm.mode == "mtp":
            blocks = [block for block in plan.blocks if block.arm == arm.name]
            orders = with_third([block.order for block in blocks], plan.seed)
            placed |= {block.pair: order for block, order in zip(blocks, orders, strict=True)}
    blocks = [
        msgspec.structs.replace(block, order=placed.get(block.pair, block.order))
        for block in plan.blocks
    ]
    return msgspec.structs.replace(plan, blocks=blocks, fastest=fastest)


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
