"""`Series`: a value over time in equal steps, such as the price of electricity; times are UTC."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.energy.forecast import FORECAST_COLUMNS, Forecast, read_forecast, read_time, written_time
from rlsched.energy.text_files import read_text, write_text
from rlsched.errors import InputError

COLUMNS: Final = ("utc", "value")
HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
MOST_STEP_S: Final = DAY_S
"""Longest step of a series, seconds."""
WEEK_S: Final = 7 * DAY_S
MOST_GRID: Final = 20_000_000
"""Maximum number of steps of the grid of `Integrals`."""


class Row(NamedTuple):
    """A row of a file, as text: line number, start of the step, value, forecast, time of the forecast."""

    line: int
    at: str
    value: str
    forecast: str = ""
    forecast_at: str = ""


@dataclass(frozen=True)
class Series:
    """A value over time, in equal steps: `values[k]` applies to the step that starts at `begins` + k steps.

    Attributes:
        name: Name for messages, such as the name of the file.
        begins: Start of the first step, UTC.
        step_s: Length of a step, seconds.
        values: (N,) values; finite.
        forecast: Forecasts of N or more steps; None: the series has no forecast.
    """

    name: str
    begins: datetime
    step_s: float
    values: NDArray[np.float64]
    forecast: Forecast | None = None

    @classmethod
    def read(cls, path: str | Path) -> Series:
        """Read a CSV file (plain, or `.gz`) with the columns `utc` and `value`.

        `utc` is the start of a step in ISO 8601; a time without an offset is UTC. The columns `forecast` and
        `forecast_utc` are optional: the value that was forecast, and the time at which this forecast was
        known. Steps after the last value can have only a forecast. Other columns are ignored.

        Raises:
            InputError: the file cannot be read, a column is missing, a value is not a number, the steps
                differ in length, or a forecast was known only after the start of its step.
        """
        return cls.from_rows(_rows(read_text(path), str(path)), str(path))

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, str, str] | Row], name: str) -> Series:
        """Return the series in the rows of a file. `read` describes the formats and the errors."""
        times, values, forecasts = list[datetime](), list[float](), list[tuple[float, datetime] | None]()
        for row in rows:
            line, at, text, *said = Row(*row)
            where = f"{name}: line {line}"
            times.append(read_time(at, f"{where}: utc"))
            if len(times) > 1 and times[-1] <= times[-2]:
                raise InputError(
                    f"{name}: line {line}: expected a time after {times[-2].isoformat()}, got {at!r}; give "
                    "each step once, in order"
                )
            forecasts.append(read_forecast(said[0], said[1], times[-1], where))
            if text.strip() or forecasts[-1] is None:
                values.append(_value(text, where))
                if len(values) < len(times):
                    raise InputError(
                        f"{where}: value: expected none, because the step before has only a forecast, got "
                        f"{text!r}; give the values without gaps"
                    )
        if len(values) < 2:
            more = f" with a value, got {len(values)}" if times[len(values) :] else f", got {len(values)}"
            raise InputError(f"{name}: expected two rows or more{more}")
        lasts_s = [(other - one).total_seconds() for one, other in pairwise(times)]
        step_s = min(lasts_s)
        for k, last_s in enumerate(lasts_s):
            if last_s != step_s:
                raise InputError(
                    f"{name}: expected steps of {step_s:g} s, got {last_s:g} s from {written_time(times[k])} "
                    "(UTC); `rlsched signal convert` fills gaps"
                )
        return cls(name, times[0], step_s, np.array(values), Forecast.of(forecasts, times[0]))

    def __post_init__(self) -> None:
        if not 1.0 <= self.step_s <= MOST_STEP_S:
            raise InputError(f"{self.name}: expected steps of 1 s to 24 h, got {self.step_s:g} s")
        try:
            _ = self.ends
        except OverflowError:
            raise InputError(f"{self.name}: expected an end before the year 10000, got a later one") from None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def ends(self) -> datetime:
        """End of the last step, UTC."""
        return self.begins + timedelta(seconds=self.step_s * len(self))

    def write(self, path: str | Path) -> None:
        """Write a CSV file that `read` accepts; compress it with gzip if its name ends in `.gz`.

        Equal series give equal bytes.

        Raises:
            InputError: the file cannot be written.
        """
        write_text(path, self.text())

    def text(self) -> str:
        """Return the text of a CSV file that `read` accepts."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        forecast, step = self.forecast, timedelta(seconds=self.step_s)
        rows.writerow(COLUMNS if forecast is None else (*COLUMNS, *FORECAST_COLUMNS))
        for k in range(len(self) if forecast is None else len(forecast.values)):
            value = repr(float(self.values[k])).removesuffix(".0") if k < len(self) else ""
            said = () if forecast is None else forecast.written(k, self.begins)
            rows.writerow((written_time(self.begins + k * step), value, *said))
        return text.getvalue()


def _rows(text: str, name: str) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    found = tuple(reader.fieldnames or ())
    missing = [column for column in COLUMNS if column not in found]
    if missing:
        raise InputError(
            f"{name}: expected the columns utc,value, got {','.join(found) or 'an empty file'}; "
            "`rlsched signal convert` makes such a file"
        )
    given = [column for column in FORECAST_COLUMNS if column in found]
    if len(given) == 1:
        raise InputError(
            f"{name}: expected the columns {' and '.join(FORECAST_COLUMNS)} together, got only {given[0]}; "
            "rename or add one"
        )
    for row in reader:
        yield Row(reader.line_num, row["utc"] or "", row["value"] or "", *(row[name] or "" for name in given))


def _value(text: str, where: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"{where}: value: expected a number, got {text!r}")
    return found


@dataclass(frozen=True)
class Integrals:
    """Several series over the time of a trace, on a common grid of equal steps, with their integrals.

    Attributes:
        from_s: Start of the first step, seconds of the trace; at most 0.
        step_s: Length of a step, seconds.
        sums: (K, N + 1) integrals from the grid's start to the start of each step, value x seconds.
        rates: (K, N + 1) value in each step. The last column applies to all later times: it is the mean of
            the last 7 days of each series.
    """

    from_s: float
    step_s: float
    sums: NDArray[np.float64]
    rates: NDArray[np.float64]

    def between(self, since_s: float, until_s: float) -> NDArray[np.float64]:
        """Return the (K,) integrals between two times at or after `from_s`, value x seconds."""
        last = self.sums.shape[1] - 1
        first, end = (min(int((at_s - self.from_s) / self.step_s), last) for at_s in (since_s, until_s))
        if first == end:
            within: NDArray[np.float64] = (until_s - since_s) * self.rates[:, first]
            return within
        before_s = self.from_s + (first + 1) * self.step_s - since_s
        after_s = until_s - (self.from_s + end * self.step_s)
        found: NDArray[np.float64] = (
            before_s * self.rates[:, first]
            + (self.sums[:, end] - self.sums[:, first + 1])
            + after_s * self.rates[:, end]
        )
        return found


def integrals(series: Iterable[Series | None], second_0: datetime, last_s: float) -> Integrals:
    """Convert series to a common grid of equal steps, and compute their integrals over the time of a trace.

    Args:
        series: K series, at least one of them not None; None stands for a series of zeros.
        second_0: Wall-clock time of the trace's second 0, with an offset from UTC.
        last_s: Second of the trace up to which each series must have values. After the end of a series, its
            value is the mean of its last 7 days.

    Raises:
        InputError: a series begins after second 0 or ends before `last_s`; or a grid that contains the start
            of every step needs more than `MOST_GRID` steps.
    """
    given = list(series)
    known = [one for one in given if one is not None]
    for one in known:
        if (one.begins - second_0).total_seconds() > 0.0 or (one.ends - second_0).total_seconds() < last_s:
            until = second_0 + timedelta(seconds=last_s)
            raise InputError(
                f"{one.name}: expected values from {written_time(second_0.astimezone(UTC))} to "
                f"{written_time(until.astimezone(UTC))} (UTC), got {written_time(one.begins)} to "
                f"{written_time(one.ends)}; set energy.begins, or give a longer series"
            )
    step_s = _grid_step_s(known)
    begins_s = (known[0].begins - second_0).total_seconds()
    from_s = begins_s + step_s * math.floor(-begins_s / step_s)
    ends_s = max((one.ends - second_0).total_seconds() for one in known)
    steps = max(math.ceil((ends_s - from_s) / step_s - 1e-9), 1)
    if steps > MOST_GRID:
        raise InputError(
            f"{' and '.join(one.name for one in known)}: expected steps that share a grid, such as full "
            f"hours, got a grid of {step_s:g} s with {steps:,} steps; give both in the same steps"
        )
    middles_s = from_s + step_s * (np.arange(steps + 1, dtype=np.float64) + 0.5)
    rates = np.zeros((len(given), steps + 1))
    for k, some in enumerate(given):
        if some is not None:
            rates[k] = _values_at(some, middles_s - (some.begins - second_0).total_seconds())
    sums = np.concatenate([np.zeros((len(given), 1)), np.cumsum(rates[:, :-1], axis=1) * step_s], axis=1)
    return Integrals(from_s, step_s, sums, rates)


def _grid_step_s(series: list[Series]) -> float:
    """Return the longest grid step, seconds, for which all steps of all series start at grid points."""
    whole = [timedelta(seconds=one.step_s) for one in series]
    whole += [abs(one.begins - series[0].begins) for one in series]
    tick = timedelta(microseconds=1)
    return math.gcd(*(one // tick for one in whole)) / 1e6


def _values_at(series: Series, since_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values of a series at the times `since_s`, seconds after its start.

    After the end of the series, the value is the mean of its last 7 days.
    """
    lately = series.values[-max(round(WEEK_S / series.step_s), 1) :]
    continued = np.append(series.values, lately.mean())
    found: NDArray[np.float64] = continued[np.minimum(since_s / series.step_s, len(series)).astype(np.intp)]
    return found
