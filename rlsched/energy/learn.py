"""Forecasts of a series that are learned from its past values: the numbers of `rlsched signal forecast`.

The model is a linear regression on earlier values, the hour of the day and the weekend (`_inputs`). Before
the regression, values are scaled with asinh, which limits spikes and permits values below 0. Large errors
have a lower weight (Huber), and so do old steps. Values count as known from the start of their step on, as
policies assume with `known_ahead_h = 0`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.energy.forecast import Forecast
from rlsched.energy.series import DAY_S, HOUR_S, WEEK_S, Series
from rlsched.errors import InputError

LEAST_S: Final = 28 * DAY_S
"""Time with values before the first forecast, seconds."""
LEAD_S: Final = DAY_S
"""Default time ahead for which steps with a value are forecast, seconds: 24 h, as the mean price needs."""
AHEAD_S: Final = 2 * DAY_S
"""Default time after the last value for which steps are forecast, seconds: 48 h, as `price-window` needs."""
MOST_LEAD_S: Final = WEEK_S
"""Longest lead time, and longest time after the last value, seconds."""
DIGITS: Final = 5
"""Significant digits of a forecast."""
_REFIT_S: Final = WEEK_S
_WINDOW_S: Final = 730 * DAY_S
"""Time before a fit whose steps count in it, seconds."""
_HALF_S: Final = 180 * DAY_S
"""Age at which a step has half the weight of a new one, seconds."""
_SCALE_S: Final = 90 * DAY_S
"""Time before a fit whose values determine the scale, seconds."""
_MOST_ROWS: Final = 10_000
"""Approximate maximum number of steps in a fit; if there are more, they are thinned out evenly."""
_RIDGE: Final = 50.0
"""Ridge: with few steps, a forecast is close to the value 24 hours earlier."""
_HUBER: Final = 0.6
"""Error from which weights fall, relative to the spread of the errors."""
_ROUNDS: Final = 4
_SPREAD: Final = 1.4826
"""Standard deviation of a normal distribution, divided by its median absolute deviation."""
_MONDAY_S: Final = 4 * DAY_S
"""Start of the first Monday, Unix seconds."""

Values = NDArray[np.float64]
Steps = NDArray[np.int64]


class _Scaled(NamedTuple):
    """The values of a series in the scale of the regression, up to the last step that a forecast may use.

    Attributes:
        values: (N,) scaled values.
        sums: (N + 1,) sums of the scaled values before each step.
        centre: Value that is scaled to 0.
        unit: Distance from `centre` above which the scale is rather logarithmic than linear.
    """

    values: Values
    sums: Values
    centre: float
    unit: float

    @classmethod
    def of(cls, values: Values, known: Values) -> _Scaled:
        """Scale `values`; the values `known` determine centre and unit."""
        centre = float(np.median(known))
        unit = 2.0 * _SPREAD * float(np.median(np.abs(known - centre))) or 2.0 * float(known.std()) or 1.0
        scaled = np.arcsinh((values - centre) / unit)
        return cls(scaled, np.concatenate([[0.0], np.cumsum(scaled)]), centre, unit)

    def unscaled(self, scaled: Values) -> Values:
        found: Values = self.centre + self.unit * np.sinh(scaled)
        return found

    def past_means(self, last: Steps, steps: int) -> Values:
        """Return the means over `steps` steps, up to the steps `last`."""
        found: Values = (self.sums[last + 1] - self.sums[last + 1 - steps]) / steps
        return found


class _Inputs(NamedTuple):
    """Inputs of the regression for R steps.

    Attributes:
        before: (R,) last known value at the same time of day.
        columns: (R, F) inputs; `before` is one of them.
    """

    before: Values
    columns: Values


class _Fit(NamedTuple):
    """A fitted regression: the difference between a value and the last known value at the same time of day.

    Attributes:
        means: (F,) means of the inputs.
        spreads: (F,) standard deviations of the inputs.
        coefficients: (F + 1,) intercept and coefficients.
        low: Lowest value in the fit, as a limit of forecasts.
        high: Highest value in the fit.
    """

    means: Values
    spreads: Values
    coefficients: Values
    low: float
    high: float

    @classmethod
    def of(cls, inputs: _Inputs, wanted: Values, weights: Values) -> _Fit:
        """Fit (R,) values `wanted` to `inputs`, with (R,) `weights`."""
        means: Values = inputs.columns.mean(axis=0)
        spreads: Values = inputs.columns.std(axis=0)
        spreads[spreads < 1e-9] = 1.0
        x, y = _with_intercept((inputs.columns - means) / spreads), wanted - inputs.before
        ridge = _RIDGE * np.eye(x.shape[1])
        ridge[0, 0] = 1e-9
        now = weights
        for _ in range(_ROUNDS):
            weighted = x * now[:, None]
            solved = np.linalg.solve(weighted.T @ x + ridge, weighted.T @ y)
            coefficients = np.asarray(solved, np.float64)
            errors = y - x @ coefficients
            limit = _HUBER * _SPREAD * float(np.median(np.abs(errors))) + 1e-9
            now = weights * np.minimum(1.0, limit / np.maximum(np.abs(errors), limit))
        return cls(means, spreads, coefficients, float(wanted.min()), float(wanted.max()))

    def at(self, inputs: _Inputs) -> Values:
        """Return (R,) values for the inputs."""
        x = _with_intercept((inputs.columns - self.means) / self.spreads)
        return np.clip(inputs.before + x @ self.coefficients, self.low, self.high)


def _with_intercept(columns: Values) -> Values:
    """Return (R, F + 1) columns: ones, and the (R, F) `columns`."""
    return np.column_stack([np.ones(len(columns)), columns])


class _Learner:
    """Fits regressions to the past of a series, and forecasts with them."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self.day = max(round(DAY_S / series.step_s), 1)
        self.hour = max(round(HOUR_S / series.step_s), 1)

    def steps(self, time_s: float) -> int:
        """Return the number of steps that cover a time, at least 1."""
        return max(math.ceil(time_s / self._series.step_s - 1e-9), 1)

    def forecast(self, scaled: _Scaled, known: int, lead: int, at: Steps, last: Steps) -> Values:
        """Return (R,) forecasts of the steps `at` by a regression on steps up to `known`.

        Args:
            scaled: The values, known up to `last`.
            known: Last step that may count in the fit.
            lead: Number of steps ahead of the last known value for which the regression is fitted.
            at: (R,) steps to forecast.
            last: (R,) last step whose value is known when each forecast is made.
        """
        first = max(known + 1 - self.steps(_WINDOW_S), 8 * self.day + lead)
        stride = -(-(known + 1 - first) // _MOST_ROWS)
        while math.gcd(stride, self.day) > 1:  # so that each time of day is kept
            stride += 1
        past = np.arange(known, first - 1, -stride)
        weights = np.exp2((past - known) * (self._series.step_s / _HALF_S))
        fit = _Fit.of(self._inputs(scaled, past, past - lead), scaled.values[past], weights)
        return scaled.unscaled(fit.at(self._inputs(scaled, at, last)))

    def scaled(self, known: int, end: int) -> _Scaled:
        """Scale the values before step `end` by the values up to step `known`."""
        values = self._series.values
        return _Scaled.of(values[:end], values[max(known + 1 - self.steps(_SCALE_S), 0) : known + 1])

    def _inputs(self, scaled: _Scaled, at: Steps, last: Steps) -> _Inputs:
        """Return the inputs of the regression for the steps `at`, with values up to the steps `last`."""
        day, values = self.day, scaled.values
        same_time = at - -(-(at - last) // day) * day
        same_day = at - -(-(at - last) // (7 * day)) * 7 * day
        at_s = self._series.begins.timestamp() + at * self._series.step_s
        turns = 2.0 * np.pi * at_s / DAY_S
        waves = [wave(n * turns) for n in (1, 2, 3, 4) for wave in (np.cos, np.sin)]
        is_weekend = ((at_s - _MONDAY_S) % WEEK_S >= 5 * DAY_S).astype(np.float64)
        columns = np.column_stack(
            [
                values[same_time],
                values[same_time - day],
                values[last],
                values[same_day],
                sum(values[same_time - n * day] for n in range(7)) / 7.0,
                *(scaled.past_means(last, n) for n in (self.hour, 3 * self.hour, day, 7 * day)),
                *waves,
                is_weekend,
                *(is_weekend * wave for wave in waves[:4]),
            ]
        )
        return _Inputs(values[same_time], columns)


def learned(series: Series, lead_s: float, ahead_s: float) -> Series:
    """Return a series with forecasts that are learned from its values; earlier forecasts are replaced.

    The forecast of a step with a value is known `lead_s` before the step. It uses only values known at that
    time, and a regression on steps before that time, which is fitted again every 7 days. The first `LEAST_S`
    of values have no effect but to be learned from: forecasts made in this time are left out. Steps after the
    last value have forecasts that are known from the start of the last step with a value on.

    Args:
        series: The series.
        lead_s: Time ahead for which steps with a value are forecast, seconds; rounded up to whole steps.
        ahead_s: Time after the last value for which steps are forecast, seconds.

    Raises:
        InputError: the series is too short, or a time is out of range.
    """
    for option, time_s in (("--lead", lead_s), ("--ahead", ahead_s)):
        if not 0.0 < time_s <= MOST_LEAD_S:
            raise InputError(f"{option}: expected a time above 0 and up to 7d, got {time_s:g} s")
    learner, end = _Learner(series), len(series)
    lead, ahead = learner.steps(lead_s), learner.steps(ahead_s)
    first, refit = learner.steps(LEAST_S), learner.steps(_REFIT_S)
    if end <= first:
        raise InputError(
            f"{series.name}: expected more than {first:,} steps with a value ({LEAST_S / DAY_S:g} days) to "
            f"learn from, got {end:,}; add earlier values"
        )
    values, known = np.full(end + ahead, np.nan), np.full(end + ahead, np.nan)
    for last in range(first, end - lead, refit):
        issued = np.arange(last, min(last + refit, end - lead))
        scaled = learner.scaled(last, int(issued[-1]) + 1)
        values[issued + lead] = learner.forecast(scaled, last, lead, issued + lead, issued)
        known[issued + lead] = issued
    scaled = learner.scaled(end - 1, end)
    for begin in range(0, ahead, learner.hour):
        at = np.arange(begin, min(begin + learner.hour, ahead)) + end
        lead_of = int(at[-1]) - (end - 1)
        values[at] = learner.forecast(scaled, end - 1, lead_of, at, np.full(len(at), end - 1))
        known[at] = end - 1
    rounded = np.array([float(f"{one:.{DIGITS}g}") for one in values.tolist()]) + 0.0
    return replace(series, forecast=Forecast(rounded, known * series.step_s))
