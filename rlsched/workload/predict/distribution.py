"""Distributions of run times as probabilities of bins.

A bin is a range of run times; all distributions have the same bins (`EDGES_S`). Within a bin, the logarithm
of the run time has a uniform distribution, so every quantity below has a closed form. A mixture of
distributions is the weighted sum of their probabilities.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.jit import kernel

Floats = NDArray[np.float64]

THRESHOLDS_S: Final = (600.0, 3600.0, 14400.0, 86400.0)
"""Run times for which the probability of a longer run time is computed: 10 min, 1 h, 4 h, 1 day."""

# fmt: off
EDGES_S: Final = np.array([
    1.0, 20.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0, 86400.0, 259200.0, 604800.0,
    2419200.0,
])
# fmt: on
"""(BINS + 1,) edges of the bins, s. The first bin also has shorter run times, the last bin longer ones."""
BINS: Final = len(EDGES_S) - 1

_EDGES_S: Final = EDGES_S.tolist()
_LN: Final = np.log(EDGES_S)
_MIDDLE_LN: Final = (_LN[1:] + _LN[:-1]) / 2
_VARIANCE_LN: Final = np.diff(_LN) ** 2 / 12
_MEAN_S: Final = np.diff(EDGES_S) / np.diff(_LN)
_THRESHOLD_BINS: Final = np.searchsorted(EDGES_S, THRESHOLDS_S)
_THRESHOLDS: Final = tuple(_THRESHOLD_BINS.tolist())
SAID: Final = 1 + len(THRESHOLDS_S)
"""Number of values that `read_off` writes for each distribution."""


def clip(values: NDArray[Any], low: float, high: float) -> NDArray[Any]:
    """Limit values as `np.clip` does. For a few values, this function is ten times as fast."""
    return np.asarray(np.minimum(np.maximum(values, low), high))


def bin_of(duration_s: float) -> int:
    """Return the index of the bin that contains a run time; an edge belongs to the bin above it."""
    return min(max(bisect_right(_EDGES_S, duration_s) - 1, 0), BINS - 1)


def lognormal(median_s: float, spread: float) -> Floats:
    """Return the (BINS,) lognormal distribution with this median; `spread` is the sd of ln(run time)."""
    out = np.empty(BINS)
    _lognormal(median_s, spread, out)
    return out


@kernel
def _lognormal(median_s: float, spread: float, out: Floats) -> None:
    scale, middle, below = max(spread, 0.05) * math.sqrt(2.0), math.log(median_s), 0.0
    for at in range(BINS - 1):
        up_to = 0.5 * (1.0 + math.erf((_LN[at + 1] - middle) / scale))
        out[at] = up_to - below
        below = up_to
    out[BINS - 1] = 1.0 - below


def p_longer(probabilities: Floats) -> Floats:
    """Return the (N, 4) probabilities of a run time above each of `THRESHOLDS_S`, for N distributions."""
    tail = np.cumsum(probabilities[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(clip(tail[:, _THRESHOLD_BINS], 0.0, 1.0))


@kernel
def read_off(rows: Floats, out: Floats) -> None:
    """Write SAID values for each of N distributions to `out` (N, SAID).

    The values are the mean of ln(run time), and P(run time > threshold) for each of `THRESHOLDS_S`.
    """
    for row in range(len(rows)):
        mean, tail, at = 0.0, 0.0, len(_THRESHOLDS)
        for bin_ in range(BINS):
            mean += rows[row, bin_] * _MIDDLE_LN[bin_]
        out[row, 0] = mean
        for bin_ in range(BINS - 1, -1, -1):
            tail += rows[row, bin_]
            if at > 0 and _THRESHOLDS[at - 1] == bin_:
                out[row, at] = min(max(tail, 0.0), 1.0)
                at -= 1


def mean_s(probabilities: Floats) -> Floats:
    """Return the (N,) expected run times of (N, BINS) distributions, s."""
    return np.asarray(probabilities @ _MEAN_S)


def mean_ln(probabilities: Floats) -> Floats:
    """Return the (N,) expected ln(run time / 1 s) of (N, BINS) distributions."""
    return np.asarray(probabilities @ _MIDDLE_LN)


def spread_around(probabilities: Floats, point_s: Floats) -> Floats:
    """Return the (N,) root mean square of ln(run time / point) under each of (N, BINS) distributions.

    `point_s`: (N,) predicted run times, s.
    """
    off = _MIDDLE_LN[None, :] - np.log(point_s)[:, None]
    return np.asarray(np.sqrt(np.sum(probabilities * (off**2 + _VARIANCE_LN), axis=1)))


def point_and_spread(probabilities: Floats, limit_s: Floats) -> tuple[Floats, Floats]:
    """Return the predictions that policies use: (N,) run times in s, and (N,) spreads.

    A run time is the median of the distribution, but at most the user's limit in `limit_s` (N,), s (nan: no
    limit). The spread is the root mean square of ln(true / predicted). The Gittins index takes a prediction
    as the median of a lognormal distribution. With means in place of medians, jobs with heavy tails start too
    late (`python -m studies.policy.information choose`).
    """
    predicted_s, spread = np.empty(len(probabilities)), np.empty(len(probabilities))
    _point(probabilities, limit_s, predicted_s, spread)
    return predicted_s, spread


@kernel
def _point(rows: Floats, limits_s: Floats, predicted_s: Floats, spread: Floats) -> None:
    for row in range(len(rows)):
        bin_, before = 0, 0.0
        while bin_ < BINS - 1 and before + rows[row, bin_] < 0.5:
            before += rows[row, bin_]
            bin_ += 1
        inside = min(max((0.5 - before) / max(rows[row, bin_], 1e-12), 0.0), 1.0)
        point_s = math.exp(_LN[bin_] + inside * (_LN[bin_ + 1] - _LN[bin_]))
        if limits_s[row] < point_s:
            point_s = limits_s[row]
        ln, total = math.log(point_s), 0.0
        for bin_ in range(BINS):
            off = _MIDDLE_LN[bin_] - ln
            total += rows[row, bin_] * (off * off + _VARIANCE_LN[bin_])
        predicted_s[row], spread[row] = point_s, math.sqrt(total)


def quantile_s(probabilities: Floats, at: float) -> Floats:
    """Return the (N,) quantiles, s, of N distributions for the probability `at` (0 to 1)."""
    below = np.cumsum(probabilities, axis=1)
    rows = np.arange(len(probabilities))
    bins = np.minimum(np.sum(below < at, axis=1), BINS - 1)
    before = below[rows, bins] - probabilities[rows, bins]
    inside = clip((at - before) / np.maximum(probabilities[rows, bins], 1e-12), 0.0, 1.0)
    return np.asarray(np.exp(_LN[bins] + inside * (_LN[bins + 1] - _LN[bins])))


def shortfall(probabilities: Floats, duration_s: Floats) -> Floats:
    """Return for N jobs the (N,) predicted probabilities of a run time below the true run time.

    If the predictions are calibrated, these probabilities have a uniform distribution.
    """
    ln = np.clip(np.log(np.maximum(duration_s, 1.0)), _LN[0], _LN[-1])
    bins = np.clip(np.searchsorted(_LN, ln, side="right") - 1, 0, BINS - 1)
    rows = np.arange(len(probabilities))
    before = np.cumsum(probabilities, axis=1)[rows, bins] - probabilities[rows, bins]
    inside = (ln - _LN[bins]) / (_LN[bins + 1] - _LN[bins])
    return np.asarray(before + inside * probabilities[rows, bins])


def given_age(probabilities: Floats, age_s: float) -> Floats:
    """Return the (BINS,) distribution of the total run time of a job, given that it has reached this age.

    In the bin that contains the age, only the probability above the age remains. The result does not record
    where in this bin the age lies, so compute remaining times by `remaining_s`. For a job older than the last
    edge, the last bin has probability 1.
    """
    left = np.array(probabilities, dtype=np.float64)
    bin_ = bin_of(age_s)
    left[:bin_] = 0.0
    left[bin_] *= _share_above(age_s, bin_)
    total = float(left.sum())
    if total <= 1e-12:
        left[:] = 0.0
        left[bin_], total = 1.0, 1.0
    return np.asarray(left / total)


def remaining_s(probabilities: Floats, age_s: float) -> float:
    """Return the expected remaining run time of a job of this age, s: E(run time | run time > age) - age."""
    left = given_age(probabilities, age_s)
    bin_ = bin_of(age_s)
    means = _MEAN_S.copy()
    low, high = max(age_s, EDGES_S[bin_]), max(EDGES_S[bin_ + 1], age_s * 1.01)
    means[bin_] = (high - low) / math.log(high / low) if high > low else high
    return max(float(left @ means) - age_s, 0.0)


def remaining_median_s(probabilities: Floats, age_s: float) -> float:
    """Return the median remaining run time of a job of this age, s."""
    left = given_age(probabilities, age_s)
    bin_ = bin_of(age_s)
    if left[bin_] < 0.5:
        return float(quantile_s(left[None, :], 0.5)[0]) - age_s
    low = math.log(max(age_s, float(EDGES_S[bin_])))
    high = max(float(_LN[bin_ + 1]), low)
    return math.exp(low + 0.5 / float(left[bin_]) * (high - low)) - age_s


def _share_above(age_s: float, bin_: int) -> float:
    low, high = float(_LN[bin_]), float(_LN[bin_ + 1])
    return min(max((high - math.log(max(age_s, 1.0))) / (high - low), 0.0), 1.0)


@dataclass(frozen=True)
class Forecast:
    """The prediction for one job.

    Attributes:
        mean_s: Expected run time, s.
        median_s: Median run time, s.
        spread: Root mean square of ln(true / mean).
        p_longer: Probabilities that the job runs longer than 10 min, 1 h, 4 h, 1 day.
        probabilities: (BINS,) distribution of the run time.
    """

    mean_s: float
    median_s: float
    spread: float
    p_longer: tuple[float, float, float, float]
    probabilities: Floats

    @classmethod
    def from_probabilities(cls, probabilities: Floats) -> Forecast:
        """Derive a forecast from a (BINS,) distribution."""
        row = probabilities[None, :]
        mean = mean_s(row)
        first, second, third, fourth = p_longer(row)[0].tolist()
        return cls(
            float(mean[0]),
            float(quantile_s(row, 0.5)[0]),
            float(spread_around(row, mean)[0]),
            (first, second, third, fourth),
            probabilities,
        )

    def remaining_s(self, age_s: float) -> float:
        """Return the expected remaining time, in seconds, of a job that has run for `age_s`."""
        return remaining_s(self.probabilities, age_s)
