"""What is told beside a verdict: whether the texts were equal, whether the machine held still."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from mtpx.bench import intervals
from mtpx.bench.blocks import Block
from mtpx.bench.intervals import Effect


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a prompt's texts first part at temperature 0. `gap` is how far apart the target's logits
    of the two tokens are: near 0 it is a numerical tie."""

    suite: str
    prompt: str
    position: int | None = None
    gap: float | None = None


def texts(blocks: Iterable[Block]) -> dict[tuple[str, str], bool]:
    """For each prompt decoded at temperature 0 and not cut: whether all its texts are equal. In another
    precision they need not be."""
    texts: dict[tuple[str, str], set[str]] = {}
    for block in blocks:
        if block.greedy and not block.void and not block.against:
            texts.setdefault(block.key, set()).update(run.sha256 for run in block.runs)
    return {key: len(digests) == 1 for key, digests in texts.items() if "" not in digests}


def differences(blocks: Iterable[Block], compared: dict[tuple[str, str], bool]) -> list[Difference]:
    found: dict[tuple[str, str], Difference] = {}
    for block in blocks:
        if compared.get(block.key, True):
            continue
        for run in block.runs:
            known = found.get(block.key)
            if known is None or (known.position is None and run.differs_at is not None):
                found[block.key] = Difference(*block.key, run.differs_at, run.differs_gap)
    return list(found.values())


def drift(blocks: Iterable[Block]) -> Effect | None:
    """Trend of the plain rate over the bench; a block's two plain runs are one point, since they share
    a prompt."""
    times, logs = [], []
    for block in sorted(blocks, key=lambda block: block.pair):
        rates = [run.rate for run in block.plain if run.rate]
        times.append(math.fsum(run.order for run in block.plain) / len(block.plain))
        logs.append(math.fsum(math.log(rate) for rate in rates) / len(rates))
    return intervals.trend(times, logs)


def first_position(blocks: Iterable[Block]) -> Effect | None:
    """A block's first run against its last: ABBA and BAAB both put one arm at either end."""
    logs = []
    for block in blocks:
        first, last = block.runs[0].rate, block.runs[-1].rate
        if first and last:
            logs.append(math.log(first / last))
    return intervals.mean_effect(logs)
