"""Tables that return, for a Unix time, the power limit of a cluster, or the price together with the limit."""

from __future__ import annotations

import bisect
import math
from datetime import UTC, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rlsched.energy.bills import PriceUnit
from rlsched.energy.relative import NOTHING, PriceAt, PricesAsked, PriceTable
from rlsched.energy.series import HOUR_S, Series
from rlsched.errors import InputError


def read_limits(path: str | Path) -> Series:
    """Read a file of power limits, kW (`rlsched.energy.series`).

    Raises:
        InputError: the file cannot be read, or a limit is not above 0.
    """
    series = Series.read(path)
    wrong = np.flatnonzero(series.values <= 0.0)
    if len(wrong):
        at = series.begins + timedelta(seconds=float(wrong[0]) * series.step_s)
        raise InputError(
            f"{series.name}: expected power limits above 0 kW, got {series.values[wrong[0]]:g} at "
            f"{at.astimezone(UTC):%Y-%m-%dT%H:%M} (UTC)"
        )
    return series


FALLS: Final = 8
"""Highest number of falls in `LimitAt.falls`."""


class LimitAt(NamedTuple):
    """A power limit at one time.

    Attributes:
        limit_w: The limit, W; infinite: no limit at this time.
        until_s: Time of the next change of `limit_w` or `falls`, Unix seconds; infinite if no change is
            known.
        falls: Announced falls of the limit as (time in Unix seconds, limit in W): each limit is lower than
            all limits before it. If there are more than `FALLS`, the last entry has the lowest limit.
        soft: Whether jobs without slack may exceed the limit.
    """

    limit_w: float
    until_s: float
    falls: tuple[tuple[float, float], ...] = ()
    soft: bool = False


class LimitTable:
    """Power limits of a series by Unix time. Successive equal steps are joined.

    There is no limit before the series begins. After its end, the last limit applies.

    Args:
        series: The series, kW.
        known_ahead_s: Time for which values are known ahead, seconds.
        soft: Whether jobs without slack may exceed the limit.
    """

    def __init__(self, series: Series, known_ahead_s: float = 0.0, *, soft: bool = False) -> None:
        values = series.values
        first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
        self._from_s: list[float] = (series.begins.timestamp() + first * series.step_s).tolist()
        self._limit_w: list[float] = (1000.0 * values[first]).tolist()
        self._ahead_s, self._soft = round(known_ahead_s, 3), soft

    def at(self, now_s: float) -> LimitAt:
        """Return the limit at a time, Unix seconds."""
        k = bisect.bisect_right(self._from_s, now_s)
        until_s = self._from_s[k] if k < len(self._from_s) else math.inf
        limit_w = lowest_w = self._limit_w[k - 1] if k else math.inf
        falls: list[tuple[float, float]] = []
        for j in range(k, len(self._from_s)):
            from_s, coming_w = self._from_s[j], self._limit_w[j]
            known_s = from_s - self._ahead_s
            if known_s >= until_s:
                break
            if coming_w < lowest_w:
                if known_s > now_s:
                    until_s = known_s
                    break
                lowest_w = coming_w
                falls.append((from_s, coming_w))
        if len(falls) > FALLS:
            falls[FALLS - 1 :] = [(falls[FALLS - 1][0], lowest_w)]
        return LimitAt(limit_w, until_s, tuple(falls), self._soft)


def read_limit_table(path: str | Path, known_ahead_h: float, *, soft: bool) -> LimitTable:
    """Read a file of power limits as a table (arguments as in `LimitTable`).

    Raises:
        InputError: as in `read_limits`.
    """
    return LimitTable(read_limits(path), known_ahead_h * HOUR_S, soft=soft)


class ConstantLimit(NamedTuple):
    """A power limit that never changes, W. `soft`: whether jobs without slack may exceed it."""

    limit_w: float
    soft: bool = False

    def at(self, now_s: float) -> LimitAt:  # noqa: ARG002 - as in `LimitTable`
        """Return the limit at a time."""
        return LimitAt(self.limit_w, math.inf, soft=self.soft)


class EnergyAt(NamedTuple):
    """Price and power limit at one time; fields as in `PriceAt` and `LimitAt`.

    `limit_falls` and `limit_soft` are `falls` and `soft` of `LimitAt`. `price` is None if no price is known
    at this time; `limit_w` is None if the cluster has no power limit.
    """

    price: float | None
    ratio: float
    outlook: tuple[float, ...]
    until_s: float
    limit_w: float | None
    from_s: float = 0.0
    ahead: tuple[float, ...] = ()
    rank: float = 0.0
    limit_falls: tuple[tuple[float, float], ...] = ()
    limit_soft: bool = False


class BillPrices(NamedTuple):
    """Prices that only bills use, with their unit."""

    prices: PriceTable
    unit: PriceUnit


class EnergyTable(NamedTuple):
    """Prices and power limits by Unix time.

    `prices`: the series that policies follow (price or carbon). `limits`: power limits. `bill_prices`: a
    second series, which only bills use. A missing series is None. `unit`: unit of `prices`; None: unknown.
    """

    prices: PriceTable | None
    limits: LimitTable | ConstantLimit | None = None
    unit: PriceUnit | None = None
    bill_prices: BillPrices | None = None

    def at(self, now_s: float, asked: PricesAsked = NOTHING, *, explained: bool = False) -> EnergyAt | None:
        """Return price and limit at a time, Unix seconds; None if both are unknown at this time.

        `asked`, `explained`: details of the price to include in the result, as for `PriceTable.at`.
        """
        price: PriceAt | None = None
        if self.prices is not None:
            price = self.prices.at(now_s, asked, explained=explained)
        limit = None if self.limits is None else self.limits.at(now_s)
        if price is None and limit is None:
            return None
        until_s = min(one.until_s for one in (price, limit) if one is not None)
        found = EnergyAt(None, 0.0, (), until_s, None)
        if limit is not None:
            found = found._replace(limit_w=limit.limit_w, limit_falls=limit.falls, limit_soft=limit.soft)
        return found if price is None else found._replace(**price._asdict() | {"until_s": until_s})
