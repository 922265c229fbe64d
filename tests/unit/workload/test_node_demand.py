"""Forecasts of node demand: exact on series with known answers, without use of later data."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.errors import InputError
from rlsched.workload.predict.node_demand import (
    DAY_SLOTS,
    Boosted,
    DemandForecast,
    Persistence,
    RecentRises,
    TrailingMaximum,
    future_ends,
    future_means,
    future_peaks,
)

FORECASTS = [
    Persistence(),
    TrailingMaximum(5),
    RecentRises(3, 200, 0.9),
    Boosted(6, 0.8, refit=500),
    Boosted(6, 0.5, "mean", refit=500),
]

each = pytest.mark.parametrize("forecast", FORECASTS, ids=lambda one: f"{one.name}")


def restless(slots: int, seed: int = 3) -> np.ndarray:
    """Demand that wanders around 200 and jumps."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(-4, 5, slots) + 40 * (rng.random(slots) < 0.01) - 40 * (rng.random(slots) < 0.01)
    out, now = np.empty(slots), 0.0
    for slot, step in enumerate(steps.tolist()):
        now = 0.97 * now + step
        out[slot] = round(200 + now)
    return out


@each
def test_later_values_change_no_forecast(forecast: DemandForecast) -> None:
    demand = restless(1500)
    other = demand.copy()
    other[1100:] = restless(400, seed=9) + 100
    assert np.array_equal(forecast.peaks(demand)[:1100], forecast.peaks(other)[:1100])
    assert not np.array_equal(forecast.peaks(demand)[1100:], forecast.peaks(other)[1100:])


@each
def test_forecast_starts_at_the_last_value(forecast: DemandForecast) -> None:
    demand = restless(1500)
    peaks = forecast.peaks(demand)
    for now in (0, 1, 4, 250, 999, 1000, 1001, 1499):
        assert forecast.peak(demand[: now + 1]) == peaks[now]


def test_known_answers() -> None:
    demand = np.array([3.0, 7.0, 5.0, 1.0, 1.0, 2.0])
    assert Persistence().peaks(demand).tolist() == demand.tolist()
    assert TrailingMaximum(3).peaks(demand).tolist() == [3, 7, 7, 7, 5, 2]
    assert future_peaks(demand, 2).tolist()[:4] == [7, 5, 1, 2]
    assert future_means(demand, 2).tolist()[:4] == [6, 3, 1, 1.5]
    assert future_ends(demand, 2).tolist()[:4] == [5, 1, 1, 2]
    assert np.isnan(future_peaks(demand, 2)[4:]).all()
    # After slot 3 the rises over two slots are known from slots 0 and 1: 7 - 3 and 5 - 7.
    assert RecentRises(2, 10, 0.5).peaks(demand).tolist()[3] == 1.0 + 1.0
    # A window of one slot sees only the latest of them.
    assert RecentRises(2, 1, 0.5).peaks(demand).tolist()[3] == 1.0 - 2.0


def test_boosting_learns_a_day_that_persistence_cannot_see() -> None:
    """Demand doubles every day from nine to five: at seven the next three hours are known."""
    slot = np.arange(21 * DAY_SLOTS)
    hour = slot % DAY_SLOTS / 6
    demand = np.where((hour >= 9) & (hour < 17), 200.0, 100.0)
    late = slice(14 * DAY_SLOTS, 21 * DAY_SLOTS - 18)
    truth = future_peaks(demand, 18)[late]
    off = np.abs(Boosted(18, 0.5).peaks(demand)[late] - truth)
    assert np.abs(demand[late] - truth).mean() > 10.0
    assert off.mean() < 4.0


def test_higher_quantile_covers_more() -> None:
    demand = restless(3000)
    truth = future_peaks(demand, 6)[1500:-6]
    covered = [
        float((Boosted(6, quantile, refit=1000).peaks(demand)[1500:-6] >= truth).mean())
        for quantile in (0.5, 0.9)
    ]
    assert 0.35 < covered[0] < 0.7 < covered[1] < 0.99


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrailingMaximum(0), "at least one slot, got 0"),
        (lambda: RecentRises(horizon=0), "horizon of 0"),
        (lambda: RecentRises(quantile=1.0), "between 0 and 1, got 1.0"),
        (lambda: RecentRises(window=0), "window of at least one slot, got 0"),
        (lambda: Boosted(refit=0), "at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_named(make: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()  # type: ignore[operator]
