"""A regime to compare policies on: `Regime`, and how it is run and judged.

A file holds one scenario at its top level or several as `[[regime]]` tables; docs/regimes.md has every
field. `shipped()` are the ones that come with mtpx.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from mtpx.errors import PolicyError
from mtpx.sampling import Array
from mtpx.simulate.regime import Regime

Kind = Literal["stationary", "wall", "dead", "moving", "other"]
"""What is expected of a policy: `mtpx.simulate.score.BARS`."""


class Scenario(Regime, frozen=True, forbid_unknown_fields=True):
    """A regime with `width` sequences decoded together, prompts of `context` tokens, and the `kind`
    of bar it is held to. Raises `PolicyError` when a number is outside its range."""

    kind: Kind = "other"
    width: int = 1
    context: int = 0

    def __post_init__(self) -> None:
        Regime.__post_init__(self)
        self._demand(1 <= self.width <= 1024, "width lies in 1..1024")
        self._demand(0 <= self.context < 2**40, "context is 0 or more")
        self._demand(self.depth_limit <= 64, "at most 64 positions have an acceptance")


@dataclass(frozen=True)
class Tables:
    """A scenario round by round. `rates` (R, k): conditional acceptance; `verify` and `draft` (R, k + 1):
    expected ms at each depth without transition, stall and context; `tokens` (R, k + 1): expected committed
    tokens a sequence. `factor` (R,): what changes make of every cost."""

    rates: Array
    verify: Array
    draft: Array
    tokens: Array
    factor: Array
    context_ms: float
    stall: float
    width: int

    @property
    def limit(self) -> int:
        return int(self.rates.shape[1])

    def ms(self, context: Array) -> Array:
        """(R, k + 1) expected ms of a round, (R,) `context` tokens long; stalls in the mean."""
        grown = self.verify + (self.context_ms * self.factor * context / 1000.0)[:, None]
        whole: Array = grown * self.stall + self.draft
        return whole


def tables(scenario: Scenario, rounds: int) -> Tables:
    """What `scenario` is in each of `rounds` rounds."""
    k = scenario.depth_limit
    moving = max((c.at + c.over for c in scenario.changes), default=0)
    varied = min(rounds, moving + 1)
    rates = np.ones((rounds, k))
    factor = np.ones(rounds)
    plain = msgspec.structs.replace(scenario, changes=(), context_ms=0.0)
    for r in range(varied):
        rates[r] = scenario.rates(r)
        factor[r] = (
            scenario.draft_total_ms(1, round=r) / scenario.draft_ms
            if (scenario.draft_ms)
            else scenario.forward_ms(scenario.width, 0, round=r)
            / scenario.forward_ms(scenario.width, 0)
        )
    rates[varied:], factor[varied:] = rates[varied - 1], factor[varied - 1]
    verify = np.array([plain.forward_ms(scenario.width, d) for d in range(k + 1)])
    draft = np.array([plain.draft_total_ms(d) for d in range(k + 1)])
    tokens = np.ones((rounds, k + 1))
    tokens[:, 1:] += np.cumsum(np.cumprod(rates, axis=1), axis=1)
    low, high = scenario.stall_factor
    return Tables(
        rates=rates,
        verify=factor[:, None] * verify,
        draft=factor[:, None] * draft,
        tokens=tokens,
        factor=factor,
        context_ms=scenario.context_ms,
        stall=1.0 + scenario.stall * ((low + high) / 2.0 - 1.0),
        width=scenario.width,
    )


@dataclass(frozen=True)
class Reference:
    """Expected rates, tokens per ms of all sequences together: `static[d]` of each depth over the
    whole run, `oracle` of the best depth in each round."""

    static: list[float]
    oracle: float

    @property
    def best_depth(self) -> int:
        return int(np.argmax(self.static))

    @property
    def best(self) -> float:
        return max(self.static)

    @property
    def plain(self) -> float:
        return self.static[0]


def reference(scenario: Scenario, rounds: int, tokens: float | None = None) -> Reference:
    """What fixed depths and a per-round oracle are expected to deliver; no luck is in it.

    All of them run `rounds` rounds. Where a context grows that would punish the fast, who come to the
    dear end of it sooner: there each runs until it has delivered `tokens` (of all sequences; those
    of the best fixed depth if not given).
    """
    limit = scenario.depth_limit
    t = tables(scenario, rounds)
    if not scenario.context_ms:
        ms = t.ms(np.zeros(rounds))
        static = [t.width * float(t.tokens[:, d].sum() / ms[:, d].sum()) for d in range(limit + 1)]
        best = np.argmax(t.tokens / ms, axis=1)
        rows = np.arange(rounds)
        oracle = t.width * float(t.tokens[rows, best].sum() / ms[rows, best].sum())
        return Reference(static, max(oracle, *static))
    each = (tokens or float(t.tokens.sum(axis=0).max()) * t.width) / t.width
    static = [t.width * each / _time_to(scenario, t, each, depth) for depth in range(limit + 1)]
    return Reference(static, max(t.width * each / _time_to(scenario, t, each, None), *static))


def _time_to(scenario: Scenario, t: Tables, tokens: float, depth: int | None) -> float:
    """Expected ms until every sequence has `tokens`; `None`: at the best depth of each round."""
    done = ms = 0.0
    last = len(t.tokens) - 1
    round = 0
    while done < tokens:
        row = min(round, last)
        grown = t.context_ms * t.factor[row] * (scenario.context + done) / 1000.0
        cost = (t.verify[row] + grown) * t.stall + t.draft[row]
        chosen = int(np.argmax(t.tokens[row] / cost)) if depth is None else depth
        share = min(1.0, (tokens - done) / t.tokens[row, chosen])
        ms += share * cost[chosen]
        done += t.tokens[row, chosen]
        round += 1
    return float(ms)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    regime: list[Scenario]


def load_scenarios(path: Path) -> list[Scenario]:
    """Every scenario of a TOML file. Raises `PolicyError` with the file's name if it has none."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"cannot read the regimes {path}: {error.strerror}") from error
    return _decoded(text, str(path))


def shipped() -> list[Scenario]:
    """The regimes that come with mtpx, file by file."""
    folder = resources.files("mtpx.simulate") / "regimes"
    files = sorted(
        (f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda file: file.name
    )
    return [s for file in files for s in _decoded(file.read_bytes(), file.name)]


def _decoded(text: bytes, name: str) -> list[Scenario]:
    try:
        document = msgspec.toml.decode(text)
        if isinstance(document, dict) and "regime" in document:
            found = msgspec.convert(document, _File, strict=False).regime
        else:
            found = [msgspec.convert(document, Scenario, strict=False)]
    except (msgspec.DecodeError, UnicodeDecodeError, PolicyError) as error:
        raise PolicyError(f"{name} holds no regime: {error}") from error
    if not found:
        raise PolicyError(f"{name} holds no regime; see docs/regimes.md for the format")
    return found
