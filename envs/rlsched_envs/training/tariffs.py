"""Hourly prices of electricity for training windows. Each window begins on a randomly drawn day."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.energy.relative import NOTHING, PricesAsked, outlook, relative
from rlsched.energy.series import DAY_S, HOUR_S, Series
from rlsched.errors import InputError
from rlsched_envs.sim.bills import price_details
from rlsched_envs.sim.signals import CARBON, FROM, LIMIT, PRICE, RATIO, ROWS, rows_of

HORIZON_H: Final = 42 * 24
"""Number of hours of prices that a window can use. After these hours, the last price continues."""
LEAST_DAYS: Final = 140
"""Minimum length of a price series, days: four weeks each for choosing and for confirming."""
CONFIRMING_FRAC: Final = 0.2
CHOOSING_FRAC: Final = 0.25
BLOCK_DAYS: Final = 91
"""Length of a block of days in `split`."""
_DAY_H: Final = 24
_WEEK_H: Final = 7 * _DAY_H


@dataclass(frozen=True)
class Tariff:
    """Hourly prices that start at a midnight (UTC), with the features that policies read.

    Attributes:
        name: Name for reports.
        begins: The first midnight, UTC.
        rows: (R, hours) values in each hour. Row 0: price, 0 or more, in any unit. Row 1: price relative to
            its mean over about a day. Other rows: the columns of `rlsched.energy.relative.OUTLOOK`. The
            values of an hour are computed only from prices that are already published in this hour.
        hourly: The hourly prices.
        known_ahead_s: How far ahead prices are known, seconds.
        first_day: First day on which a window can begin, counted from `begins`.
        days: Number of days on which a window can begin.
    """

    name: str
    begins: datetime
    rows: NDArray[np.float64]
    hourly: Series
    known_ahead_s: float
    first_day: int
    days: int

    @classmethod
    def of(cls, series: Series, known_ahead_s: float) -> Tariff:
        """Return the tariff of a price series, averaged over each hour.

        Raises:
            InputError: the series is shorter than `LEAST_DAYS`.
        """
        hourly = _hourly(series)
        days = len(hourly) // _DAY_H
        if days < LEAST_DAYS:
            raise InputError(
                f"{series.name}: expected prices of {LEAST_DAYS} days or more, got {days}: windows for "
                "training, choosing and confirming need different days"
            )
        prices = np.maximum(hourly.values, 0.0)
        rows = np.vstack([prices, relative(hourly, known_ahead_s), outlook(hourly, known_ahead_s).T])
        return cls(series.name, hourly.begins, rows, hourly, known_ahead_s, 0, days)

    def part(self, since_frac: float, until_frac: float) -> Tariff:
        """Return a tariff with a part of the days of this tariff, between two fractions (0 to 1) of the days.

        If a window is longer than the part, the last week of the part is repeated.
        """
        first, end = round(self.days * since_frac), round(self.days * until_frac)
        rows = self.rows[:, : (self.first_day + end) * _DAY_H]
        return replace(self, rows=rows, first_day=self.first_day + first, days=end - first)

    def draw_day(self, span_s: float, rng: np.random.Generator) -> int:
        """Return a random day, counted from `begins`, on which a window of `span_s` seconds begins."""
        return self.first_day + int(rng.integers(max(self.days - int(span_s / DAY_S) - 1, 1)))

    def quarter(self, day: int) -> str:
        """Return the quarter of the year in which a window begins, such as `2024-Q3`."""
        at = self.begins + timedelta(days=day)
        return f"{at.year}-Q{(at.month + 2) // 3}"

    def signal(self, day: int, asked: PricesAsked = NOTHING) -> NDArray[np.float64]:
        """Return `ProgressArrays.signal` for a window that begins on this day, (R, HORIZON_H + 1).

        R is `ROWS_AHEAD` if the policy reads ranks or sums of prices (`asked`), otherwise `ROWS`.
        """
        hours = day * _DAY_H + np.arange(HORIZON_H + 1)
        end = self.rows.shape[1]
        hours = np.where(hours < end, hours, end - _WEEK_H + (hours - end) % _WEEK_H)
        found = np.zeros((rows_of(asked), HORIZON_H + 1))
        found[PRICE + 2] = self.rows[0, hours]
        found[PRICE, 1:] = np.cumsum(found[PRICE + 2, :-1]) * HOUR_S
        found[CARBON + 2] = 0.0
        found[RATIO:LIMIT] = self.rows[1:, hours]
        found[LIMIT] = math.inf
        if any(asked):
            first = int(hours.min())
            details = price_details(self.hourly, self.known_ahead_s, asked, first, int(hours.max()) + 1)
            found[ROWS:] = details[:, hours - first]
            found[FROM] = np.arange(HORIZON_H + 1) * HOUR_S
        return found


def _hourly(series: Series) -> Series:
    """Return the mean of a series in each hour, starting at the first midnight (UTC).

    Raises:
        InputError: hours are not whole numbers of steps, or a step is longer than an hour.
    """
    steps = round(HOUR_S / series.step_s)
    if steps < 1 or steps * series.step_s != HOUR_S:
        raise InputError(
            f"{series.name}: expected steps that divide an hour, got {series.step_s:g} s; give hourly values"
        )
    begins = series.begins.astimezone(UTC)
    midnight = datetime(begins.year, begins.month, begins.day, tzinfo=UTC)
    late_s = (midnight - begins).total_seconds() % DAY_S
    first = round(late_s / series.step_s)
    hours = (len(series) - first) // steps
    values = series.values[first : first + hours * steps].reshape(hours, steps).mean(axis=1)
    forecast = None if series.forecast is None else series.forecast.averaged(first, steps, series.step_s)
    return Series(series.name, begins + timedelta(seconds=late_s), HOUR_S, values, forecast)


class TariffParts(NamedTuple):
    """Tariffs for training, for choosing among the trained results, and for confirming the chosen one."""

    training: tuple[Tariff, ...]
    choosing: tuple[Tariff, ...]
    confirming: tuple[Tariff, ...]


def split(tariffs: Sequence[Tariff]) -> TariffParts:
    """Split the days of each tariff into parts for training, choosing and confirming.

    The last `CONFIRMING_FRAC` of the days are for confirming. The days before are divided into equal blocks
    of about `BLOCK_DAYS` days. The last `CHOOSING_FRAC` of each block is for choosing, because prices of a
    single season are too alike. The rest is for training.
    """
    training, choosing = [], []
    for one in tariffs:
        count = max(round(one.days * (1.0 - CONFIRMING_FRAC) / BLOCK_DAYS), 1)
        width = (1.0 - CONFIRMING_FRAC) / count
        for begins in (width * k for k in range(count)):
            ends = begins + width
            training.append(one.part(begins, ends - width * CHOOSING_FRAC))
            choosing.append(one.part(ends - width * CHOOSING_FRAC, ends))
    confirming = (one.part(1.0 - CONFIRMING_FRAC, 1.0) for one in tariffs)
    return TariffParts(tuple(training), tuple(choosing), tuple(confirming))
