"""Cost and carbon of a run's energy, from the price and the carbon intensity of the electricity."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, records
from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.energy.bills import UNITS
from rlsched.energy.limits import LimitAt, read_limit_table, read_limits
from rlsched.energy.relative import (
    NOTHING,
    OUTLOOK,
    PricesAsked,
    day_means,
    outlook,
    price_ranks,
    prices_ahead,
    relative,
)
from rlsched.energy.series import HOUR_S, Integrals, Series, integrals
from rlsched.errors import InputError
from rlsched.workload.trace import Trace
from rlsched_envs.sim.signals import FROM, RANK, ROWS, ROWS_AHEAD, SUMS
from rlsched_envs.sim.sim_arrays import ANNOUNCED, ProgressArrays


@dataclass(frozen=True)
class Bill:
    """Cost or carbon of a run's energy, including the overhead of the facility (PUE).

    Amounts are in the currency of the cluster, or in kg CO2e.

    Attributes:
        jobs: (J,) amount for each job.
        idle: Amount that belongs to no job: for nodes without their GPUs, and for GPUs without jobs.
        cluster: Amount for the whole cluster, accumulated separately from `jobs` and `idle`.
        hours: (24 x days,) amount for the whole cluster in each hour, as in `modelling.Energy.hours_j`.
        signal: The series that determines the amounts, with its integrals: price (currency per MWh) or carbon
            intensity (g CO2e per kWh).
    """

    jobs: NDArray[np.float64]
    idle: float
    cluster: float
    hours: NDArray[np.float64]
    signal: Integrals

    @property
    def by_hour(self) -> NDArray[np.float64]:
        """(24,) amount for the whole cluster in each hour of the day (UTC)."""
        return of_day(self.hours)

    def first_rows(self, rows: int) -> Bill:
        """Return the bill with only the first `rows` jobs."""
        return replace(self, jobs=self.jobs[:rows])

    def signal_means(self, edges: NDArray[np.float64]) -> list[float]:
        """Return the mean of the signal between each two successive `edges`, seconds of the trace."""
        return [
            float(self.signal.between(since_s, until_s)[0]) / (until_s - since_s)
            for since_s, until_s in pairwise(edges.tolist())
        ]


def of_day(hours: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (24,) sums of each hour of the day. `hours`: (24 x days,) values from a midnight on."""
    found: NDArray[np.float64] = hours.reshape(-1, 24).sum(axis=0)
    return found


def second_0_of(spec: ClusterSpec, trace: Trace) -> datetime:
    """Return the wall-clock time of a trace's second 0, from the cluster's `energy` section or the trace.

    Raises:
        InputError: neither contains the time.
    """
    second_0 = (spec.energy.second_0 if spec.energy is not None else None) or trace.origin
    if second_0 is None:
        raise InputError(
            f"{spec.name}: energy.begins: expected the wall-clock time of second 0, which the trace "
            f"{trace.name} does not state; set it in [energy], such as 2026-03-01T00:00Z"
        )
    return second_0.replace(tzinfo=UTC) if second_0.tzinfo is None else second_0


def signals_of(
    spec: ClusterSpec, trace: Trace, last_s: float, asked: PricesAsked = NOTHING
) -> Integrals | None:
    """Return the series of a cluster's electricity over the seconds of a trace; None if there are no series.

    The series are: price, carbon intensity, relative price, outlook of the price (one series per column of
    `rlsched.energy.relative.OUTLOOK`), and power limit in W. Relative price and outlook are computed from the
    series that policies follow (price or carbon intensity); they are 0 after the end of this series. After
    the end of its series, the last power limit applies. If the policy reads ranks or sums of prices
    (`asked`), these are further series (the rows from `rlsched_envs.sim.signals.RANK` on).

    Raises:
        InputError: a file cannot be read or does not cover the trace, or the wall-clock time of the trace's
            second 0 is unknown.
    """
    energy = spec.energy
    if energy is None or not (energy.price or energy.carbon or energy.power_limit):
        return None
    second_0 = second_0_of(spec, trace)
    price, carbon = (Series.read(path) if path else None for path in (energy.price, energy.carbon))
    limit = read_limits(energy.power_limit) if energy.power_limit else None
    followed = price if energy.followed == energy.price else carbon
    ahead_s = energy.known_ahead_h * HOUR_S
    followed_series: list[Series | None] = [None] * (1 + len(OUTLOOK))
    if followed is not None:
        seen = (relative(followed, ahead_s), *outlook(followed, ahead_s).T)
        followed_series = [replace(followed, values=values) for values in seen]
    found = integrals([price, carbon, *followed_series, limit], second_0, last_s)
    if followed is not None:
        end = math.ceil(((followed.ends - second_0).total_seconds() - found.from_s) / found.step_s - 1e-9)
        found.rates[2:-1, end:] = 0.0
    if limit is not None:
        end = math.ceil(((limit.ends - second_0).total_seconds() - found.from_s) / found.step_s - 1e-9)
        found.rates[-1, end:] = limit.values[-1]
    found.rates[-1] = found.rates[-1] * 1000.0 if limit is not None else energy.power_limit_kw * 1000.0
    if followed is None or not any(asked):
        return found
    details = _details_on_grid(followed, second_0, ahead_s, asked, found)
    return replace(found, rates=np.vstack([found.rates, details]))


def announced_of(energy: EnergySignals, second_0: datetime) -> Records:
    """Return the announced falls of the power limit over the seconds of a trace; empty if there are none.

    Raises:
        InputError: the file of the limits cannot be read.
    """
    if not energy.power_limit_known_ahead_h:
        return records(0, ANNOUNCED)
    table = read_limit_table(energy.power_limit, energy.power_limit_known_ahead_h, soft=False)
    rows, at_s = list[tuple[float, LimitAt]](), -math.inf
    while at_s < math.inf:
        rows.append((at_s, table.at(at_s)))
        at_s = rows[-1][1].until_s
    found = records(len(rows), ANNOUNCED)
    found.fall_s[:] = found.fall_w[:] = np.inf
    for row, (from_s, limit) in enumerate(rows):
        found.from_s[row] = from_s - second_0.timestamp()
        for k, (fall_s, fall_w) in enumerate(limit.falls):
            found.fall_s[row, k], found.fall_w[row, k] = fall_s - second_0.timestamp(), fall_w
    return found


def _details_on_grid(
    series: Series, second_0: datetime, known_ahead_s: float, asked: PricesAsked, grid: Integrals
) -> NDArray[np.float64]:
    """Return the ranks and sums of prices (the rows from `signals.RANK` on) in each time step of `grid`.

    They are 0 after the end of the price series.
    """
    begins_s = (series.begins - second_0).total_seconds()
    middles_s = grid.from_s + grid.step_s * (np.arange(grid.rates.shape[1]) + 0.5)
    at = np.floor((middles_s - begins_s) / series.step_s).astype(np.intp)
    inside = at < len(series)
    at = at[inside]
    found = np.zeros((ROWS_AHEAD - ROWS, len(inside)))
    details = price_details(series, known_ahead_s, asked, int(at[0]), int(at[-1]) + 1)
    found[:, inside] = details[:, at - at[0]]
    found[FROM - ROWS, inside] += begins_s
    return found


def price_details(
    series: Series, known_ahead_s: float, asked: PricesAsked, first: int, end: int
) -> NDArray[np.float64]:
    """Return ranks and sums of prices (`signals.RANK`) in the steps `first` to `end` - 1 of a price series.

    The shape is (ROWS_AHEAD - ROWS, end - first). Row `FROM` - `ROWS` has the start of each step, in seconds
    after the start of the series. Ranks and sums that `asked` does not request are 0.
    """
    found = np.zeros((ROWS_AHEAD - ROWS, end - first))
    found[FROM - ROWS] = np.arange(first, end) * series.step_s
    if asked.rank:
        found[RANK - ROWS] = price_ranks(series, first, end)
    if asked.ahead:
        ahead = prices_ahead(series, known_ahead_s, day_means(series, known_ahead_s), first, end)
        found[SUMS - ROWS :] = np.cumsum(ahead, axis=1).T
    return found


def bills_of(
    progress: ProgressArrays, spec: ClusterSpec, rows: NDArray[np.intp], jobs: int
) -> list[Bill | None]:
    """Return [bill of cost, bill of carbon] of a run; None in place of a bill whose signal is unknown.

    The totals of all jobs must be up to date (`physics.settle`).
    """
    energy, books = spec.energy, progress.books[0]
    if energy is None:
        return [None, None]
    found = list[Bill | None]()
    kinds = ((energy.price, "cost"), (energy.carbon, "carbon"))
    for row, (known, name) in enumerate(kinds):
        factor, of_job = energy.pue / UNITS[name], np.zeros(jobs)
        of_job[rows] = progress.outcome[name] * factor
        idle, cluster = float(books[f"idle_{name}"]) * factor, float(books[name]) * factor
        of_signal = progress.signal[row : row + 1], progress.signal[row + 2 : row + 3]
        signal = Integrals(float(books["grid_from_s"]), float(books["grid_step_s"]), *of_signal)
        found.append(Bill(of_job, idle, cluster, progress.hours[1 + row] * factor, signal) if known else None)
    return found
