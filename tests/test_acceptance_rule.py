"""Exactness of the acceptance rule, by enumeration.

On a vocabulary of 2 to 4 tokens every draft path and every accept and reject branch is walked with
its exact probability. The committed joint of the next tokens must be the target's to 1e-12 under
every allowed rule for how many drafts are verified, and must not be under the forbidden ones.

What a rule may know is written as what it is a function of. The head's confidence in draft j is a
function of the drafts before j, and may be an injective one: a rule on confidences 1..j is any
function of drafts 1..j-1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpx.sampling import Array, acceptance, residual

Path = tuple[int, ...]
Conditional = dict[Path, Array]
Rule = Callable[[Path], int]
"""How many drafts of this path are verified."""

EXACT = 1e-12


@dataclass(frozen=True)
class World:
    """Conditional tables: the target's p after every prefix up to `depth` tokens, the head's q after
    every shorter one."""

    vocab: int
    depth: int
    p: Conditional
    q: Conditional

    def prefixes(self, length: int) -> list[Path]:
        return list(itertools.product(range(self.vocab), repeat=length))


def target_joint(world: World, after: Path, length: int) -> dict[Path, float]:
    """Probabilities of all continuations of `after` to `length` tokens under the target."""
    joint = {after: 1.0}
    while len(next(iter(joint))) < length:
        joint = {
            (*path, x): mass * float(world.p[path][x])
            for path, mass in joint.items()
            for x in range(world.vocab)
        }
    return joint


def committed(world: World, drafts: Path, verified: int) -> dict[Path, float]:
    """What a round commits, given its drafts: committed tokens -> probability."""
    out: dict[Path, float] = {}
    reach = 1.0
    for j in range(verified):
        before = drafts[:j]
        p, q = world.p[before], world.q[before]
        stands = acceptance(p, q, drafts[j])
        for x, r in enumerate(residual(p, q)):
            key = (*before, x)
            out[key] = out.get(key, 0.0) + reach * (1.0 - stands) * float(r)
        reach *= stands
    for x, mass in enumerate(world.p[drafts[:verified]]):
        key = (*drafts[:verified], x)
        out[key] = out.get(key, 0.0) + reach * float(mass)
    return out


def round_joint(world: World, rule: Rule) -> dict[Path, float]:
    """The joint of the next depth + 1 tokens when one round runs under `rule` and plain decode
    follows it. Exact for one round is exact for all: the next round starts from such a prefix."""
    length = world.depth + 1
    joint = dict.fromkeys(world.prefixes(length), 0.0)
    for drafts in world.prefixes(world.depth):
        drawn = float(np.prod([world.q[drafts[:j]][x] for j, x in enumerate(drafts)]))
        if drawn == 0.0:
            continue
        for tokens, mass in committed(world, drafts, rule(drafts)).items():
            for path, rest in target_joint(world, tokens, length).items():
                joint[path] += drawn * mass * rest
    return joint


def bias(world: World, rule: Rule) -> float:
    """Largest error of a joint probability."""
    expected = target_joint(world, (), world.depth + 1)
    got = round_joint(world, rule)
    return max(abs(got[path] - expected[path]) for path in expected)


@st.composite
def tables(draw: Any, vocab: int, longest: int, *, point: bool = False) -> Conditional:
    """A distribution after every prefix of at most `longest` tokens; zeros are common."""
    weight = st.sampled_from([0.0, 0.0, 1.0]) | st.floats(0.01, 1.0)
    table: Conditional = {}
    for length in range(longest + 1):
        for prefix in itertools.product(range(vocab), repeat=length):
            if point:
                row = np.zeros(vocab)
                row[draw(st.integers(0, vocab - 1))] = 1.0
            else:
                row = np.array(draw(st.lists(weight, min_size=vocab, max_size=vocab)))
                if row.sum() == 0.0:
                    row[:] = 1.0
            table[prefix] = row / row.sum()
    return table


@st.composite
def worlds(draw: Any, *, point: bool = False) -> World:
    depth = draw(st.integers(1, 3))
    vocab = draw(st.integers(2, 4 if depth < 3 else 2))
    p = draw(tables(vocab, depth))
    return World(vocab, depth, p, draw(tables(vocab, depth - 1, point=point)))


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_verifying_all_drafts_commits_the_targets_joint(world: World) -> None:
    assert bias(world, lambda drafts: world.depth) < EXACT


@given(worlds(), st.data())
@settings(max_examples=60, deadline=None)
def test_verifying_while_confidences_so_far_allow_commits_the_targets_joint(
    world: World, data: st.DataObject
) -> None:
    goes = {
        prefix: data.draw(st.booleans())
        for length in range(world.depth)
        for prefix in world.prefixes(length)
    }

    def rule(drafts: Path) -> int:
        stops = (j for j in range(world.depth) if not goes[drafts[:j]])
        return next(stops, world.depth)

    assert bias(world, rule) < EXACT


@given(worlds(point=True), st.data())
@settings(max_examples=40, deadline=None)
def test_argmax_drafts_permit_any_rule(world: World, data: st.DataObject) -> None:
    depths = {path: data.draw(st.integers(0, world.depth)) for path in world.prefixes(world.depth)}
    assert bias(world, depths.__getitem__) < EXACT


HALF = np.array([0.5, 0.5])
FAIR = World(
    vocab=2,
    depth=2,
    p={prefix: HALF for n in range(3) for prefix in itertools.product(range(2), repeat=n)},
    q={prefix: HALF for n in range(2) for prefix in itertools.product(range(2), repeat=n)},
)
"""Every next token is A or B with probability one half, and the head knows it."""


def first_is_a(joint: dict[Path, float]) -> float:
    return sum(mass for path, mass in joint.items() if path[0] == 0)


def test_deciding_on_the_next_confidence_makes_a_half_three_quarters() -> None:
    confidence_2 = {(0,): 0.9, (1,): 0.5}

    def peek(drafts: Path) -> int:
        return 2 if confidence_2[drafts[:1]] > 0.7 else 0

    assert first_is_a(round_joint(FAIR, peek)) == pytest.approx(0.75, abs=EXACT)


def test_deciding_draft_one_on_its_own_token_makes_a_half_three_quarters() -> None:
    def favour(drafts: Path) -> int:
        return 1 if drafts[0] == 0 else 0

    assert first_is_a(round_joint(FAIR, favour)) == pytest.approx(0.75, abs=EXACT)


def test_deciding_draft_two_on_the_first_token_is_allowed_and_exact() -> None:
    def cut(drafts: Path) -> int:
        return 2 if drafts[0] == 0 else 1

    assert bias(FAIR, cut) < EXACT


@pytest.mark.parametrize("u_rule", ["accept what p allows", "redraw from p on rejection"])
def test_the_oracle_sees_a_wrong_rule(u_rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if u_rule == "accept what p allows":
        monkeypatch.setitem(globals(), "acceptance", lambda p, q, x: float(p[x] > 0.0))
    else:
        monkeypatch.setitem(globals(), "residual", lambda p, q: p)
    p = {prefix: np.array([0.7, 0.3]) for prefix in FAIR.p}
    assert bias(World(2, 2, p, FAIR.q), lambda drafts: 2) > 0.01
