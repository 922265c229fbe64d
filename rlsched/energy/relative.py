"""Computes the inputs of decisions that follow the price of electricity: ratios and the outlook.

A *ratio* is a price divided by the mean of the next 24 hours. The *outlook* (`OUTLOOK`) is a set of numbers,
most of which compare the present price with earlier and later prices.

A value that is not published yet is replaced by its forecast (`Series.forecast`), if the forecast was known
at that time, else by the value 24 hours earlier. In a day-ahead market, prices are known for the next 12
hours or more, in a real-time market only for the current step.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.energy.series import DAY_S, HOUR_S, WEEK_S, Series

LEAST_RATIO: Final = 0.02
MOST_RATIO: Final = 50.0
"""Range to which ratios are clipped: prices can be negative, and spikes reach a hundred times the mean."""
OUTLOOK: Final = (
    "price_rank_6_h",  # fraction of the steps of the next 6 h in which the price is lower than now
    "price_rank_12_h",  # the same for the next 12 h
    "price_rank_24_h",  # the same for the next 24 h
    "price_lowest",  # ln(lowest price of the next 24 h / price now)
    "price_rise",  # ln(price now / price in the step before)
    "price_day",  # ln(mean of the next 24 h / mean of the past 7 days)
    "price_error",  # mean |ln(price / price 24 h earlier)| over the past 24 h
    "price_known",  # (time from now for which prices are known) / 24 h
)
"""Names of the columns that `outlook` returns."""
AHEAD_H: Final = 48
"""Number of hours of `prices_ahead`."""
_RANKS_S: Final = (6 * HOUR_S, 12 * HOUR_S, DAY_S)
_TINY: Final = 1e-9
_CELLS: Final = 1_000_000
"""Number of values processed together, to save memory."""


def relative(series: Series, known_ahead_s: float) -> NDArray[np.float64]:
    """Return the (N,) ratios of a series: the value in each step, divided by the mean of the next 24 hours.

    A ratio is at least `LEAST_RATIO` and at most `MOST_RATIO`. It is 1 if the mean is 0 or less.

    Args:
        series: The series, N steps.
        known_ahead_s: Time for which values are known ahead, seconds; 0: only the current step is known.
    """
    return to_ratios(series.values, day_means(series, known_ahead_s))


def to_ratios(values: NDArray[np.float64], means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `values` / `means` (equal shapes), clipped and rounded; 1 where the mean is 0 or less."""
    ratios, counted = np.ones(values.shape), means > 0.0
    ratios[counted] = np.clip(values[counted] / means[counted], LEAST_RATIO, MOST_RATIO)
    return np.round(ratios, 6)


def day_means(series: Series, known_ahead_s: float) -> NDArray[np.float64]:
    """Return the (N,) mean of the next 24 hours for each step of a series, as known in this step."""
    values, steps = series.values, len(series)
    day = steps_of_day(series)
    ahead = min(int(known_ahead_s / series.step_s), day - 1)
    now = np.arange(steps)
    if series.forecast is not None:
        found = np.empty(steps)
        for rows in _parts(now, day):
            seen = values_ahead(series, rows, day, ahead)
            found[rows] = np.nansum(seen, axis=1) / np.isfinite(seen).sum(axis=1)
        return found
    sums = np.concatenate([[0.0], np.cumsum(values)])
    known_end = np.minimum(now + ahead + 1, steps)
    past_from, past_end = np.maximum(now + ahead + 1 - day, 0), now
    counts = known_end - now + past_end - past_from
    means: NDArray[np.float64] = (sums[known_end] - sums[now] + sums[past_end] - sums[past_from]) / counts
    return means


def steps_of_day(series: Series) -> int:
    """Return the number of steps in 24 hours, rounded, at least 1."""
    return max(round(DAY_S / series.step_s), 1)


def values_ahead(series: Series, now: NDArray[np.int64], steps: int, ahead: int) -> NDArray[np.float64]:
    """Return (R, steps) values: for each step in `now`, the values of this step and of the next steps.

    A value that is not known in the step in `now` is replaced by its forecast, if the forecast was known at
    the start of that step. Otherwise, it is replaced by the value (or its replacement) 24 hours earlier. If
    that is before the start of the series, the result is nan.

    Args:
        series: The series.
        now: (R,) indices of steps.
        steps: Number of steps to return.
        ahead: Number of steps whose values are known, after each step in `now`.
    """
    day, values, forecast = steps_of_day(series), series.values, series.forecast
    later = np.arange(steps)
    at = now[:, None] + later
    found = np.where((later <= ahead) & (at < values.size), values[np.minimum(at, values.size - 1)], np.nan)
    if forecast is not None:
        said = np.minimum(at, forecast.values.size - 1)
        usable = (at == said) & (forecast.known_s[said] <= now[:, None] * series.step_s)
        found = np.where(np.isnan(found) & usable, forecast.values[said], found)
    for first in range(0, steps, day):
        block = found[:, first : first + day]
        if first:
            before = found[:, first - day : first][:, : block.shape[1]]
        else:
            at_before = at[:, : block.shape[1]] - day
            before = np.where(at_before >= 0, values[np.clip(at_before, 0, values.size - 1)], np.nan)
        block[:] = np.where(np.isnan(block), before, block)
    return found


def _parts(now: NDArray[np.int64], steps: int) -> Iterator[NDArray[np.int64]]:
    """Yield the array `now` in parts, to save memory: callers compute `steps` values for each entry."""
    rows = max(_CELLS // steps, 1)
    return (now[first : first + rows] for first in range(0, len(now), rows))


def outlook(series: Series, known_ahead_s: float) -> NDArray[np.float64]:
    """Return (N, K) values: the K columns `OUTLOOK` in each step of a series.

    A price that is not known yet is replaced by its forecast, by the price 24 h earlier, or by the present
    price, in this order. Before a logarithm is taken, a price is raised to at least
    `LEAST_RATIO` x (mean price of the past 7 days). If this mean is 0 or less, the columns with logarithms
    are 0.

    Args:
        series: The series, N steps.
        known_ahead_s: Time for which values are known ahead, seconds; 0: only the current step is known.
    """
    values, steps = series.values, len(series)
    day = steps_of_day(series)
    ahead = min(int(known_ahead_s / series.step_s), day - 1)
    now = np.arange(steps)
    week_mean = _past_means(values, max(round(WEEK_S / series.step_s), 1))
    least = LEAST_RATIO * np.maximum(week_mean, 0.0)
    is_positive = week_mean > 0.0
    logs = np.zeros(steps)
    logs[is_positive] = np.log(np.maximum(values, least)[is_positive])
    found = np.zeros((steps, len(OUTLOOK)))
    for rows in _parts(now, day):
        seen = values_ahead(series, rows, day, ahead)
        of_rows = slice(rows[0], rows[-1] + 1)
        _set_next_day(found[of_rows], seen, series.step_s, week_mean[of_rows], least[of_rows])
    before = np.maximum(now - 1, 0)
    found[:, 4] = logs - logs[before]
    wrong = np.abs(logs - logs[np.maximum(now - day, 0)])
    found[:, 6] = _past_means(wrong, day)
    found[:, 7] = (ahead + 1) * series.step_s / DAY_S
    found[~is_positive, 3:7] = 0.0
    return np.round(found, 6)


def _past_means(values: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """Return (N,) means of `values`: for each step, over this step and up to `steps` - 1 earlier steps."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, values.size + 1)
    first = np.maximum(end - steps, 0)
    means: NDArray[np.float64] = (sums[end] - sums[first]) / (end - first)
    return means


def _set_next_day(
    found: NDArray[np.float64],
    seen: NDArray[np.float64],
    step_s: float,
    week_mean: NDArray[np.float64],
    least: NDArray[np.float64],
) -> None:
    """Write the columns of `OUTLOOK` that describe the next day to `found`, one row for each step.

    `seen`: result of `values_ahead` for these steps. `week_mean`: mean of the past 7 days. `least`: value to
    which prices are raised before a logarithm is taken.
    """
    present = seen[:, :1]
    day_values = np.where(np.isnan(seen), present, seen)
    for column, span_s in enumerate(_RANKS_S):
        ahead_of = day_values[:, 1 : max(round(span_s / step_s), 1)]
        found[:, column] = (ahead_of < present).mean(axis=1) if ahead_of.shape[1] else 0.0
    floor = np.maximum(least, _TINY)  # where the floor is _TINY, the caller sets 0
    lowest = np.maximum(day_values.min(axis=1), floor)
    found[:, 3] = np.log(lowest / np.maximum(present[:, 0], floor))
    mean = np.maximum(day_values.mean(axis=1), floor)
    found[:, 5] = np.log(mean / np.maximum(week_mean, floor))


def prices_ahead(
    series: Series, known_ahead_s: float, means: NDArray[np.float64], first: int, end: int
) -> NDArray[np.float64]:
    """Return (end - first, AHEAD_H) prices: for each step in range(first, end), the prices of the next hours.

    Hour h begins h hours after the start of the step. Its price is the mean price of the steps in this hour;
    if steps do not divide an hour, it is the price in the middle of the hour. Prices are relative to `means`.
    A price that is not known yet is replaced by its forecast, by the price 24 h earlier, or by the present
    price, in this order.

    Args:
        series: The series, N steps.
        known_ahead_s: Time for which values are known ahead, seconds; 0: only the current step is known.
        means: (N,) `day_means` of the series.
        first: First step.
        end: End of the steps.
    """
    per_hour = HOUR_S / series.step_s
    steps = math.ceil(AHEAD_H * per_hour)
    found = np.empty((end - first, AHEAD_H))
    for rows in _parts(np.arange(first, end), steps):
        seen = values_ahead(series, rows, steps, int(known_ahead_s / series.step_s))
        seen = np.where(np.isnan(seen), seen[:, :1], seen)
        if per_hour % 1.0:
            hours = seen[:, ((np.arange(AHEAD_H) + 0.5) * per_hour).astype(np.intp)]
        else:
            hours = seen.reshape(len(rows), AHEAD_H, -1).mean(axis=2)
        found[rows - first] = to_ratios(hours, np.broadcast_to(means[rows, None], hours.shape))
    return found


def price_ranks(series: Series, first: int, end: int) -> NDArray[np.float64]:
    """Return the (end - first,) rank of the price in the steps `first` to `end` - 1 of a series.

    The rank is the fraction of the steps of the past 7 days in which the price was lower.
    """
    week = max(round(WEEK_S / series.step_s), 1)
    past, found = np.arange(week), np.empty(end - first)
    for rows in _parts(np.arange(first, end), week):
        at = rows[:, None] - past
        lower = (series.values[np.maximum(at, 0)] < series.values[rows, None]) & (at >= 0)
        found[rows - first] = lower.sum(axis=1) / np.minimum(rows + 1, week)
    return np.round(found, 6)


class PricesAsked(NamedTuple):
    """Which details of a price a policy reads, in addition to the ratio and the outlook (see the module).

    Attributes:
        ahead: Whether it reads the prices of the next hours (`prices_ahead`).
        rank: Whether it reads the rank of the price (`price_ranks`).
    """

    ahead: bool = False
    rank: bool = False


NOTHING: Final = PricesAsked()


class PriceAt(NamedTuple):
    """A price at one time.

    Attributes:
        price: The value.
        ratio: The value relative to the mean.
        outlook: (K,) values of the columns `OUTLOOK`.
        until_s: Time of the next change of the price, Unix seconds; infinite if no change is known.
        from_s: Start of the step, or of the first of equal steps that are joined, Unix seconds; 0 if neither
            details (`PricesAsked`) nor explanations are requested.
        ahead: (AHEAD_H,) prices of the next hours from `from_s` on; empty if not requested.
        rank: Rank of the price (`price_ranks`); 0 if not requested.
    """

    price: float
    ratio: float
    outlook: tuple[float, ...]
    until_s: float
    from_s: float = 0.0
    ahead: tuple[float, ...] = ()
    rank: float = 0.0


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
        all_seen = np.column_stack([seen, series.values])
        first = np.flatnonzero(np.concatenate([[True], (all_seen[1:] != all_seen[:-1]).any(axis=1)]))
        self.name, self.ends_s = series.name, series.ends.timestamp()
        self._series, self._known_ahead_s = series, known_ahead_s
        self._starts_s = series.begins.timestamp() + np.arange(len(series) + 1) * series.step_s
        self._means = day_means(series, known_ahead_s)
        self._sums = np.concatenate([[0.0], np.cumsum(series.values * series.step_s)])
        self._first: list[int] = [*first.tolist(), len(series)]
        self._from_s: list[float] = self._starts_s[first].tolist()
        self._prices: list[float] = series.values[first].tolist()
        self._seen: list[list[float]] = seen[first].tolist()
        self._last: tuple[PricesAsked, bool, float, PriceAt] | None = None

    def at(self, now_s: float, asked: PricesAsked = NOTHING, *, explained: bool = False) -> PriceAt | None:
        """Return the price at a time, Unix seconds; None if the series does not cover this time.

        If details are requested (`asked`), equal steps are not joined, because details change with each step.
        `explained` adds the prices of the next hours for explanations to users, and does not separate steps.
        """
        if not self._from_s[0] <= now_s < self.ends_s:
            return None
        last = self._last
        if last is None or last[:2] != (asked, explained) or not last[2] <= now_s < last[3].until_s:
            last = self._last = asked, explained, *self._step_at(now_s, asked, explained)
        return last[3]

    def mean(self, since_s: float, until_s: float) -> float | None:
        """Return the mean price between two times, Unix seconds; None if the series does not cover them."""
        if not self._starts_s[0] <= since_s < until_s <= self.ends_s:
            return None
        since, until = np.interp([since_s, until_s], self._starts_s, self._sums).tolist()
        return float((until - since) / (until_s - since_s))

    def _step_at(self, now_s: float, asked: PricesAsked, explained: bool) -> tuple[float, PriceAt]:
        """Return the start of the present step, or of the first of joined steps, and the price in it."""
        block = bisect.bisect_right(self._from_s, now_s) - 1
        k, end = self._first[block : block + 2]
        if any(asked):
            k = min(int(np.searchsorted(self._starts_s, now_s, "right")), len(self._series)) - 1
            end = k + 1
        from_s, until_s = float(self._starts_s[k]), float(self._starts_s[end])
        ratio, *others = self._seen[block]
        found = PriceAt(self._prices[block], ratio, tuple(others), until_s)
        if explained and not any(asked):
            asked = PricesAsked(ahead=True)
        if any(asked):
            found = found._replace(from_s=from_s)
        if asked.ahead:
            ahead = prices_ahead(self._series, self._known_ahead_s, self._means, k, k + 1)
            found = found._replace(ahead=tuple(ahead[0].tolist()))
        if asked.rank:
            found = found._replace(rank=float(price_ranks(self._series, k, k + 1)[0]))
        return from_s, found
