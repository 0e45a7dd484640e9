"""Carrying the head's KV rows from one turn of a conversation to the next.

On a warm turn the target's prefix is reused, so its hidden states are not computed again and the
head's rows cannot be made from them: they are adopted from the turn before, and only the new span is
appended. Everything here is pure; a backend moves the bytes.

Pair key k is (embedding of token k + 1, target hidden state at k), at RoPE position k + 1. The head's
rows are compact, RoPE stays in sequence space: a key that was skipped leaves no hole. Hidden states are
stored by absolute position: row i holds hidden state i.

A common prefix is not identity: two conversations that begin with the same chat template never adopt
each other's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from mtpx.snapshots import set_snapshot_min_tokens, snapshot_min_tokens

__all__ = [
    "Adopted",
    "CarriedHead",
    "CarryOutcome",
    "ForeignHiddens",
    "ForeignSession",
    "NoCarry",
    "NoHiddens",
    "PrefixMismatch",
    "StoreRange",
    "appended",
    "carry_armed",
    "carry_state",
    "common_prefix",
    "hidden_row_offset",
    "merge_interval",
    "plan_append",
    "refusal",
    "set_snapshot_min_tokens",
    "snapshot_min_tokens",
    "stamped_merge",
]


def carry_armed(configured: bool, multi_sequence: bool) -> bool:
    """Whether rows are carried: configured ∧ ¬multi_sequence (`EngineOptions.max_width` > 1)."""
    return configured and not multi_sequence


def carry_state(configured: bool, multi_sequence: bool) -> str:
    """ "armed", or why it is not, in words."""
    if carry_armed(configured, multi_sequence):
        return "armed"
    if configured:
        return "configured, not armed: several sequences may run at once"
    return "switched off"


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))


@dataclass(frozen=True, slots=True)
class CarriedHead:
    """The head's KV of a finished turn: `rows` of them, the last of which holds pair `last_pair_key`,
    made of `tokens`, in `session` (a hash; 0: none). `handle` is the backend's own."""

    rows: int
    last_pair_key: int
    tokens: Sequence[int]
    session: int
    handle: Any = field(default=None, compare=False, repr=False)

    def usable_by(self, prompt: Sequence[int], session: int) -> CarriedHead | None:
        """What of it holds for `prompt` in `session`; `None` for another session or no session, or
        where nothing is left. Truncates rather than refuses.

        common = |longest common prefix|; key = min(last_pair_key, common - 2), since pair k needs
        token k + 1; rows' = rows - (last_pair_key - key). Where keys were skipped, fewer rows than
        still hold may be left, never more.
        """
        if session == 0 or session != self.session:
            return None
        key = min(self.last_pair_key, common_prefix(self.tokens, prompt) - 2)
        rows = self.rows - (self.last_pair_key - key)
        if key < 0 or rows <= 0:
            return None
        return replace(self, rows=rows, last_pair_key=key, tokens=list(self.tokens[: key + 2]))


def plan_append(
    last_pair_key: int, prompt_len: int, hidden_lo: int, hidden_hi: int
) -> tuple[int, int] | None:
    """(first key, how many) to append after `last_pair_key` (-1: no row yet) for a prompt of
    `prompt_len` tokens, reading hidden states [hidden_lo, hidden_hi).

    need = prompt_len - 2, the last key of the prompt; first = max(last_pair_key + 1, hidden_lo).
    `None` where prompt_len < 2, first > need or hidden_hi ≤ need; else (first, need - first + 1).
    """
    need = prompt_len - 2
    first = max(last_pair_key + 1, hidden_lo)
    if prompt_len < 2 or first > need or hidden_hi <= need:
        return None
    return first, need - first + 1


def merge_interval(lo: int, hi: int, start: int, count: int) -> tuple[int, int]:
    """The interval [lo, hi) after a write of [start, start + count).

    An overlap or an abutment extends it: (min(lo, start), max(hi, start + count)). A disjoint write
    replaces it: one interval cannot describe two runs, and claiming the gap between them would mark
    rows valid that nobody wrote. An empty write changes nothing.
    """
    end = start + count
    if count <= 0:
        return lo, hi
    if lo >= hi or start > hi or end < lo:
        return start, end
    return min(lo, start), max(hi, end)


@dataclass(frozen=True, slots=True)
class StoreRange:
    """Rows [lo, hi) of a store of hidden states, and the ticket of who wrote them (0: nobody)."""

    owner: int = 0
    lo: int = 0
    hi: int = 0

    def visible_to(self, ticket: int) -> tuple[int, int]:
        """[lo, hi) for its owner, (0, 0) for everybody else and for ticket 0."""
        return (self.lo, self.hi) if ticket != 0 and ticket == self.owner else (0, 0)


def stamped_merge(held: StoreRange, writer: int, start: int, count: int) -> StoreRange:
    """The range after `writer` wrote [start, start + count).

    Its non-zero owner merges (`merge_interval`); any other writer, and any write into an unclaimed
    range, replaces it: merging would leave another sequence's rows inside the interval.
    """
    if count <= 0:
        return held
    if writer != 0 and writer == held.owner:
        return StoreRange(writer, *merge_interval(held.lo, held.hi, start, count))
    return StoreRange(writer, start, start + count)


def hidden_row_offset(base: int, pos: int, hidden_size: int, itemsize: int) -> int:
    """Address of row `pos` in a (capacity, hidden_size) store that begins at `base`:
    base + pos · hidden_size · itemsize, in bytes."""
    return base + pos * hidden_size * itemsize


# What became of it


class Adopted(msgspec.Struct, frozen=True, tag_field="outcome", tag="adopted"):
    """`rows` of the turn before were adopted and `appended` more made, from pair `first_key` on."""

    rows: int
    appended: int
    first_key: int

    def __str__(self) -> str:
        more = (
            f", {self.appended:,} appended from pair {self.first_key:,} on" if self.appended else ""
        )
        return f"head: {self.rows:,} rows adopted{more}"


class NoCarry(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="outcome", tag="no carry"):
    """There was nothing to adopt; `why`, in words."""

    why: str = ""

    def __str__(self) -> str:
        return f"head: nothing adopted{': ' if self.why else ''}{self.why}"


class PrefixMismatch(msgspec.Struct, frozen=True, tag_field="outcome", tag="prefix mismatch"):
    """The prompt shares `common` tokens with what the `entry_rows` rows were made of: too few."""

    common: int
    entry_rows: int

    def __str__(self) -> str:
        return (
            f"head: none of {self.entry_rows:,} rows adopted: the prompt shares {self.common:,} tokens "
            "with what they were made of"
        )


class ForeignHiddens(msgspec.Struct, frozen=True, tag_field="outcome", tag="foreign hiddens"):
    """The hidden states in the store are `owner`'s, not those of `expected`: nothing was appended."""

    owner: int
    expected: int

    def __str__(self) -> str:
        return (
            f"head: nothing appended: the hidden states are those of sequence {self.owner}, not of "
            f"{self.expected}"
        )


class ForeignSession(msgspec.Struct, frozen=True, tag_field="outcome", tag="foreign session"):
    """The rows are of session `entry`, the prompt of session `prompt` (hashes; 0: none)."""

    entry: int
    prompt: int

    def __str__(self) -> str:
        mine = f"session {self.prompt:x}" if self.prompt else "no session"
        theirs = f"session {self.entry:x}" if self.entry else "no session"
        return f"head: nothing adopted: the rows are of {theirs}, the prompt of {mine}"


class NoHiddens(msgspec.Struct, frozen=True, tag_field="outcome", tag="no hiddens"):
    """The hidden states that the new rows are made of are not there: nothing was appended."""

    def __str__(self) -> str:
        return "head: nothing appended: the hidden states of the new tokens are not there"


CarryOutcome = Adopted | NoCarry | PrefixMismatch | ForeignHiddens | ForeignSession | NoHiddens
"""What a carry came to: for the trace, the log and the tests. `str` is one clear line."""


def refusal(entry: CarriedHead | None, prompt: Sequence[int], session: int) -> CarryOutcome:
    """Why `entry` (`None`: nothing was kept) is not `usable_by` this prompt of this session."""
    if entry is None or entry.rows <= 0:
        return NoCarry("the turn before left no rows")
    if session == 0 or session != entry.session:
        return ForeignSession(entry.session, session)
    return PrefixMismatch(common_prefix(entry.tokens, prompt), entry.rows)


def appended(adopted: CarriedHead, prompt_len: int, store: StoreRange, ticket: int) -> CarryOutcome:
    """What a prompt whose hidden states are in `store`, written by `ticket`, adds to adopted rows."""
    need = prompt_len - 2
    plan = plan_append(adopted.last_pair_key, prompt_len, *store.visible_to(ticket))
    if plan is not None:
        return Adopted(adopted.rows, plan[1], plan[0])
    if adopted.last_pair_key >= need:
        return Adopted(adopted.rows, 0, adopted.last_pair_key + 1)
    if store.owner not in (0, ticket):
        return ForeignHiddens(store.owner, ticket)
    return NoHiddens()
