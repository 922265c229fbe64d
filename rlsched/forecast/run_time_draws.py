"""Draws run times from predicted distributions, given the age and the time limit of each job."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.forecast.lengths import Lengths
from rlsched.workload.predict.distribution import EDGES_S

Floats = NDArray[np.float64]

_LN: Final = np.log(EDGES_S)
_Z: Final = np.linspace(-6.0, 6.0, 4001)
_BELOW: Final = np.array([0.5 * math.erfc(-z / math.sqrt(2.0)) for z in _Z.tolist()])
_GONE: Final = 1e-6
"""A job has outlived its prediction if the predicted probability of a run time above the job's age is below
this value."""
_BEYOND: Final = 0.5
"""Assumed mean remaining time of a job that has outlived its prediction, as a fraction of the job's age."""
EVERY: Final = (16, 4, 2, 1)
"""Futures (simulated runs) differ in length. Every 16th future has the greatest length; of the other futures,
every 4th has the next smaller length, then every 2nd, and the rest have the smallest length."""
_LAST: Final = np.uint64(2**64 - 1)
LEAST_LEFT_S: Final = 1.0
"""Minimum remaining time of a running job, seconds."""


def strata(keys: NDArray[np.int64], samples: int) -> Floats:
    """Return stratified numbers: for each key, one in each of `samples` equal parts of (0, 1).

    The numbers depend only on the keys, so that a job gets the same numbers in each forecast. Every 2nd, 4th
    or 16th future is longer than the others (`EVERY`). The numbers of these futures are evenly spread, too.

    Args:
        keys: (L,) keys of the jobs.
        samples: Number of futures.

    Returns:
        (L, samples) numbers.
    """
    salt = np.arange(samples, dtype=np.uint64)
    mixed = _mixed(keys.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + salt[None, :])
    place, before = np.empty(mixed.shape, np.int64), samples
    for every in EVERY:
        if samples % every:
            continue
        parts, future = samples // every, np.arange(0, samples, every)
        order = _mixed(mixed[:, :parts] + np.uint64(every))
        if before < samples:
            np.put_along_axis(order, place[:, ::before] // every, _LAST, axis=1)
            future = future[future % before != 0]
        part = np.argsort(order, axis=1)[:, : len(future)]
        inside = _mixed(mixed[:, future] ^ np.uint64(every)) % np.uint64(every)
        place[:, future], before = part * every + inside.astype(np.int64), every
    within = (_mixed(mixed) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return np.asarray((place + np.clip(within, 1e-9, 1.0 - 1e-9)) / samples)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply a mixing step of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def run_times(
    chances: Floats,
    predicted_s: Floats,
    spread: Floats,
    limit_s: Floats,
    age_s: Floats,
    at: Floats,
    like: tuple[Lengths, Floats] | None = None,
) -> Floats:
    """Return the total run times of L jobs in S futures, seconds.

    Args:
        chances: (L, BINS) predicted distribution. If a row is nan, median and spread are used instead, with
            the distribution of z in `like`; if that is unknown, the run time is lognormal.
        predicted_s: (L,) predicted median, seconds.
        spread: (L,) standard deviation of the logarithm of the run time.
        limit_s: (L,) time limits that users have set, seconds; nan: no limit.
        age_s: (L,) time that each job has run, seconds; a lower bound of its run time. 0: the job waits.
        at: (L, S) position in the distribution of the remaining time, 0 to 1.
        like: Distributions of recent run times, and the (L,) GPUs of the jobs.
    """
    binned = np.isfinite(chances[:, 0]) if chances.size else np.zeros(len(at), bool)
    total = np.empty(at.shape)
    if binned.any():
        total[binned] = _from_bins(chances[binned], age_s[binned], at[binned])
    if not binned.all():
        some = ~binned
        said = predicted_s[some], spread[some], age_s[some], at[some]
        total[some] = _from_lognormal(*said)
        if like is not None:
            shaped = like[0].totals(like[1][some], *said)
            total[some] = np.where(np.isnan(shaped), total[some], shaped)
    total = np.fmin(total, limit_s[:, None])
    least_s = np.where(age_s > 0.0, age_s + LEAST_LEFT_S, 0.0)
    return np.maximum(total, least_s[:, None])


def outlived(
    chances: Floats,
    predicted_s: Floats,
    spread: Floats,
    age_s: Floats,
    like: tuple[Lengths, Floats] | None = None,
) -> Floats:
    """Return the (L,) probability that a job's run time is below its age; arguments as in `run_times`."""
    binned = np.isfinite(chances[:, 0]) if chances.size else np.zeros(len(age_s), bool)
    found = _outlived_lognormal(predicted_s, spread, age_s)
    if like is not None:
        shaped = like[0].outlived(like[1], predicted_s, spread, age_s)
        found = np.where(np.isnan(shaped), found, shaped)
    if binned.any():
        found[binned] = _outlived_bins(_below(chances[binned]), age_s[binned])
    return found


def _below(chances: Floats) -> Floats:
    below = np.cumsum(chances, axis=1)
    below /= below[:, -1:]
    return np.asarray(below)


def _outlived_bins(below: Floats, age_s: Floats) -> Floats:
    rows = np.arange(len(below))
    ln_age = np.clip(np.log(np.maximum(age_s, EDGES_S[0])), _LN[0], _LN[-1])
    bin_ = np.clip(np.searchsorted(_LN, ln_age, side="right") - 1, 0, len(_LN) - 2)
    share = (ln_age - _LN[bin_]) / (_LN[bin_ + 1] - _LN[bin_])
    before = np.where(bin_ > 0, below[rows, np.maximum(bin_ - 1, 0)], 0.0)
    found = before + share * (below[rows, bin_] - before)
    return np.where(age_s <= EDGES_S[0], 0.0, found)


def _outlived_lognormal(predicted_s: Floats, spread: Floats, age_s: Floats) -> Floats:
    found = np.zeros(len(age_s))
    old = age_s > 0.0
    ratio = np.log(age_s[old] / np.maximum(predicted_s[old], 1e-3))
    found[old] = np.interp(ratio / np.maximum(spread[old], 1e-9), _Z, _BELOW)
    return found


def _from_bins(chances: Floats, age_s: Floats, at: Floats) -> Floats:
    below = _below(chances)
    outlived = _outlived_bins(below, age_s)
    target = outlived[:, None] + at * (1.0 - outlived)[:, None]
    bins = np.minimum((below[:, None, :] < target[:, :, None]).sum(axis=2), len(_LN) - 2)
    low = np.where(bins > 0, np.take_along_axis(below, np.maximum(bins - 1, 0), axis=1), 0.0)
    high = np.take_along_axis(below, bins, axis=1)
    inside = np.clip((target - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
    total = np.exp(_LN[bins] + inside * (_LN[bins + 1] - _LN[bins]))
    return _or_beyond(total, 1.0 - outlived, age_s, at)


def _from_lognormal(predicted_s: Floats, spread: Floats, age_s: Floats, at: Floats) -> Floats:
    outlived = _outlived_lognormal(predicted_s, spread, age_s)
    z = np.interp(outlived[:, None] + at * (1.0 - outlived)[:, None], _BELOW, _Z)
    spread, median_s = np.maximum(spread, 1e-9), np.maximum(predicted_s, 1e-3)
    total = median_s[:, None] * np.exp(spread[:, None] * z)
    return _or_beyond(total, 1.0 - outlived, age_s, at)


def _or_beyond(total: Floats, left: Floats, age_s: Floats, at: Floats) -> Floats:
    """Return the run times `total`, except for jobs that have outlived their prediction.

    The run time of such a job becomes age x (1 + draw), with an exponential draw of mean `_BEYOND`.
    """
    beyond = age_s[:, None] * (1.0 - _BEYOND * np.log1p(-at))
    return np.where((left < _GONE)[:, None], beyond, total)
