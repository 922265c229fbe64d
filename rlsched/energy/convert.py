"""Converts public CSV files of prices and carbon intensity to a `Series`.

The form of a file is its format, such as ENTSO-E's (see `FORMS`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from rlsched.energy.european import EuropeanClock
from rlsched.energy.forecast import FORECAST_COLUMNS, Forecast, read_forecast
from rlsched.energy.gaps import MOST_STEPS, filled
from rlsched.energy.series import DAY_S, HOUR_S, Series
from rlsched.energy.tables import Table, is_blank
from rlsched.errors import InputError

_MAPS_TIME = r"^datetime \(utc\)$"
_MAPS_VALUE = r"^carbon[ _]intensity"
_MAPS_LIFE_CYCLE = r"life.?cycle|\blca\b"
_MAPS_ZONE = r"^zone.?id$"
_ENTSOE_TIME = r"^(mtu|time) \("
_ENTSOE_VALUE = r"^day-ahead price"
_TIME_NAMES = ("utc", "datetime", "timestamp", "time", "date")


class Conversion(NamedTuple):
    """A converted file.

    Attributes:
        series: The series.
        form: Name of the file's form, as in `FORMS`.
        column: Column of the values.
        filled: Number of steps without a value that were filled.
        left_out: Number of steps without a value that were left out at the start and the end. Steps with a
            forecast are kept at the end.
        other_auctions: Number of rows left out because they are not of a day's main auction (ENTSO-E).
    """

    series: Series
    form: str
    column: str
    filled: int
    left_out: int
    other_auctions: int = 0


class Row(NamedTuple):
    """A row of a file: line, start (UTC), length in seconds (None: one step), value (None: unknown).

    `forecast`: (value that was forecast, time at which this forecast was known); None: there is no forecast.
    """

    line: int
    begins: datetime
    lasts_s: float | None
    value: float | None
    forecast: tuple[float, datetime] | None = None


def convert(path: Path, form: str = "auto", column: str | None = None, fill_h: float = 0.0) -> Conversion:
    """Read a public CSV file, plain or compressed with gzip.

    Args:
        path: The file.
        form: One of `FORMS`; `auto` detects the form from the header.
        column: Column of the values. None: the usual column of the form; in a plain file, the only numeric
            column.
        fill_h: Longest gap that is filled, hours. A step is filled with the value 24 h earlier; if there is
            none, with the value of the step before.

    Raises:
        InputError: the file cannot be read, does not have the form, or has a gap longer than `fill_h`; the
            column is unknown; no column is given, and none or several columns can contain the values.
    """
    table = Table.read(path)
    form = recognised(table) if form == "auto" else form
    if form not in FORMS:
        raise InputError(f"--from: expected auto, {', '.join(FORMS)}, got {form!r}")
    name, rows, other_auctions = FORMS[form](table, column)
    rows.sort(key=lambda row: row.begins)
    step_s = _step_s(table.path, rows)
    values = _by_step(table.path, rows, step_s)
    series, fills, left_out = filled(table.path, rows[0].begins, step_s, values, fill_h)
    series = _with_forecasts(series, rows)
    later = 0 if series.forecast is None else len(series.forecast.values) - len(series)
    return Conversion(series, form, name, fills, left_out - later, other_auctions)


def _with_forecasts(series: Series, rows: list[Row]) -> Series:
    """Return a copy of the series with the forecasts that the rows of its file contain.

    Forecasts for steps after the last value are included up to the first step without a forecast.
    """
    said = {row.begins: row.forecast for row in rows if row.forecast is not None}
    step = timedelta(seconds=series.step_s)
    steps = [said.get(series.begins + k * step) for k in range(len(series))]
    while series.begins + len(steps) * step in said:
        steps.append(said[series.begins + len(steps) * step])
    return replace(series, forecast=Forecast.of(steps, series.begins))


def recognised(table: Table) -> str:
    """Return the name of a file's form, found by its header; `plain` if no other form matches."""
    if table.find(_ENTSOE_TIME):
        return "entsoe"
    if table.find(_MAPS_TIME) and table.find(_MAPS_VALUE):
        return "electricity-maps"
    return "plain"


def _electricity_maps(table: Table, column: str | None) -> tuple[str, list[Row], int]:
    """Read a yearly file of Electricity Maps with one zone; default column: life-cycle carbon intensity."""
    at = _only(table, "electricity-maps", _MAPS_TIME, "Datetime (UTC)")
    for zone in table.find(_MAPS_ZONE):
        _one_place(table, zone)
    if column is None:
        found = [name for name in table.find(_MAPS_VALUE) if re.search(_MAPS_LIFE_CYCLE, name, re.IGNORECASE)]
        if len(found) != 1:
            raise InputError(
                f"{table.path}: expected one column of carbon intensity over the life cycle, got "
                f"{len(found)}; choose one of {table.listed} with --column"
            )
        column = found[0]
    column = table.named(column)
    return column, list(_iso_rows(table, at, column)), 0


def _entsoe(table: Table, column: str | None) -> tuple[str, list[Row], int]:
    """Read day-ahead prices of one area, in the export format of the ENTSO-E Transparency Platform."""
    at = _only(table, "entsoe", _ENTSOE_TIME, "MTU (CET/CEST)")
    for area in table.find("^area$"):
        _one_place(table, area)
    column = table.named(column) if column else _only(table, "entsoe", _ENTSOE_VALUE, "Day-ahead Price")
    try:
        clock = EuropeanClock(at)
    except ValueError as error:
        raise InputError(f"{table.path}: {error}; export the file in UTC") from None
    skipped, rows = _other_auctions(table, at), list[Row]()
    for (line, when), (_, cell) in zip(table.cells(at), table.cells(column), strict=True):
        if line in skipped:
            continue
        try:
            found = clock.read(when)
        except ValueError:
            raise InputError(
                f"{table.path}: line {line}: {at}: expected an interval such as 01.01.2023 00:00 - "
                f"01.01.2023 01:00, got {when!r}"
            ) from None
        value = _value(table, line, column, cell)
        if found is not None:
            rows.append(Row(line, *found, value))
        elif value is not None:
            raise InputError(
                f"{table.path}: line {line}: {at}: expected a time that exists, got {when!r}, which "
                "is skipped when summer time begins; export the file in UTC"
            )
    return column, rows, len(skipped)


def _plain(table: Table, column: str | None) -> tuple[str, list[Row], int]:
    """Read a file with a column of times in ISO 8601, a column of values, and forecasts if it has them."""
    has_forecasts = set(FORECAST_COLUMNS) <= set(table.columns) and column not in FORECAST_COLUMNS
    said = FORECAST_COLUMNS if has_forecasts else ()
    times = [name for name in table.columns if name not in said and table.is_time(name)]
    if not times:
        raise InputError(
            f"{table.path}: expected a column of times such as 2026-03-01T14:00 (UTC, or with an offset), "
            f"got the columns {table.listed}"
        )
    known = [name for one in _TIME_NAMES for name in times if re.search(rf"\b{one}\b", name, re.IGNORECASE)]
    at = (known or times)[0]
    if column is None:
        numeric = [name for name in table.columns if name not in (*times, *said) and table.is_numeric(name)]
        if len(numeric) != 1:
            raise InputError(
                f"{table.path}: expected one column of numbers, got "
                f"{', '.join(map(repr, numeric)) or f'none of {table.listed}'}; choose one with --column"
            )
        column = numeric[0]
    column = table.named(column)
    rows = list(_iso_rows(table, at, column))
    return column, _with_cells(table, rows) if has_forecasts else rows, 0


FORMS: Final[dict[str, Callable[[Table, str | None], tuple[str, list[Row], int]]]] = {
    "electricity-maps": _electricity_maps,
    "entsoe": _entsoe,
    "plain": _plain,
}
"""Reader of each form (file format), by name. A reader returns the column of the values, the rows, and the
number of rows that it left out because they are not of a day's main auction (ENTSO-E).
"""


def _only(table: Table, form: str, pattern: str, such_as: str) -> str:
    found = table.find(pattern)
    if not found:
        raise InputError(
            f"{table.path}: expected the form {form}, with a column such as {such_as!r}, got the columns "
            f"{table.listed}; choose another form with --from"
        )
    return found[0]


def _one_place(table: Table, column: str) -> None:
    places = dict.fromkeys(cell for _, cell in table.cells(column))
    if len(places) > 1:
        shown = ", ".join(list(places)[:3]) + (", ..." if len(places) > 3 else "")
        raise InputError(f"{table.path}: {column}: expected one zone, got {shown}; give a file of one zone")


def _other_auctions(table: Table, at: str) -> set[int]:
    """Return the numbers of the lines whose price is not from the main auction of the day.

    The column `Sequence` names the auction of a line. The main auction is the first in the order of `_rank`.
    """
    columns = table.find("^sequence$")
    if not columns:
        return set()
    cells = [
        (line, when[:10], cell)
        for (line, when), (_, cell) in zip(table.cells(at), table.cells(columns[0]), strict=True)
    ]
    main = dict[str, tuple[int, str]]()
    for _, day, cell in cells:
        main[day] = min(main.get(day, _rank(cell)), _rank(cell))
    return {line for line, day, cell in cells if _rank(cell) != main[day]}


def _rank(sequence: str) -> tuple[int, str]:
    """Return the rank of an auction, in the order `Without Sequence`, `Sequence 1`, `Sequence 2`."""
    number = re.search(r"\d+", sequence)
    return (int(number[0]), "") if number else (0, sequence)


def _iso_rows(table: Table, at: str, column: str) -> Iterator[Row]:
    for (line, when), (_, cell) in zip(table.cells(at), table.cells(column), strict=True):
        try:
            found = datetime.fromisoformat(when)
            begins = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        except (ValueError, OverflowError):
            raise InputError(
                f"{table.path}: line {line}: {at}: expected a time such as 2026-03-01T14:00 (UTC, or with an "
                f"offset), got {when!r}"
            ) from None
        yield Row(line, begins, None, _value(table, line, column, cell))


def _with_cells(table: Table, rows: list[Row]) -> list[Row]:
    """Return `rows` with the forecasts that the file has in the columns `FORECAST_COLUMNS`."""
    values, times = (
        ["" if is_blank(cell) else cell for _, cell in table.cells(name)] for name in FORECAST_COLUMNS
    )
    return [
        row._replace(forecast=read_forecast(value, at, row.begins, f"{table.path}: line {row.line}"))
        for row, value, at in zip(rows, values, times, strict=True)
    ]


def _value(table: Table, line: int, column: str, cell: str) -> float | None:
    if is_blank(cell):
        return None
    try:
        found = float(cell)
    except ValueError:
        found = float("nan")
    if abs(found) < float("inf"):
        return found
    raise InputError(f"{table.path}: line {line}: {column}: expected a number, got {cell!r}")


def _step_s(path: str, rows: list[Row]) -> float:
    """Return the length of the steps, seconds.

    The step is the length of the row that covers the shortest time. If the rows have no lengths, the step is
    the shortest distance between the starts of successive rows. If some distances are not multiples of the
    shortest, the step is the most frequent distance.
    """
    lasts = [row.lasts_s for row in rows if row.lasts_s is not None]
    apart = Counter((other.begins - one.begins).total_seconds() for one, other in pairwise(rows))
    apart.pop(0.0, None)
    if not lasts and not apart:
        raise InputError(f"{path}: expected two rows or more with different times, got {len(rows)} rows")
    step_s = min(lasts or apart)
    if not lasts and any(one % step_s for one in apart):
        step_s = apart.most_common(1)[0][0]
    if not 1.0 <= step_s <= DAY_S:
        raise InputError(f"{path}: expected steps of 1 s to 24 h, got {step_s / HOUR_S:g} h")
    return step_s


def _by_step(path: str, rows: list[Row], step_s: float) -> list[float | None]:
    """Return the value of each step, from the start of the first row on; None: unknown.

    The value of a row that is longer than a step applies to all steps of the row.
    """
    found = dict[int, float | None]()
    for row in rows:
        begin = _steps(path, row.line, (row.begins - rows[0].begins).total_seconds(), step_s)
        for k in range(begin, begin + _steps(path, row.line, row.lasts_s or step_s, step_s)):
            if k in found:
                raise InputError(
                    f"{path}: line {row.line}: expected each step once, got {row.begins:%Y-%m-%dT%H:%M} "
                    "(UTC) again; leave one of the rows out"
                )
            found[k] = row.value
    last = max(found)
    if last >= MOST_STEPS:
        raise InputError(f"{path}: expected at most {MOST_STEPS:,} steps of {step_s:g} s, got {last + 1:,}")
    return [found.get(k) for k in range(last + 1)]


def _steps(path: str, line: int, seconds: float, step_s: float) -> int:
    if seconds % step_s:
        raise InputError(
            f"{path}: line {line}: expected a start and a length in whole steps of {step_s:g} s, got "
            f"{seconds:g} s"
        )
    return int(seconds // step_s)
