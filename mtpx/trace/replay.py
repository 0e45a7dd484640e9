"""Another policy over a recorded run: what it would have delivered. A model, and so an estimate.

Costs and acceptances are the trace's own (`mtpx.trace.recording`); whether a draft stands is drawn with
them, from uniforms that belong to the place in the text, so that two policies see the same luck. The
policy itself is the real one. The text is as long as it was; where a round begins in it is the
policy's doing, as it is live.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np

from mtpx.chain import lengths
from mtpx.errors import MtpxError, PolicyError, TraceError
from mtpx.policy import Batch, DepthPolicy, StoppingPolicy
from mtpx.round import Round, Route, SlotRound
from mtpx.trace.recording import Floats, Recording
from mtpx.trace.timeline import Stretch, Timeline

DRAWS = 5
"""Times the run is drawn anew; what they differ by is the luck in one of them."""


class Replay(msgspec.Struct, frozen=True):
    """What `policy` would have delivered: an estimate. `low` and `high` are the extremes of `draws`
    draws, `depths` the share of rounds at each depth, `recorded_tokens_per_s` what the trace itself
    delivered in its rounds, `plain_tokens_per_s` what depth 0 would. `assumed` says what the trace
    did not hold and was taken from its neighbours."""

    policy: str
    parameters: dict[str, object]
    draws: int
    tokens: int
    rounds: float
    tokens_per_s: float
    low: float
    high: float
    recorded_tokens_per_s: float
    plain_tokens_per_s: float
    depths: dict[int, float]
    timeline: list[Stretch]
    assumed: list[str]


def replay(recorded: Recording, make: Callable[[], DepthPolicy], *, draws: int = DRAWS) -> Replay:
    """Drive a fresh policy from `make` over the recording, `draws` times.

    Raises `TraceError` if the policy decides by confidences and the trace has none, `PolicyError` if it
    answers with what is no depth.
    """
    if draws < 1:
        raise TraceError(f"a replay needs at least 1 draw, got {draws}")
    runs = [_Drive(recorded, make(), draw) for draw in range(draws)]
    for run in runs:
        run.all()
    rates = [1e3 * recorded.tokens / run.ms for run in runs]
    rounds = sum(run.index for run in runs)
    depths: Counter[int] = Counter()
    for run in runs:
        depths.update(run.depths)
    plain, estimated = recorded.cost(0, 0)
    assumed = list(recorded.notes)
    guessed = sorted({d for run in runs for d in run.guessed} | ({0} if estimated else set()))
    if guessed:
        assumed.append(
            f"what depth {', '.join(map(str, guessed))} costs was not measured: taken from its neighbours"
        )
    return Replay(
        policy=runs[0].policy.name,
        parameters=runs[0].policy.parameters(),
        draws=draws,
        tokens=recorded.tokens,
        rounds=rounds / draws,
        tokens_per_s=1e3 * recorded.tokens * draws / math.fsum(run.ms for run in runs),
        low=min(rates),
        high=max(rates),
        recorded_tokens_per_s=1e3 * recorded.tokens / recorded.ms,
        plain_tokens_per_s=1e3 / plain,
        depths={depth: n / rounds for depth, n in sorted(depths.items())},
        timeline=runs[0].timeline.stretches(),
        assumed=assumed,
    )


class _Drive:
    """One draw of the whole run."""

    def __init__(self, recorded: Recording, policy: DepthPolicy, draw: int) -> None:
        self.recorded, self.policy = recorded, policy
        self.stopping = policy if isinstance(policy, StoppingPolicy) else None
        self.luck: Floats = np.random.default_rng(draw).random(
            (recorded.tokens + 1, max(1, recorded.limit))
        )
        self.timeline = Timeline()
        self.ms = 0.0
        self.index = 0
        self.start_ns = 0
        self.last: int | None = None
        self.depths: Counter[int] = Counter()
        self.guessed: set[int] = set()

    def all(self) -> None:
        done = 0
        for id, tokens, context, greedy in self.recorded.requests:
            self.last = None
            begun = done
            while done < begun + tokens:
                left = begun + tokens - done
                done += self._round(id, done, context + done - begun, left, greedy)

    def _round(self, id: int, token: int, context: int, left: int, greedy: bool) -> int:
        recorded, policy = self.recorded, self.policy
        cap = max(0, min(recorded.limit, left - 1))
        batch = Batch(caps=[cap], contexts=[context], greedy=[greedy], route=self._route)
        try:
            drafted = min(_depth(policy, policy.propose(batch)), cap)
            confidences, stands = self._drafts(token, drafted)
            if drafted > 1 and self._stepping:
                assert self.stopping is not None
                (drafted,) = lengths(self.stopping.go_on, np.array([confidences]))
                confidences = confidences[:drafted]
            verified = drafted
            if policy.wants_confidence and drafted:
                (verified,) = policy.verify(np.array([confidences]))
                verified = min(_depth(policy, verified), drafted)
            accepted = next((j for j in range(verified) if not stands[j]), verified)
            round = self._record(id, context, drafted, verified, accepted, token, confidences)
            round.decision = policy.decision()
            policy.observe(round)
        except MtpxError:
            raise
        except Exception as error:
            raise PolicyError(
                f"policy {policy.name!r} raised {type(error).__name__}: {error}"
            ) from error
        self.timeline.add(round, accepted + 1, round.round_ms)
        self.depths[drafted] += 1
        self.ms += round.round_ms
        self.index += 1
        return accepted + 1

    def _record(
        self,
        id: int,
        context: int,
        drafted: int,
        verified: int,
        accepted: int,
        token: int,
        confidences: list[float],
    ) -> Round:
        recorded = self.recorded
        cost, guessed = recorded.cost(drafted, verified)
        if guessed:
            self.guessed.add(verified)
        cost *= float(recorded.pace[recorded.at(token)])
        if self.last is not None and verified != self.last:
            cost *= recorded.transition
        self.last = verified
        self.start_ns += round(cost * 1e6)
        return Round(
            index=self.index,
            start_ns=self.start_ns - round(cost * 1e6),
            depth=drafted,
            slots=[
                SlotRound(
                    id,
                    context,
                    drafted,
                    verified,
                    accepted,
                    accepted + 1,
                    confidences=confidences if self._confident else None,
                )
            ],
            round_ms=cost,
            route=self._route(verified),
        )

    @property
    def _stepping(self) -> bool:
        return self.stopping is not None and self.stopping.wants_steps

    @property
    def _confident(self) -> bool:
        return bool(self.recorded.confidences and self.recorded.confidences[0])

    def _route(self, depth: int) -> Route:
        return self.recorded.routes.get(depth, Route())

    def _drafts(self, token: int, count: int) -> tuple[list[float], list[bool]]:
        """Confidences of `count` drafts here, and whether each would stand if those before it do."""
        recorded, luck = self.recorded, self.luck[token]
        if not self.policy.wants_confidence and not self._stepping:
            rates = recorded.rates[recorded.at(token)]
            return [math.nan] * count, [bool(luck[j] < rates[j]) for j in range(count)]
        if not self._confident:
            raise TraceError(
                f"policy {self.policy.name!r} decides by the head's confidences, and this trace has "
                "none; replay a policy that does not, or record a trace with one that does"
            )
        pools = [pool for pool in recorded.confidences if pool]
        picked = [pools[min(j, len(pools) - 1)] for j in range(count)]
        drawn = [pool[int(luck[j] * len(pool))] for j, pool in enumerate(picked)]
        return [c for c, _ in drawn], [stood for _, stood in drawn]


def _depth(policy: DepthPolicy, depth: object) -> int:
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise PolicyError(f"policy {policy.name!r} proposed {depth!r}, which is not a depth")
    return depth
