"""A language small enough to learn in three minutes, with one part that needs a long memory.

A text is a table, then sentences. The table pairs some keys with values. A sentence is one of a dozen
fixed phrases, each usually followed by the same next one; or, now and then, it asks for a key of the table
and gives its value, which nothing nearby tells.

    <s> k3 v7 ; k1 v0 ; k6 v12 ; . w4 w9 w2 . w11 w0 w3 w5 . ? k1 v0 . w4 ...
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BEGIN, END, STOP, ENTRY, ASK = 1, 2, 3, 4, 5
KEYS = range(6, 14)
VALUES = range(14, 30)
WORDS = range(30, 64)
VOCAB = 64

PHRASES = 12
FOLLOWS = 0.7
"""How often a phrase is followed by its usual next one."""
ASKED = 0.4
"""How often a sentence asks for a key."""


def token_names() -> list[str]:
    """A word for every token id."""
    names = ["<pad>", "<s>", "</s>", ".", ";", "?"]
    for letter, ids in (("k", KEYS), ("v", VALUES), ("w", WORDS)):
        names += [f"{letter}{i}" for i in range(len(ids))]
    return names


def _phrases() -> list[list[int]]:
    rng = np.random.default_rng(12)
    return [
        [*rng.choice(list(WORDS), size=rng.integers(3, 7)).tolist(), STOP] for _ in range(PHRASES)
    ]


PHRASE_TOKENS = _phrases()


@dataclass(frozen=True, slots=True)
class Text:
    """`tokens`, and the places of the values that were asked for: nothing nearby tells them."""

    tokens: list[int]
    recalled: list[int]


def text(rng: np.random.Generator, length: int, entries: int = 4) -> Text:
    """A text of `length` tokens with `entries` keys in its table."""
    keys = rng.choice(list(KEYS), size=entries, replace=False).tolist()
    table = dict(zip(keys, rng.choice(list(VALUES), size=entries).tolist(), strict=True))
    tokens = [BEGIN]
    for key, value in table.items():
        tokens += [key, value, ENTRY]
    tokens.append(STOP)
    recalled: list[int] = []
    phrase = int(rng.integers(PHRASES))
    while len(tokens) < length:
        if rng.random() < ASKED:
            key = keys[int(rng.integers(entries))]
            recalled.append(len(tokens) + 2)
            tokens += [ASK, key, table[key], STOP]
        else:
            usual = rng.random() < FOLLOWS
            phrase = (phrase + 1) % PHRASES if usual else int(rng.integers(PHRASES))
            tokens += PHRASE_TOKENS[phrase]
    return Text(tokens[:length], [at for at in recalled if at < length])
