"""The statistics of a bench: pure functions of numbers, nothing of models or traces.

Everything works on the log scale, where a ratio's mean is a geometric mean and its two directions
are alike.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import msgspec
import numpy as np

MOST_PROMPTS = 10_000
"""Beyond this many prompts a result is too close to the margin for any bench to settle it."""

FLAG_P = 0.01
"""A trend or position effect is flagged below this p-value ..."""

FLAG_CHANGE = 0.01
"""... if it is also at least this large: a tiny one, however certain, changes no verdict."""


class Effect(msgspec.Struct, frozen=True):
    """A relative change of a rate (-0.03: 3 % slower), its two-sided p-value (`None` where there is no
    spread to test against), and whether it deserves a warning."""

    change: float
    p: float | None
    flagged: bool


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean of `values`, and the standard error of that mean (n - 1 in the variance)."""
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def t_interval(values: Sequence[float], level: float) -> tuple[float, float, float]:
    """Mean, low and high of Student's t interval at `level`; at least two values."""
    mean, error = spread(values)
    half = _t_quantile(len(values), level) * error
    return mean, mean - half, mean + half


def t_p_value(values: Sequence[float], at: float) -> float:
    """Two-sided p-value of "the mean is `at`" (one-sample t test)."""
    from scipy.special import stdtr

    mean, error = spread(values)
    if error == 0.0:
        return 1.0 if mean == at else 0.0
    return float(2 * stdtr(len(values) - 1, -abs(mean - at) / error))


def _t_quantile(n: int, level: float) -> float:
    """Half width, in standard errors, of the two-sided interval from n values."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.5 + level / 2))


def bca_interval(
    values: Sequence[float], level: float, resamples: int, seed: int
) -> tuple[float, float] | None:
    """Bias-corrected and accelerated bootstrap interval of the mean (Efron 1987), resampling whole
    values. `None` where the values do not vary enough for one."""
    from scipy.stats import bootstrap

    x = np.asarray(values, dtype=np.float64)
    if np.ptp(x) <= 1e-12 * max(1.0, float(np.abs(x).max())):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interval = bootstrap(
            (x,),
            np.mean,
            confidence_level=level,
            n_resamples=resamples,
            method="BCa",
            rng=np.random.default_rng(seed),
        ).confidence_interval
    low, high = float(interval.low), float(interval.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def values_needed(values: Sequence[float], at: float, level: float) -> int | None:
    """How many values, with this mean and this spread, put the t interval clear of `at`.

    The smallest n with t(n - 1) · s / √n < |mean - at|; `None` above `MOST_PROMPTS`. A planning
    figure: it takes the mean and the spread seen so far for the true ones.
    """
    mean, error = spread(values)
    s = error * math.sqrt(len(values))
    distance = abs(mean - at)

    def clear(n: int) -> bool:
        return _t_quantile(n, level) * s / math.sqrt(n) < distance

    if not clear(MOST_PROMPTS):
        return None
    low, high = 1, MOST_PROMPTS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if clear(middle) else (middle, high)
    return high


def holm_levels(p_values: Sequence[float], alpha: float) -> list[float]:
    """The error level each of m hypotheses is held to by Holm's step-down procedure (1979).

    Sorted by p-value, the j-th smallest (j = 0, 1, ...) is held to alpha / (m - j) as long as all
    before it were rejected. At the first one that is not rejected the procedure stops: that one and
    all after it are held to the level of the stop.
    """
    levels = [0.0] * len(p_values)
    level, stopped = 0.0, False
    for j, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if not stopped:
            level = alpha / (len(p_values) - j)
            stopped = p_values[i] > level
        levels[i] = level
    return levels


def trend(times: Sequence[float], logs: Sequence[float]) -> Effect | None:
    """Change of log rates over the whole span of `times`, by least squares; `None` under 4 points."""
    from scipy.stats import linregress

    if len(times) < 4 or max(times) <= min(times):
        return None
    fit = linregress(times, logs)
    return _effect(float(fit.slope) * (max(times) - min(times)), float(fit.pvalue))


def mean_effect(logs: Sequence[float]) -> Effect | None:
    """Mean of log differences against zero; `None` under 4 of them."""
    if len(logs) < 4:
        return None
    mean, error = spread(logs)
    return _effect(mean, t_p_value(logs, 0.0) if error > 0.0 else math.nan)


def _effect(log_change: float, p: float) -> Effect:
    change = math.expm1(log_change)
    known = math.isfinite(p)
    return Effect(
        change=change,
        p=p if known else None,
        flagged=known and p < FLAG_P and abs(change) >= FLAG_CHANGE,
    )
