"""Computes the inputs of price-aware decisions: the ratio of a price to its daily mean, and the outlook.

The mean covers the next 24 hours. A value that is not known yet counts as the value 24 hours earlier, so that
no result depends on values that are published later. At any time, prices of a day-ahead market are known for
the next 12 hours or more, and prices of a real-time market only for the current step.
"""

from __future__ import annotations

import bisect
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.energy.series import DAY_S, HOUR_S, WEEK_S, Series

LEAST_RATIO: Final = 0.02
MOST_RATIO: Final = 50.0
"""Range to which ratios are clipped: prices can be negative, and spikes reach a hundred times the mean."""
OUTLOOK: Final = (
    "price_rank_6_h",  # share of the steps of the next 6 h in which the price is lower than now
    "price_rank_12_h",  # the same share for the next 12 h
    "price_rank_24_h",  # the same share for the next 24 h
    "price_lowest",  # ln(lowest price of the next 24 h / price now)
    "price_rise",  # ln(price now / price in the step before)
    "price_day",  # ln(mean of the next 24 h / mean of the past 7 days)
    "price_error",  # mean |ln(price / price 24 h earlier)| over the past 24 h
    "price_known",  # (time from now for which prices are known) / 24 h
)
"""Names of the columns that `outlook` returns."""
_RANKS_S: Final = (6 * HOUR_S, 12 * HOUR_S, DAY_S)
_TINY: Final = 1e-9
_ROWS: Final = 4096
"""Number of steps processed together. The limit saves memory, because each step needs its next 24 h."""


def relative(series: Series, known_ahead_s: float) -> NDArray[np.float64]:
    """Return the (N,) value in each step of a series, divided by the mean over about a day (see the module).

    A ratio is at least `LEAST_RATIO` and at most `MOST_RATIO`. It is 1 if the mean is 0 or less.

    Args:
        series: The series, N steps.
        known_ahead_s: Time for which values are known ahead, seconds; 0: only the current step is known.
    """
    values, steps = series.values, len(series)
    day = max(round(DAY_S / series.step_s), 1)
    ahead = min(int(known_ahead_s / series.step_s), day - 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    now = np.arange(steps)
    known_end = np.minimum(now + ahead + 1, steps)
    past_from, past_end = np.maximum(now + ahead + 1 - day, 0), now
    counts = known_end - now + past_end - past_from
    means = (sums[known_end] - sums[now] + sums[past_end] - sums[past_from]) / counts
    ratios = np.ones(steps)
    counted = means > 0.0
    ratios[counted] = np.clip(values[counted] / means[counted], LEAST_RATIO, MOST_RATIO)
    return np.round(ratios, 6)


def outlook(series: Series, known_ahead_s: float) -> NDArray[np.float64]:
    """Return the (N, K) columns `OUTLOOK` in each step of a series.

    Prices that are not known yet are replaced as in `relative`. Before a logarithm is taken, a price is
    raised to at least `LEAST_RATIO` times the mean price of the past 7 days. If this mean is 0 or less, the
    columns with logarithms are 0.

    Args:
        series: The series, N steps.
        known_ahead_s: Time for which values are known ahead, seconds; 0: only the current step is known.
    """
    values, steps = series.values, len(series)
    day = max(round(DAY_S / series.step_s), 1)
    ahead = min(int(known_ahead_s / series.step_s), day - 1)
    now = np.arange(steps)
    week_mean = _past_means(values, max(round(WEEK_S / series.step_s), 1))
    least = LEAST_RATIO * np.maximum(week_mean, 0.0)
    is_positive = week_mean > 0.0
    logs = np.zeros(steps)
    logs[is_positive] = np.log(np.maximum(values, least)[is_positive])
    found = np.zeros((steps, len(OUTLOOK)))
    for first in range(0, steps, _ROWS):
        rows = slice(first, min(first + _ROWS, steps))
        _set_next_day(found[rows], values, now[rows], day, ahead, series.step_s, week_mean, least)
    before = np.maximum(now - 1, 0)
    found[:, 4] = logs - logs[before]
    wrong = np.abs(logs - logs[np.maximum(now - day, 0)])
    found[:, 6] = _past_means(wrong, day)
    found[:, 7] = (ahead + 1) * series.step_s / DAY_S
    found[~is_positive, 3:7] = 0.0
    return np.round(found, 6)


def _past_means(values: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """Return (N,) means: for each step, the mean of this step and earlier ones, at most `steps` in all."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, values.size + 1)
    first = np.maximum(end - steps, 0)
    means: NDArray[np.float64] = (sums[end] - sums[first]) / (end - first)
    return means


def _set_next_day(
    found: NDArray[np.float64],
    values: NDArray[np.float64],
    now: NDArray[np.int64],
    day: int,
    ahead: int,
    step_s: float,
    week_mean: NDArray[np.float64],
    least: NDArray[np.float64],
) -> None:
    """Write the columns about the next day into `found`, for the steps `now`."""
    later = np.arange(day)
    at = now[:, None] + later
    at = np.where((later <= ahead) & (at < values.size), at, at - day)
    day_values = values[np.where(at < 0, now[:, None], at)]
    present = day_values[:, :1]
    for column, span_s in enumerate(_RANKS_S):
        ahead_of = day_values[:, 1 : max(round(span_s / step_s), 1)]
        found[:, column] = (ahead_of < present).mean(axis=1) if ahead_of.shape[1] else 0.0
    floor = np.maximum(least[now], _TINY)  # where the floor is _TINY, the caller sets 0
    lowest = np.maximum(day_values.min(axis=1), floor)
    found[:, 3] = np.log(lowest / np.maximum(present[:, 0], floor))
    mean = np.maximum(day_values.mean(axis=1), floor)
    found[:, 5] = np.log(mean / np.maximum(week_mean[now], floor))


class PriceAt(NamedTuple):
    """A price at one time.

    Attributes:
        price: The value.
        ratio: The value relative to the mean.
        outlook: (K,) values of the columns `OUTLOOK`.
        until_s: Time of the next change of the price, Unix seconds; infinite if no change is known.
    """

    price: float
    ratio: float
    outlook: tuple[float, ...]
    until_s: float


class PriceTable:
    """Prices of a series with their ratios and outlooks, by Unix time. Successive equal steps are joined.

    Args:
        series: The series.
        known_ahead_s: Time for which values are known ahead, seconds; 0: only the current step is known.

    Attributes:
        name: Name of the series.
        ends_s: End of the last step, Unix seconds.
    """

    def __init__(self, series: Series, known_ahead_s: float) -> None:
        seen = np.column_stack([relative(series, known_ahead_s), outlook(series, known_ahead_s)])
        first = np.flatnonzero(np.concatenate([[True], (seen[1:] != seen[:-1]).any(axis=1)]))
        self.name, self.ends_s = series.name, series.ends.timestamp()
        self._from_s: list[float] = (series.begins.timestamp() + first * series.step_s).tolist()
        self._prices: list[float] = series.values[first].tolist()
        self._seen: list[list[float]] = seen[first].tolist()

    def at(self, now_s: float) -> PriceAt | None:
        """Return the price at a time, Unix seconds; None if the series does not cover this time."""
        if not self._from_s[0] <= now_s < self.ends_s:
            return None
        k = bisect.bisect_right(self._from_s, now_s) - 1
        until_s = self._from_s[k + 1] if k + 1 < len(self._from_s) else self.ends_s
        ratio, *others = self._seen[k]
        return PriceAt(self._prices[k], ratio, tuple(others), until_s)
