"""How many drafts of a round are worth verifying, given how sure the head is of them.

With λ tokens per ms to be had elsewhere, a round that verifies v drafts is worth Σ_{j≤v} Π_{i≤j} p_i - λ V(v),
V(v) being the target forward over v + 1 rows; the drafts themselves are paid for. Two rules:

- `free_cut`: drafts that are argmax (temperature 0) permit any rule: the v of most worth.
- `stopping_cut`: at temperature > 0 whether draft j is verified may depend on confidences 1..j alone
  (`mtpx.sampling`). Draft j goes in if some depth m ≥ j beats stopping at j - 1, with the calibrated p of
  drafts 1..j and the mere rates of those after it, whose confidences have not been looked at.

Both see past a wall: m runs over all depths.

A chain may also end before it is as long as it might be (`goes_on`): then the head steps it does without
are saved too. What was made may all be verified. Of a chain of drawn drafts only the last may be cut
(`chain_cut`): that it is the last says no more than its own confidence and those before it, and every draft
before it is known to be kept since the chain went on after it.
"""

from __future__ import annotations

from collections.abc import Sequence


def free_cut(accepts: Sequence[float], verify_ms: Sequence[float], rate: float) -> int:
    """The depth of most worth. `accepts[j]`: P(draft j + 1 stands | all before it did), (k,);
    `verify_ms`: V(0..k); `rate`: λ, tokens per ms. Ties to the deeper: its drafts are paid for."""
    best, best_worth = 0, -rate * verify_ms[0]
    tokens, reach = 0.0, 1.0
    for v, p in enumerate(accepts, 1):
        reach *= p
        tokens += reach
        worth = tokens - rate * verify_ms[v]
        if worth >= best_worth:
            best, best_worth = v, worth
    return best


def stopping_cut(
    accepts: Sequence[float], rates: Sequence[float], verify_ms: Sequence[float], rate: float
) -> int:
    """The depth at which a rule that looks at one confidence after the other stops.

    `accepts[j]` may depend on confidences 1..j + 1 only; `rates` (k,) are the positions' means and
    depend on none. `verify_ms` and `rate` as in `free_cut`."""
    reach = 1.0
    k = len(accepts)
    for j in range(k):
        reach *= accepts[j]
        here = rate * verify_ms[j]
        gained, ahead = reach, reach
        pays = gained + here - rate * verify_ms[j + 1] >= 0.0
        m = j + 1
        while not pays and m < k:
            ahead *= rates[m]
            gained += ahead
            m += 1
            pays = gained + here - rate * verify_ms[m] >= 0.0
        if not pays:
            return j
    return k


def goes_on(
    accepts: Sequence[float],
    rates: Sequence[float],
    verify_ms: Sequence[float],
    draft_ms: Sequence[float],
    rate: float,
) -> bool:
    """Whether a chain of j drafts is worth another: some depth m > j beats stopping, the head steps from j to m
    paid for.

    `accepts` (j,), j ≥ 1: the calibrated p of the drafts made; `rates` (k,): the means, of which j + 1..k count;
    `draft_ms` (k + 1,): what so many head steps take; `verify_ms` (k + 1,) and `rate` as in `free_cut`."""
    j = len(accepts)
    reach = tokens = 1.0
    for p in accepts:
        reach *= p
        tokens += reach
    here = max(tokens - rate * verify_ms[j], tokens - reach - rate * verify_ms[j - 1])
    for m in range(j + 1, len(rates) + 1):
        reach *= rates[m - 1]
        tokens += reach
        if tokens - rate * (verify_ms[m] + draft_ms[m] - draft_ms[j]) > here:
            return True
    return False


def chain_cut(accepts: Sequence[float], verify_ms: Sequence[float], rate: float) -> int:
    """How many drafts of a chain that has ended are verified, where they are drawn: all, or all but
    the last. Arguments as in `free_cut`."""
    n = len(accepts)
    reach = 1.0
    for p in accepts:
        reach *= p
    return n if not n or reach >= rate * (verify_ms[n] - verify_ms[n - 1]) else n - 1
