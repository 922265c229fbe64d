"""Statistics of a series, against values worked out by hand or by a second way."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.energy.describe import cheapest_half_saves, describe, forecast_errors
from rlsched.energy.forecast import Forecast
from rlsched.energy.series import Series

BEGINS = datetime(2026, 1, 1, tzinfo=UTC)


def series_of(values: object, step_s: float = 3600.0, begins: datetime = BEGINS) -> Series:
    return Series("s", begins, step_s, np.array(values, np.float64))


def test_figures_of_a_known_series() -> None:
    found = describe(series_of([*range(1, 100), -1]))
    assert (found["steps"], found["step_s"], found["span_s"]) == (100, 3600.0, 360_000.0)
    assert (found["begins"], found["ends"]) == ("2026-01-01T00:00:00+00:00", "2026-01-05T04:00:00+00:00")
    assert (found["min"], found["max"], found["mean"]) == (-1.0, 99.0, 49.49)
    assert found["p50"] == pytest.approx(49.5)
    assert found["below_0_frac"] == 0.01
    assert found["variation"] == pytest.approx(np.std([*range(1, 100), -1]) / 49.49)
    assert found["autocorrelation_7d"] is None


def test_hours_of_the_day_and_correlations_of_equal_days() -> None:
    day = np.arange(24.0) ** 2
    found = describe(series_of(np.tile(day, 15)))
    assert found["by_hour"] == day.tolist()
    assert found["autocorrelation_24h"] == pytest.approx(1.0)
    assert found["autocorrelation_7d"] == pytest.approx(1.0)


def test_hours_of_the_day_with_other_steps_and_begins() -> None:
    assert (
        describe(series_of([1, 2, 3, 4], 21_600.0))["by_hour"]
        == [1.0] * 6 + [2.0] * 6 + [3.0] * 6 + [4.0] * 6
    )
    quarters = describe(series_of(range(8), 900.0, BEGINS + timedelta(hours=23)))
    assert quarters["by_hour"] == [5.5, *[None] * 22, 1.5]
    by_90_min = describe(series_of([1, 4], 5400.0))["by_hour"]
    assert by_90_min == [1.0, 2.5, 4.0, *[None] * 21]
    assert describe(series_of([1, 3, 5], 3601.0))["by_hour"][:3] == [1.0, 3.0, 5.0]


def test_a_constant_series() -> None:
    found = describe(series_of([5.0] * 24 * 20))
    assert found["variation"] == 0.0
    assert found["autocorrelation_24h"] is None
    assert found["cheapest_half_saves_frac"] == 0.0


def test_saving_of_the_cheapest_half() -> None:
    assert cheapest_half_saves(series_of([1.0] * 12 + [3.0] * 12)) == pytest.approx(0.5)
    assert cheapest_half_saves(series_of([10.0, 20.0, 60.0], 28_800.0)) == pytest.approx(
        1 - (10 + 10) / 1.5 / 30
    )
    assert cheapest_half_saves(series_of([1.0] * 23)) is None
    assert cheapest_half_saves(series_of([1.0, 2.0], 86_400.0)) is None
    assert cheapest_half_saves(series_of([1.0] * 50, 5000.0)) is None
    assert cheapest_half_saves(series_of([-1.0] * 24)) is None
    assert cheapest_half_saves(series_of([-1.0, 1.5] * 12)) == pytest.approx(5.0)


def test_saving_counts_only_whole_days_of_utc() -> None:
    begins = BEGINS + timedelta(hours=20)
    day = [1.0] * 12 + [3.0] * 12
    assert cheapest_half_saves(series_of([900.0] * 4 + day + [700.0] * 23, begins=begins)) == pytest.approx(
        0.5
    )


@settings(max_examples=60, deadline=None)
@given(
    days=st.integers(1, 4),
    step_h=st.sampled_from([0.5, 1.0, 3.0, 8.0]),
    seed=st.integers(0, 99),
)
def test_saving_equals_a_greedy_plan(days: int, step_h: float, seed: int) -> None:
    steps = round(24 / step_h)
    values = np.random.default_rng(seed).uniform(1.0, 9.0, (days, steps))
    spent = 0.0
    for day in values.tolist():
        left = steps / 2
        for value in sorted(day):
            spent += value * min(left, 1.0) * 2
            left -= min(left, 1.0)
    saves = cheapest_half_saves(series_of(values.ravel(), step_h * 3600.0))
    assert saves == pytest.approx(1.0 - spent / values.sum())
    assert 0.0 <= saves < 1.0


def test_errors_of_a_forecast_by_lead_time() -> None:
    values = np.arange(72.0)
    lead_h = np.array([np.nan] * 24 + [3.0] * 24 + [6.0] * 12 + [60.0] * 12 + [70.0])
    said = np.append(values, 99.0) + np.where(lead_h > 5.0, -10.0, 1.0)
    one = series_of(values)
    assert describe(one)["forecast"] is None
    known_s = (np.arange(73) - lead_h) * 3600.0
    said[np.isnan(lead_h)] = np.nan
    found = forecast_errors(replace(one, forecast=Forecast(said, known_s)))
    assert found is not None
    assert (found["steps"], found["ends"]) == (48, "2026-01-04T01:00:00+00:00")
    assert found["by_lead"] == [
        {
            "from_h": from_h,
            "until_h": until_h,
            "steps": steps,
            "error_mean_abs": abs(error),
            "error_mean": error,
            "day_before_error_mean_abs": 24.0,
        }
        for from_h, until_h, steps, error in [
            (0.0, 6.0, 24, 1.0),
            (6.0, 12.0, 12, -10.0),
            (48.0, None, 12, -10.0),
        ]
    ]
