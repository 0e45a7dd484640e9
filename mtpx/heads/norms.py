"""Which of a head's norms are stored shifted.

A Qwen norm multiplies by 1 + w. Qwen's own files hold w. MLX's converter stores 1 + w for the
trunk's norms, in the same pass that transposes the convolutions, and drops the head; folders that
kept it were made by others, and hold its norms shifted, unshifted or some of each (see
https://github.com/jundot/omlx/pull/1507). Applied unshifted, or shifted twice, acceptance is near 0
and nothing else shows it. So a file in Qwen's own form is believed, and in MLX's form every norm is
judged by its numbers:

- a gain is positive, so a norm with many negative numbers holds w;
- else the trunk's norms of the same name say what its mean should be near, with and without 1;
- else, without such a norm in the trunk, it holds the gain: the input norms (`pre_fc_norm_*`) have
  w below zero nearly everywhere (https://github.com/youssofal/MTPLX/pull/511).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

NEGATIVE_SHARE = 0.05
"""A twentieth of the numbers below zero is far more than any trained gain shows, and far less than
what w shows wherever its mean is not well above zero."""


def stored_offset(
    stored: npt.NDArray[np.floating[Any]],
    trunk_gains: Mapping[str, float],
    name: str,
) -> int:
    """0 if `stored` (n,) is a gain, 1 if it is w and 1 is still to be added.

    `trunk_gains` are the means of the trunk's norms as they are applied, by full name; those that
    end as `name` does are what the mean is held against.
    """
    values = np.asarray(stored, dtype=np.float64)
    if float(np.mean(values < 0)) > NEGATIVE_SHARE:
        return 1
    kind = _kind(name)
    alike = [mean for other, mean in trunk_gains.items() if _kind(other) == kind]
    if not alike:
        return 0
    mean, near = float(values.mean()), fmean(alike)
    return int(abs(mean + 1 - near) < abs(mean - near))


def _kind(name: str) -> str:
    """What makes two norms comparable: "input_layernorm", "q_norm", ..., the final norms "norm"."""
    return name.removesuffix(".weight").rpartition(".")[2]
