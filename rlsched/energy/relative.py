"""Price relative to the mean of about a day: the number by which decisions follow a price.

The mean covers the next 24 hours. A value that is not known yet counts as the value 24 hours earlier, so no
ratio contains anything that is published later. Prices of a day-ahead market are known for 12 hours ahead or
more at any time, prices of a real-time market only for the current step.
"""

from __future__ import annotations

import bisect
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.energy.series import DAY_S, Series

LEAST_RATIO: Final = 0.02
MOST_RATIO: Final = 50.0
"""Range to which ratios are clipped: prices can be negative, and spikes reach a hundred times the mean."""


def relative(series: Series, known_ahead_s: float) -> NDArray[np.float64]:
    """Return the (N,) value in each step of a series, divided by the mean that this module describes.

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


class PriceAt(NamedTuple):
    """A price at one time.

    Attributes:
        price: The value.
        ratio: The value relative to the mean.
        until_s: Time when the ratio changes next, Unix seconds; infinite: never, as far as it is known.
    """

    price: float
    ratio: float
    until_s: float


class PriceTable:
    """Steps of a price series with their ratios, by Unix time. Successive steps of one ratio count as one.

    Args:
        series: The series.
        known_ahead_s: As in `relative`.

    Attributes:
        name: Name of the series.
        ends_s: End of the last step, Unix seconds.
    """

    def __init__(self, series: Series, known_ahead_s: float) -> None:
        ratios = relative(series, known_ahead_s)
        first = np.flatnonzero(np.concatenate([[True], ratios[1:] != ratios[:-1]]))
        self.name, self.ends_s = series.name, series.ends.timestamp()
        self._from_s: list[float] = (series.begins.timestamp() + first * series.step_s).tolist()
        self._prices: list[float] = series.values[first].tolist()
        self._ratios: list[float] = ratios[first].tolist()

    def at(self, now_s: float) -> PriceAt | None:
        """Return the price at a time, Unix seconds; None: the series does not cover it."""
        if not self._from_s[0] <= now_s < self.ends_s:
            return None
        k = bisect.bisect_right(self._from_s, now_s) - 1
        until_s = self._from_s[k + 1] if k + 1 < len(self._from_s) else self.ends_s
        return PriceAt(self._prices[k], self._ratios[k], until_s)
