"""Statistics of a series of prices or carbon intensities: the numbers of `rlsched signal describe`."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.energy.series import DAY_S, HOUR_S, WEEK_S, Series

LEADS_H: Final = (0.0, 6.0, 12.0, 24.0, 48.0, math.inf)
"""Limits of the ranges of lead times, hours; forecast errors are reported for each range."""
_LEAST_CELL_S = 60.0


def describe(series: Series) -> dict[str, Any]:
    """Return the statistics of a series.

    Values are in the unit of the series. Names of fractions end in `_frac`. Unknown values are None.

    by_hour: 24 means by hour of day, UTC. A step is in the hour of its middle, or in each hour that it covers
        if it is longer than 1 h.
    autocorrelation_24h, autocorrelation_7d: correlation of the values with the values 24 h or 7 days earlier;
        None if the series is constant or shorter than twice the lag, or if steps do not divide the lag.
    cheapest_half_saves_frac: see `cheapest_half_saves`.
    forecast: see `forecast_errors`; None without a forecast.
    """
    values = series.values
    mean, spread = float(values.mean()), float(values.std())
    p5, p50, p95, p99 = (float(one) for one in np.percentile(values, [5, 50, 95, 99]))
    return {
        "file": series.name,
        "begins": series.begins.isoformat(),
        "ends": series.ends.isoformat(),
        "span_s": series.step_s * len(series),
        "step_s": series.step_s,
        "steps": len(series),
        "mean": mean,
        "min": float(values.min()),
        "p5": p5,
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "max": float(values.max()),
        "below_0_frac": float((values < 0.0).mean()),
        "variation": spread / mean if mean > 0.0 else None,
        "by_hour": _by_hour(series),
        "autocorrelation_24h": _autocorrelation(series, DAY_S),
        "autocorrelation_7d": _autocorrelation(series, WEEK_S),
        "cheapest_half_saves_frac": cheapest_half_saves(series),
        "forecast": forecast_errors(series),
    }


def forecast_errors(series: Series) -> dict[str, Any] | None:
    """Return the errors of a series' forecast by lead time; None if there is no forecast.

    ends: end of the last step with a forecast.
    steps: number of steps with a value and a forecast.
    by_lead: errors in each range of lead times (from when a forecast was known to the start of its step)
        between two successive `LEADS_H`, without empty ranges. The fields are `from_h`, `until_h` (None: no
        limit), `steps`, `error_mean_abs` (mean |forecast - value|), `error_mean` (mean of forecast - value),
        and for comparison `day_before_error_mean_abs` (mean |value 24 h earlier - value| in the same steps,
        None if there is no such value).
    """
    forecast = series.forecast
    if forecast is None:
        return None
    values, steps = series.values, len(series)
    day = max(round(DAY_S / series.step_s), 1)
    errors = forecast.values[:steps] - values
    before = np.abs(np.concatenate([np.full(min(day, steps), np.nan), values[:-day] - values[day:]]))
    lead_h = (np.arange(steps) * series.step_s - forecast.known_s[:steps]) / HOUR_S
    by_lead = []
    for from_h, until_h in pairwise(LEADS_H):
        among = (lead_h >= from_h) & (lead_h < until_h)
        if among.any():
            earlier = before[among & np.isfinite(before)]
            by_lead.append(
                {
                    "from_h": from_h,
                    "until_h": until_h if math.isfinite(until_h) else None,
                    "steps": int(among.sum()),
                    "error_mean_abs": float(np.abs(errors[among]).mean()),
                    "error_mean": float(errors[among].mean()),
                    "day_before_error_mean_abs": float(earlier.mean()) if len(earlier) else None,
                }
            )
    last = int(np.flatnonzero(np.isfinite(forecast.values))[-1])
    return {
        "ends": (series.begins + timedelta(seconds=(last + 1) * series.step_s)).isoformat(),
        "steps": int(np.isfinite(errors).sum()),
        "by_lead": by_lead,
    }


def cheapest_half_saves(series: Series) -> float | None:
    """Return the fraction of the cost that a constant load saves if it runs only in half of each day.

    The load takes the same energy a day, in the cheapest half of the steps of each whole day (UTC). The
    saving is an upper bound, for known values and work that can wait for hours and run at twice the power.
    Return None if there is no whole day, if a day has fewer than two steps or a fraction of a step, or if the
    mean is not above 0.
    """
    steps = DAY_S / series.step_s
    if steps % 1 or steps < 2:
        return None
    first = math.ceil(-_midnight_s(series) % DAY_S / series.step_s)
    whole = (len(series) - first) // int(steps)
    if whole < 1:
        return None
    days = np.sort(series.values[first : first + whole * int(steps)].reshape(whole, -1), axis=1)
    weight = np.clip(steps / 2 - np.arange(int(steps)), 0.0, 1.0)
    mean, cheap = float(days.mean()), float((days @ weight).mean() / weight.sum())
    return 1.0 - cheap / mean if mean > 0.0 else None


def _midnight_s(series: Series) -> float:
    """Return the time of day at which the series begins, seconds after midnight UTC."""
    at = series.begins
    return at.hour * HOUR_S + at.minute * 60.0 + at.second + at.microsecond / 1e6


def _by_hour(series: Series) -> list[float | None]:
    cell_s = series.step_s
    shared_s = float(math.gcd(round(cell_s), round(HOUR_S)))
    if cell_s > HOUR_S and shared_s >= _LEAST_CELL_S:
        cell_s = shared_s
    cells: NDArray[np.float64] = np.repeat(series.values, round(series.step_s / cell_s))
    hours = ((_midnight_s(series) + (np.arange(len(cells)) + 0.5) * cell_s) % DAY_S // HOUR_S).astype(int)
    counts = np.bincount(hours, minlength=24)
    sums = np.bincount(hours, cells, minlength=24)
    return [float(total / count) if count else None for total, count in zip(sums, counts, strict=True)]


def _autocorrelation(series: Series, lag_s: float) -> float | None:
    lag = lag_s / series.step_s
    if lag % 1 or len(series) < 2 * lag:
        return None
    before, after = series.values[: -int(lag)], series.values[int(lag) :]
    if len(before) < 2 or np.ptp(before) == 0.0 or np.ptp(after) == 0.0:
        return None
    return float(np.corrcoef(before, after)[0, 1])
