"""What in a trace should not be there: collected as it is met, one entry a kind."""

from __future__ import annotations

import msgspec

KINDS: dict[str, tuple[str, str, str]] = {
    "stall": ("round", "took", "more than 3 times the median of its kind"),
    "bad duration": ("round", "has", "a negative, zero or non-finite time, left out of all times"),
    "inconsistent counts": ("round", "has", "counts that cannot be, left out"),
    "repeated round": (
        "round",
        "is",
        "recorded again or out of order within its request, left out",
    ),
    "missing rounds": ("round", "is", "missing between the recorded ones"),
    "unknown request": ("round", "belongs", "to no recorded request, taken for MTP"),
    "looping output": (
        "request",
        "has",
        "output that loops, which inflates acceptance",
    ),
    "cut request": ("request", "has", "no end record: its process was killed or still runs"),
    "missing tokens": ("request", "delivered", "more tokens than its recorded rounds hold"),
    "bad totals": (
        "request",
        "has",
        "an end record with impossible numbers, left out of all rates",
    ),
    "unknown end": ("request", "ends", "without having begun"),
    "no run record": ("record", "stands", "before any run record: what ran is unknown"),
}
"""By kind: what is counted, its verb, and the rest of the sentence."""

_PLURAL = {"has": "have", "is": "are", "belongs": "belong", "ends": "end", "stands": "stand"}


class Anomaly(msgspec.Struct, frozen=True):
    """`count` occurrences of one kind; `first` is the index of the first round (or id of the first
    request) it was met at; `message` is the sentence for a person."""

    kind: str
    count: int
    first: int | None
    message: str


class Anomalies:
    """Counts by kind, remembering where each was met first."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int | None]] = {}
        self._said: dict[str, str] = {}

    def add(self, kind: str, where: int | None = None, count: int = 1) -> None:
        if count < 1:
            return
        before, first = self._found.get(kind, (0, where))
        self._found[kind] = (before + count, first)

    def say(self, kind: str, count: int, sentence: str) -> None:
        """An observation about the whole run, in the caller's own words."""
        self._found[kind] = (count, None)
        self._said[kind] = sentence

    def found(self) -> list[Anomaly]:
        return [
            Anomaly(kind, count, first, self._said.get(kind) or _sentence(kind, count, first))
            for kind, (count, first) in sorted(self._found.items())
        ]


def _sentence(kind: str, count: int, first: int | None) -> str:
    subject, verb, rest = KINDS[kind]
    if count > 1:
        verb = _PLURAL.get(verb, verb)
        rest = rest.replace(" its ", " their ")
    where = f" (first: {subject} {first})" if first is not None else ""
    return f"{count} {subject}{'s' * (count > 1)} {verb} {rest}{where}"
