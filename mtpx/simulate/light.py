"""Policies through scenarios without tokens: rounds as the loop would record them, 100 times faster.

Whether draft j stands is a Bernoulli draw with the scenario's rate; nothing else of a model is
there. The same seed has the same draws for every policy (common random numbers), so two policies
differ by what they decided. `tests/test_adaptive.py` holds it to the real loop on `SimulatedEngine`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtpx.chain import lengths
from mtpx.decode import Answering
from mtpx.errors import PolicyError
from mtpx.policy import Batch, DepthPolicy, StoppingPolicy
from mtpx.round import Round, Route, SlotRound
from mtpx.sampling import Array
from mtpx.simulate.scenario import Scenario, tables


@dataclass(frozen=True)
class Played:
    """A policy's run, round by round, (R,) each: depth proposed, mean depth verified, tokens of all
    sequences, ms, and the expected rate of that depth in that round (tokens per ms)."""

    depths: npt.NDArray[np.int64]
    tokens: Array
    ms: Array
    excluded: list[str]
    reasons: list[str]

    @property
    def rate(self) -> float:
        """Delivered tokens per ms."""
        return float(self.tokens.sum() / self.ms.sum())


def play(
    policy: DepthPolicy,
    scenario: Scenario,
    *,
    rounds: int = 4000,
    seed: int = 0,
    greedy: bool = True,
    timed_apart: bool = True,
) -> Played:
    """Drive `policy` through `rounds` rounds. Raises `PolicyError` when it raises or answers nonsense."""
    t = tables(scenario, rounds)
    limit, width = t.limit, t.width
    random = np.random.default_rng([seed, 20_260_101])
    u = random.random((rounds, width, limit)).tolist()
    sure = random.random((rounds, width, limit))
    stands = np.stack(
        [scenario.stands(j, t.rates[:, None, j], sure[:, :, j]) for j in range(limit)], axis=-1
    )
    logs = np.log(np.maximum(stands, 1e-3))
    sigma = scenario.noise
    noise = np.exp(sigma * random.standard_normal((rounds, 2)) - sigma * sigma / 2.0).tolist()
    stalled = random.random(rounds) < scenario.stall
    factors = np.where(stalled, random.uniform(*scenario.stall_factor, rounds), 1.0).tolist()
    verify, draft, stands = t.verify.tolist(), t.draft.tolist(), stands.tolist()
    growth = (t.factor * scenario.context_ms / 1000.0).tolist()
    routes = _Routes(scenario)
    stopping = policy if isinstance(policy, StoppingPolicy) else None
    answering = Answering(policy)
    caps = [limit] * width
    flags = [greedy] * width
    contexts = [scenario.context] * width
    clock = 0.0
    depths, tokens, times = [], [], []
    excluded, reasons = [], []
    last = None
    for r in range(rounds):
        batch = Batch(caps, list(contexts), flags, routes.of)
        with answering:
            depth = policy.propose(batch)
            if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
                raise PolicyError(f"policy {policy.name!r} proposed {depth!r}, not a depth")
            depth = min(depth, limit)
            counts, readings = [depth] * width, 0
            if depth > 1 and stopping is not None and stopping.wants_steps:
                counts = lengths(stopping.go_on, logs[r, :, :depth])
                readings = min(max(counts), depth - 1)
            if depth and policy.wants_confidence:
                readings += 1
                shown = logs[r, :, : max(counts)]
                if min(counts) < max(counts):
                    shown = np.where(
                        np.arange(max(counts)) < np.array(counts)[:, None], shown, np.nan
                    )
                verified = policy.verify(shown)
                if len(verified) != width or any(
                    not 0 <= v <= n for v, n in zip(verified, counts, strict=True)
                ):
                    raise PolicyError(
                        f"policy {policy.name!r} asked to verify {verified} of {counts} drafts"
                    )
            else:
                verified = counts
        slots = []
        total = 0
        for i, v in enumerate(verified):
            row, chance = u[r][i], stands[r][i]
            accepted = 0
            while accepted < v and row[accepted] < chance[accepted]:
                accepted += 1
            slots.append(
                SlotRound(
                    i,
                    contexts[i],
                    counts[i],
                    v,
                    accepted,
                    accepted + 1,
                    False,
                    logs[r, i, : counts[i]].tolist() if scenario.confident and counts[i] else None,
                )
            )
            total += accepted + 1
        shape = tuple(verified)
        mean = sum(verified) / width
        low = int(mean)
        forward = verify[r][low]
        if mean > low:
            forward += (verify[r][low + 1] - forward) * (mean - low)
        forward += growth[r] * max(contexts)
        route, compiled_now, extra = routes.run(shape)
        if route.kind == "eager":
            forward *= scenario.eager_factor
        if last is not None and shape != last:
            forward *= scenario.transition
        forward = (forward * factors[r] + extra) * noise[r][0]
        depth = max(counts)
        drafting = draft[r][depth] * noise[r][1]
        last = shape
        for i, slot in enumerate(slots):
            contexts[i] += slot.committed
        ms = forward + drafting + readings * scenario.read_ms
        round = Round(
            r,
            int(clock * 1e6),
            depth,
            slots,
            ms,
            route,
            compiled_now,
            drafting if timed_apart and depth else None,
            forward if timed_apart else None,
        )
        clock += ms
        with answering:
            round.decision = decision = policy.decision()
            policy.observe(round)
        depths.append(depth)
        tokens.append(total)
        times.append(ms)
        excluded.append(decision.excluded)
        reasons.append(decision.reason)
    return Played(
        np.array(depths), np.array(tokens, dtype=np.float64), np.array(times), excluded, reasons
    )


class _Routes:
    """Which shapes this machine has compiled."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._uses: dict[Any, int] = {}
        self._compiled: set[Any] = set()
        self._made: dict[Any, Route] = {}

    def of(self, depth: int) -> Route:
        return self._route((min(depth, self._scenario.depth_limit),) * self._scenario.width)

    def _route(self, shape: tuple[int, ...]) -> Route:
        key = (shape, shape in self._compiled)
        if key not in self._made:
            bucket = "x".join(str(v + 1) for v in shape)
            self._made[key] = Route("compiled" if key[1] else "eager", bucket)
        return self._made[key]

    def run(self, shape: tuple[int, ...]) -> tuple[Route, bool, float]:
        """(route, compiled in this round, ms of compiling)."""
        if not self._scenario.compile_after or shape in self._compiled:
            return self._route(shape), False, 0.0
        self._uses[shape] = self._uses.get(shape, 0) + 1
        if self._uses[shape] <= self._scenario.compile_after:
            return self._route(shape), False, 0.0
        self._compiled.add(shape)
        return self._route(shape), True, self._scenario.compile_ms
