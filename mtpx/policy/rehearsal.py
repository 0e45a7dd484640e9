"""What the last rounds would have been worth had drafts been cut, or chains stopped.

A round is rehearsed with its recorded confidences; drafts that were not made are taken to stand as often
as their position does. What a round commits is an expectation, so luck plays no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtpx.policy.acceptance import expected_tokens
from mtpx.policy.cut import chain_cut, free_cut, goes_on, stopping_cut


@dataclass(frozen=True, slots=True)
class Seen:
    """One sequence's round: its sampling regime; `accepts` (k,): P(stands) of each draft, by its confidence
    where there is one; `rates` (k,): the positions' means; `tokens` (k + 1,): expected tokens."""

    mode: str
    accepts: list[float]
    rates: list[float]
    tokens: list[float]


def seen(
    rows: Sequence[tuple[str, list[float]]],
    depth: int,
    accepts: Callable[[str, int, float, float], float],
    means: Callable[[str, int], list[float]],
) -> list[Seen]:
    """`rows` of (mode, confidences), to `depth` drafts each. `accepts(mode, position, confidence, rate)`:
    calibrated P(stands); `means(mode, k)`: mean rates."""
    rates = {mode: means(mode, depth) for mode in {mode for mode, _ in rows}}
    out = []
    for mode, row in rows:
        mean = rates[mode]
        p = [accepts(mode, j, row[j], mean[j]) for j in range(min(depth, len(row)))]
        p += mean[len(p) :]
        out.append(Seen(mode, p, mean, expected_tokens(p)))
    return out


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a round: `verify` (k + 1,), the target's forward by depth, ms; `draft` (k + 1,), so many head
    steps; `more`, the factor on a forward whose shape changes; `rate`, λ, the tokens per ms to be had elsewhere."""

    verify: list[float]
    draft: list[float]
    more: float
    rate: float

    def after(self, last: int) -> list[float]:
        """(k + 1,) ms of a forward that follows one over `last` drafts."""
        return [ms if v == last else ms * self.more for v, ms in enumerate(self.verify)]


def rehearse(
    rows: Sequence[Seen], depth: int, prices: Prices, *, stepwise: bool, read_ms: float
) -> float:
    """Tokens per ms of `rows` had every round drafted `depth` deep and cut, or, `stepwise`, gone on while
    that paid. `read_ms`: of reading confidences, once a round or, stepwise, once a draft."""
    got = spent = 0.0
    last = depth
    for row in rows:
        verify = prices.after(last)
        made = depth
        if stepwise:
            made = chain_length(row.accepts, row.rates[:depth], verify, prices)
        v = drafts_to_verify(
            row.mode, row.accepts[:made], row.rates[:made], verify, prices.rate, chain=stepwise
        )
        got += row.tokens[v]
        spent += verify[v] + prices.draft[made] + read_ms * (made if stepwise else 1)
        last = v
    return got / spent


def chain_length(
    accepts: Sequence[float], rates: Sequence[float], verify: Sequence[float], prices: Prices
) -> int:
    """Drafts of a chain, asked after each, of at most len(rates)."""
    made = 1
    while made < len(rates) and goes_on(accepts[:made], rates, verify, prices.draft, prices.rate):
        made += 1
    return made


def drafts_to_verify(
    mode: str,
    accepts: Sequence[float],
    rates: Sequence[float],
    verify: Sequence[float],
    rate: float,
    *,
    chain: bool,
) -> int:
    """Any rule where drafts are argmax; where they are drawn a stopping rule, or what a chain allows."""
    if mode == "greedy":
        return free_cut(accepts, verify, rate)
    if chain:
        return chain_cut(accepts, verify, rate)
    return stopping_cut(accepts, rates, verify, rate)
