"""The error of the forecasts of `rlsched signal forecast` in real series, against the value 24 hours earlier.

    .venv/bin/python -m studies.policy.price_forecasts     # a table in docs/how-to/signals.md

Errors are of the last 366 days of each series, the year 2024. Earlier days are only learned from.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from rlsched.energy.convert import convert
from rlsched.energy.describe import forecast_errors
from rlsched.energy.forecast import Forecast
from rlsched.energy.learn import AHEAD_S, LEAD_S, learned
from rlsched.energy.relative import day_means
from rlsched.energy.series import DAY_S, Series

SERIES: Final = (
    ("au-vic", "price_usd_mwh"),
    ("sg", "price_usd_mwh"),
    ("ca-on", "price_usd_mwh"),
    ("gb", "carbon_g_kwh"),
    ("de-lu", "carbon_g_kwh"),
)
JUDGED_DAYS: Final = 366


def row(series: Series, lead_s: float) -> str:
    """Return the cells of a series: mean absolute errors of a step, and of the mean of the next 24 hours."""
    day = round(DAY_S / series.step_s)
    first = len(series) - JUDGED_DAYS * day
    found = learned(series, lead_s, AHEAD_S)
    assert found.forecast is not None
    later = np.where(np.arange(len(found.forecast.values)) < first, np.nan, 0.0)
    judged = Forecast(found.forecast.values + later, found.forecast.known_s + later)
    errors = forecast_errors(replace(found, forecast=judged))
    assert errors is not None
    (step,) = errors["by_lead"]
    true = day_means(series, DAY_S - series.step_s)
    off, before = (np.abs(day_means(one, 0.0) - true)[first:-day].mean() for one in (found, series))
    cells = (step["error_mean_abs"], step["day_before_error_mean_abs"], step["error_mean"], off, before)
    return " | ".join(f"{cell:.1f}" for cell in cells)


def main(words: Sequence[str] | None = None) -> int:
    """Print a row per series. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    energy = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "energy"
    parser.add_argument("--energy", type=Path, default=energy, help="folder of the series")
    parser.add_argument("--lead-h", type=float, default=LEAD_S / 3600.0, help="lead of the forecasts, hours")
    given = parser.parse_args(words)
    print("| series | forecast | value 24 h earlier | bias | next 24 h: forecast | value 24 h earlier |")
    print("|---|--:|--:|--:|--:|--:|")
    for zone, column in SERIES:
        series = convert(given.energy / f"{zone}.csv.gz", "plain", column, 0.0).series
        print(f"| {zone}, {column} | {row(series, given.lead_h * 3600.0)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
