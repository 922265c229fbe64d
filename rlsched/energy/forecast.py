"""`Forecast`: values that were forecast for the steps of a series, and when each forecast was known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError

FORECAST_COLUMNS: Final = ("forecast", "forecast_utc")
"""Optional columns of the file of a series; a file has both or none."""


@dataclass(frozen=True)
class Forecast:
    """Forecasts of M steps: all steps of a series, and steps after its last value.

    Attributes:
        values: (M,) values that were forecast; nan: there is no forecast of this step.
        known_s: (M,) time at which each forecast was known, seconds after the start of the series.
    """

    values: NDArray[np.float64]
    known_s: NDArray[np.float64]

    @classmethod
    def of(cls, steps: Sequence[tuple[float, datetime] | None], begins: datetime) -> Forecast | None:
        """Return the forecast of a series that starts at `begins`; None if no step has a forecast.

        Args:
            steps: For each step, the value and the time at which this forecast was known.
            begins: Start of the series, UTC.
        """
        if not any(steps):
            return None
        values = [math.nan if one is None else one[0] for one in steps]
        known_s = [math.nan if one is None else (one[1] - begins).total_seconds() for one in steps]
        return cls(np.array(values), np.array(known_s))

    def averaged(self, first: int, steps: int, step_s: float) -> Forecast:
        """Return a forecast in which `steps` successive steps are merged into one, from step `first` on.

        The forecast of a merged step is the mean of the forecasts of its original steps. It is known from
        the time at which the last of these forecasts is known.

        Args:
            first: First step, which becomes the start of the series.
            steps: Number of steps that are merged into one.
            step_s: Length of a step before the merge, seconds.
        """
        last = first + (len(self.values) - first) // steps * steps
        values = self.values[first:last].reshape(-1, steps).mean(axis=1)
        known_s = self.known_s[first:last].reshape(-1, steps).max(axis=1) - first * step_s
        return Forecast(values, known_s)

    def written(self, k: int, begins: datetime) -> tuple[str, str]:
        """Return the cells of the columns `FORECAST_COLUMNS` for step `k`."""
        if math.isnan(self.values[k]):
            return "", ""
        at = begins + timedelta(seconds=float(self.known_s[k]))
        return repr(float(self.values[k])).removesuffix(".0"), written_time(at)


def read_forecast(text: str, at: str, begins: datetime, where: str) -> tuple[float, datetime] | None:
    """Read the forecast of a step that starts at `begins`; None if both cells are blank.

    Args:
        text: Value that was forecast.
        at: Time at which this forecast was known, in ISO 8601.
        begins: Start of the step, UTC.
        where: Place in the file, for messages.

    Raises:
        InputError: only one cell is given, a cell cannot be read, or the forecast was known only after the
            start of the step.
    """
    if not text.strip() and not at.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{where}: forecast: expected a number, or a blank if forecast_utc is blank too, got {text!r}"
        )
    known = read_time(at, f"{where}: forecast_utc")
    if known > begins:
        raise InputError(
            f"{where}: forecast_utc: expected at most the start of the step, {written_time(begins)} (UTC), "
            f"got {at!r}; leave forecast and forecast_utc blank if there was no forecast"
        )
    return value, known


def read_time(text: str, where: str) -> datetime:
    """Read a time in ISO 8601 as UTC; a time without an offset is UTC.

    Raises:
        InputError: the text is not such a time.
    """
    try:
        found = datetime.fromisoformat(text.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: expected a time such as 2026-03-01T14:00, got {text!r}") from None


def written_time(at: datetime) -> str:
    """Return a time (UTC) as it is written in files, to the minute if it is a whole minute."""
    is_whole = at.second == at.microsecond == 0
    return at.replace(tzinfo=None).isoformat(timespec="minutes" if is_whole else "auto")
