"""How much of what the turn before computed for the target holds for a new prompt, and why not more."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mtpx.carry import CarryOutcome, common_prefix


class Reuse(msgspec.Struct, frozen=True):
    """`tokens` of the prompt need not be computed; `why` not more, in words ("": all that could be
    were). `common` tokens are those of the turn before."""

    tokens: int
    common: int = 0
    why: str = ""


class Reused(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a prompt took over: `tokens` of the target's, `why` not more, what became of the head's
    rows (`carry`, absent without a head), and the ms that took, where they were had."""

    tokens: int = 0
    why: str = ""
    carry: CarryOutcome | None = None
    ms: float | None = None


def plan_reuse(
    prompt: Sequence[int],
    kept: Sequence[int],
    filled: int,
    *,
    snapshots: Sequence[int] | None = None,
    floor: int = 0,
    most: int | None = None,
) -> Reuse:
    """How many tokens of `prompt` the target need not compute, having computed the first `filled` of
    `kept`.

    A key-value cache is cut where the two part. A recurrent state cannot be: then `snapshots` says
    after how many tokens one was kept, and the deepest at or below that place serves, unless it is
    shallower than `floor` (`snapshot_min_tokens`). The last token of a prompt is always left to
    compute (it is pending); `most` leaves more.
    """
    common = common_prefix(prompt, kept)
    can = min(common, filled, len(prompt) - 1 if most is None else most)
    parted = common < min(len(kept), len(prompt))
    why = f"the prompt leaves the earlier one at token {common + 1:,}" if parted else ""
    if snapshots is None:
        return Reuse(max(0, can), common, why)
    at = max((s for s in snapshots if s <= can), default=0)
    if at < can:
        kind = f"the deepest state kept before that is after {at:,}" if at else "no state was kept"
        why = f"{why or f'{can:,} tokens are known'}; {kind}"
    if 0 < at < floor:
        return Reuse(0, common, f"a state after {at:,} tokens is not worth it (under {floor:,})")
    return Reuse(at, common, why)
