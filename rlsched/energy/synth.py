"""Generates series that resemble published electricity prices but contain no values of real series.

Times of day are UTC. A series has the requested mean. Values are rounded, so that equal arguments give
equal values on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.energy.forecast import Forecast
from rlsched.energy.series import DAY_S, HOUR_S, Series
from rlsched.errors import InputError

MEANS: Final = {"solar": 50.0, "wind": 95.0, "spiky": 70.0, "flat": 100.0}
"""Kinds of series, with their default means."""
WIND_H: Final = 30.0
"""Correlation time of `wind`, hours."""
LOWEST: Final = -0.08
"""Limit below which values of `wind` are clipped, as a multiple of the mean before clipping."""
SPIKES: Final = (10.0, 60.0)
"""Lowest and highest value of a spike, as multiples of the mean."""
MOST_SPIKES_FRAC: Final = 0.6
"""Upper limit of (sum of all spikes) / (sum of all values) in a series of the kind `spiky`."""
FORECAST_HOUR: Final = 12
"""Hour of the day at which the next day is forecast."""
_TIGHT_STARTS, _TIGHT_STAYS = 0.06, 0.6  # per day; supply is tight for 2.5 days on average
_SPIKE_STARTS, _SPIKE_STAYS = 0.22, 0.5  # per hour, in the evening of a tight day
_LEAST_STEPS, _LEAST_STEP_S = 2, 60.0

Values = NDArray[np.float64]


def synthesize(
    like: str, begins: datetime, days: int, step_s: float = HOUR_S, mean: float | None = None, seed: int = 0
) -> Series:
    """Return a series of one kind. The same arguments give the same values.

    solar: like day-ahead prices of California, 2023-24 (p5 0.15, p95 2.4, p99 3.6 times the mean, 2 % of the
        hours below 0, correlation with the day before 0.9): cheap at noon, expensive in the evening, similar
        every day, and lower at weekends.
    wind: like day-ahead prices of Germany, 2023-24 (p5 0, p95 1.8, p99 2.4 times the mean, 4 % of the hours
        below 0, a smaller daily pattern): swings over days, which are an AR(1) process with a correlation
        time of 30 h, clipped slightly below 0.
    spiky: like real-time prices of Texas, Victoria and Singapore (median 0.5 to 0.9, p99 4 to 10, maximum 22
        to 200 times the mean): a low base, and a few spikes of 10 to 60 times the mean, an hour or longer,
        in the evenings of some days.
    flat: constant, like the carbon intensity of a grid of gas plants (Singapore, variation 0.02), or a fixed
        tariff.

    Args:
        like: One of `MEANS`.
        begins: Start of the first step, UTC.
        days: Length, days.
        step_s: Length of a step, seconds; must divide a day.
        mean: Mean of the values, in any unit; more than 0. None: the default in `MEANS`.
        seed: Random seed.

    Raises:
        InputError: an argument is out of range.
    """
    if like not in MEANS:
        raise InputError(f"--like: expected one of {', '.join(MEANS)}, got {like!r}")
    mean = MEANS[like] if mean is None else mean
    if not (mean > 0.0 and math.isfinite(mean)):
        raise InputError(f"--mean: expected a number above 0, got {mean:g}")
    if step_s < _LEAST_STEP_S or DAY_S % step_s or days * DAY_S / step_s < _LEAST_STEPS:
        raise InputError(
            f"--step: expected 1 min or more that divides 24 h, and {_LEAST_STEPS} steps or more, got "
            f"{step_s:g} s in {days} days; choose one such as 15m or 1h"
        )
    seconds = (begins - datetime(begins.year, 1, 1, tzinfo=begins.tzinfo)).total_seconds()
    from_monday_h = (seconds + datetime(begins.year, 1, 1).weekday() * DAY_S) / HOUR_S
    middles = np.arange(round(days * DAY_S / step_s), dtype=np.float64) + 0.5
    at_h = from_monday_h % 168.0 + middles * (step_s / HOUR_S)
    values = _KINDS[like](at_h, step_s / HOUR_S, np.random.default_rng(seed))
    digits = max(2, 3 - math.floor(math.log10(mean)))
    return Series(f"{like} {seed}", begins, step_s, np.round(mean * values, digits) + 0.0)


def with_forecast(series: Series, sd: float, seed: int = 0) -> Series:
    """Return a generated series with a forecast of each step; the values are unchanged.

    Every day at `FORECAST_HOUR` the next day (UTC) is forecast, 12 to 36 h ahead. The error of each forecast
    is a Brownian motion: at a lead time of L hours, its standard deviation is `sd` x (mean of the series) x
    sqrt(L / 24).

    Args:
        series: The series.
        sd: Standard deviation of the error 24 h ahead, relative to the mean; 0 or more.
        seed: Random seed.

    Raises:
        InputError: `sd` is out of range.
    """
    if not (sd >= 0.0 and math.isfinite(sd)):
        raise InputError(f"--forecast-sd: expected a number of 0 or more, got {sd:g}")
    steps = np.arange(len(series), dtype=np.float64) * series.step_s
    midnight_s = (series.begins.hour * 60.0 + series.begins.minute) * 60.0 + series.begins.second
    day = (steps + midnight_s) // DAY_S
    known_s = day * DAY_S - midnight_s - (24 - FORECAST_HOUR) * HOUR_S
    lead_h, draw = (steps - known_s) / HOUR_S, np.random.default_rng([seed, 1])
    walk, before_h, errors = 0.0, 0.0, list[float]()
    for k, kick in enumerate(draw.standard_normal(len(series)).tolist()):
        if k and day[k] != day[k - 1]:
            walk, before_h = 0.0, 0.0
        walk += kick * math.sqrt((lead_h[k] - before_h) / 24.0)
        before_h = float(lead_h[k])
        errors.append(walk)
    mean = float(series.values.mean())
    digits = max(2, 3 - math.floor(math.log10(mean)))
    values = np.round(series.values + sd * mean * np.array(errors), digits) + 0.0
    return replace(series, forecast=Forecast(values, known_s))


def _flat(at_h: Values, step_h: float, draw: np.random.Generator) -> Values:  # noqa: ARG001
    return np.ones(len(at_h))


def _solar(at_h: Values, step_h: float, draw: np.random.Generator) -> Values:
    shape = 1.0 + _bump(at_h, 19.5, 2.0, 1.15) + _bump(at_h, 7.0, 1.5, 0.3) - _bump(at_h, 12.5, 3.2, 0.82)
    level = np.exp(0.35 * _swings(len(at_h), step_h, 240.0, draw))
    noise = 0.15 * _swings(len(at_h), step_h, 3.0, draw)
    is_weekend = at_h // 24.0 % 7 >= 5
    found = shape * level * np.where(is_weekend, 0.85, 1.0) + noise
    return found / float(found.mean())


def _wind(at_h: Values, step_h: float, draw: np.random.Generator) -> Values:
    shape = 1.0 + _bump(at_h, 19.0, 2.5, 0.35) + _bump(at_h, 7.5, 2.0, 0.2) - _bump(at_h, 13.0, 3.0, 0.3)
    found = np.maximum(shape + 0.57 * _swings(len(at_h), step_h, WIND_H, draw), LOWEST)
    return found / max(float(found.mean()), 0.1)


def _spiky(at_h: Values, step_h: float, draw: np.random.Generator) -> Values:
    shape = 1.0 + _bump(at_h, 19.0, 3.0, 0.6) - _bump(at_h, 13.0, 3.5, 0.35)
    base = shape * np.exp(0.25 * _swings(len(at_h), step_h, 12.0, draw))
    spikes = _spikes(at_h, step_h, draw)
    is_base = spikes == 0.0
    base *= (len(at_h) - spikes.sum()) / base[is_base].sum()
    return np.where(is_base, base, spikes)


def _spikes(at_h: Values, step_h: float, draw: np.random.Generator) -> Values:
    """Return the values of the spikes, as multiples of the mean; 0 elsewhere."""
    found = np.zeros(len(at_h))
    left = MOST_SPIKES_FRAC * len(at_h)
    is_tight = _tight_days(math.ceil(len(at_h) * step_h / 24.0), draw)
    height, block_h, is_first = 0.0, max(step_h, 1.0), True
    for block in range(math.floor(len(at_h) * step_h / block_h)):  # a block is an hour or more
        stays, starts, size = draw.random(3).tolist()
        begin, end = round(block * block_h / step_h), round((block + 1) * block_h / step_h)
        hour = at_h[begin] % 24.0
        if not is_tight[int(block * block_h // 24.0)] or not 15.0 <= hour < 22.0:
            height = 0.0
        elif (is_first and hour >= 18.0) or not height or stays >= _SPIKE_STAYS:
            rises = starts < _SPIKE_STARTS or (is_first and hour >= 18.0)
            height = SPIKES[0] * (SPIKES[1] / SPIKES[0]) ** size if rises else 0.0
        if height * (end - begin) > left:
            height = SPIKES[0] if SPIKES[0] * (end - begin) <= left else 0.0
        is_first = is_first and not height
        left -= height * (end - begin)
        found[begin:end] = height
    return found


def _tight_days(days: int, draw: np.random.Generator) -> NDArray[np.bool_]:
    """Return, for each day, whether spikes can occur; True for at least one day."""
    found = np.zeros(days, bool)
    for day, chance in enumerate(draw.random(days).tolist()):
        found[day] = chance < (_TIGHT_STAYS if day and found[day - 1] else _TIGHT_STARTS)
    if not found.any():
        found[int(draw.random() * days)] = True
    return found


def _bump(at_h: Values, centre_h: float, width_h: float, height: float) -> Values:
    """Return a bell curve over the hours of the day, with its peak at `centre_h`."""
    off_h = (at_h - centre_h + 12.0) % 24.0 - 12.0
    found: Values = height * np.exp(-0.5 * (off_h / width_h) ** 2)
    return found


def _swings(steps: int, step_h: float, time_h: float, draw: np.random.Generator) -> Values:
    """Return an AR(1) process of mean 0 and variance 1 with the correlation time `time_h`, hours."""
    kept = math.exp(-step_h / time_h)
    found, now = list[float](), 0.0
    for k, one in enumerate(draw.standard_normal(steps).tolist()):
        now = one if k == 0 else kept * now + math.sqrt(1.0 - kept * kept) * one
        found.append(now)
    return np.array(found)


_KINDS: Final[dict[str, Callable[[Values, float, np.random.Generator], Values]]] = {
    "solar": _solar,
    "wind": _wind,
    "spiky": _spiky,
    "flat": _flat,
}
