"""What a bench says: how far it is, and what it found."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from mtpx.bench.compare import Comparison
from mtpx.bench.design import Design
from mtpx.bench.records import ArmRate
from mtpx.bench.verdict import Verdict

INTERRUPTED = "interrupted"
"""What `BenchResult.stopped` says after Ctrl-C; otherwise it is the sentence of an error."""


class BenchAbout(msgspec.Struct, frozen=True):
    """What a bench ran on, for whoever reads its result elsewhere; `route` of a plain round."""

    pack: str
    quantisation: str
    dtype: str
    device: str
    backend: str
    tier: str
    threads: int | None
    mtpx: str
    max_tokens: int
    temperature: float
    route: str = ""


class BenchResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a bench found: a verdict for every arm, every arm's speed, the arms against each other, why it
    stopped early (`INTERRUPTED`, the sentence of an error, or ""), and, where the design has plain decode in
    the fastest precision, every MTP arm's verdict against that."""

    about: BenchAbout
    design: Design
    verdicts: list[Verdict]
    rates: list[ArmRate]
    stopped: str = ""
    comparisons: list[Comparison] = []
    against_fastest: list[Verdict] = []

    def fastest(self, arm: str) -> Verdict | None:
        """The verdict on this arm against plain decode in the fastest precision, if there is one."""
        return next((v for v in self.against_fastest if v.arm == arm), None)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a bench stands: `done` of `total` runs, about `left_s` seconds to go (`None` until the
    warm-up has told), `now` what is running."""

    done: int
    total: int
    left_s: float | None
    now: str
