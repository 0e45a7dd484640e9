"""How much a step of `make check-mac` does: all that is wanted, or what fits into the time there is.

A pace is measured once, from two short answers. A step has several amounts of work, the whole first,
each with an estimate of the seconds it takes at a pace; the first that fits is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEARNING = 8
"""Prompts a learning policy is shown before a bench's first block."""

WARMUPS = 2
"""Runs of every arm before its first timed one."""

WARMUP_TOKENS = 48
"""Of the prompts of both."""

SHORT_FILE = Path(__file__).parent / "short_prompts.jsonl"


@dataclass(frozen=True)
class Pace:
    """Seconds: of reading a prompt's token, of decoding one plain and one with drafts, and of starting a
    command until it computes."""

    prompt: float
    plain: float
    drafted: float
    start: float

    def __str__(self) -> str:
        return (
            f"{self.prompt * 1e3:.1f} ms a prompt token, {self.plain * 1e3:.1f} ms a token decoded plain, "
            f"{self.drafted * 1e3:.1f} ms with 2 drafts a round, {self.start:.1f} s to start"
        )

    def runs(self, count: int, prompt: int, tokens: int, decoding: float) -> float:
        """Seconds of `count` answers of `tokens` tokens, at `decoding` seconds each, to a prompt."""
        return count * (prompt * self.prompt + tokens * decoding)


def pace_of(
    plain: dict[str, Any], plain_s: float, drafted: dict[str, Any], drafted_s: float
) -> Pace | None:
    """The pace from what `mtpx run --json` said of a plain and of a drafted answer, and how long each
    command took. `None` where an answer was too short to have a rate."""
    starts = []
    for said, took in ((plain, plain_s), (drafted, drafted_s)):
        if not said.get("tok_s") or not said.get("prefill_ms") or not said.get("prompt_tokens"):
            return None
        starts.append(took - said["prefill_ms"] / 1e3 - said["tokens"] / said["tok_s"])
    return Pace(
        # The first answer of a machine may compile kernels while it reads.
        prompt=min(said["prefill_ms"] / 1e3 / said["prompt_tokens"] for said in (plain, drafted)),
        plain=1.0 / plain["tok_s"],
        drafted=1.0 / drafted["tok_s"],
        start=max(0.0, min(starts)),
    )


@dataclass(frozen=True)
class Work:
    """An amount of work: what it is in words, the arguments that ask for it, the seconds it takes."""

    words: str
    arguments: list[str]
    seconds: Callable[[Pace], float]


def choose(works: Sequence[Work], pace: Pace | None, room: float) -> Work:
    """The first of `works` that takes at most `room` seconds, else the last, which is the least."""
    if pace is None:
        return works[-1]
    return next((work for work in works if work.seconds(pace) <= room), works[-1])


@dataclass(frozen=True)
class Prompts:
    """What a bench asks: in words, the arguments, how many prompts and of how many tokens on average."""

    words: str
    arguments: list[str]
    count: int
    tokens: int


SUITES = Prompts("12 prompts", [], 12, 50)
SHORT = Prompts("6 short prompts", ["--prompt-file", str(SHORT_FILE)], 6, 8)
"""The least a verdict can rest on. Where a prompt's token takes as long as one that is decoded, half an
hour goes into reading the suites' prompts."""


def null_control(prompts: Prompts, repeats: int, tokens: int) -> Work:
    """Plain against plain: blocks of four runs, all of them plain."""
    return Work(
        f"{prompts.words} × {repeats} blocks × {tokens} tokens",
        [*prompts.arguments, "--max-tokens", str(tokens), "--repeats", str(repeats)],
        lambda pace: (
            pace.start
            + pace.runs(2 * WARMUPS, WARMUP_TOKENS, tokens, pace.plain)
            + pace.runs(4 * prompts.count * repeats, prompts.tokens, tokens, pace.plain)
        ),
    )


def bench(prompts: Prompts, tokens: int, depths: str) -> Work:
    """Every depth in blocks of two plain runs and two of its own; `auto` learns first."""

    def seconds(pace: Pace) -> float:
        arms = depths.split(",")
        costly = max(pace.plain, pace.drafted)
        untimed = WARMUPS * len(arms) + LEARNING * ("auto" in arms)
        pairs = 2 * prompts.count * len(arms)
        return (
            pace.start
            + pace.runs(WARMUPS, WARMUP_TOKENS, tokens, pace.plain)
            + pace.runs(untimed, WARMUP_TOKENS, tokens, costly)
            + pace.runs(pairs, prompts.tokens, tokens, pace.plain + costly)
            + pace.runs(pairs, prompts.tokens, 0, 0.0)
        )

    return Work(
        f"{prompts.words} × {tokens} tokens, depths {depths}",
        [*prompts.arguments, "--max-tokens", str(tokens), "--depths", depths],
        seconds,
    )


def speed(blocks: int, tokens: int) -> Work:
    """Plain decoding twice here and twice in mlx-lm's own loop, a block."""
    return Work(
        f"{blocks} blocks × {tokens} tokens",
        ["--blocks", str(blocks), "--tokens", str(tokens)],
        lambda pace: pace.start + blocks * 4 * (8 * pace.prompt + tokens * pace.plain),
    )


NULL_CONTROLS = [
    null_control(SUITES, 3, 64),
    null_control(SUITES, 2, 32),
    null_control(SUITES, 1, 32),
    null_control(SHORT, 2, 32),
    null_control(SHORT, 1, 32),
    null_control(SHORT, 1, 16),
]

BENCHES = [
    bench(SUITES, 64, "1,2,auto"),
    bench(SUITES, 32, "1,2,auto"),
    bench(SHORT, 32, "1,2,auto"),
    bench(SHORT, 16, "1,2,auto"),
    bench(SHORT, 16, "1,auto"),
    bench(SHORT, 16, "1"),
]
"""16 tokens are the least that has a rate."""

SPEEDS = [speed(8, 32), speed(4, 32), speed(4, 16), speed(2, 16)]
