"""Prices of training windows: parts of the days, hours of the day, and nothing that is published later."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from rlsched.energy.forecast import Forecast
from rlsched.energy.relative import PricesAsked, day_means, outlook, price_ranks, prices_ahead, relative
from rlsched.energy.series import HOUR_S, Series
from rlsched.errors import InputError
from rlsched_envs.sim.signals import FROM, LIMIT, PRICE, RANK, RATIO, ROWS, ROWS_AHEAD, SUMS
from rlsched_envs.training.tariffs import HORIZON_H, LEAST_DAYS, Tariff, split

LATE = datetime(2025, 12, 31, 21, tzinfo=UTC)
AHEAD_S = 12 * HOUR_S


def series(days: int = 400, step_s: float = HOUR_S, begins: datetime = LATE) -> Series:
    """Prices that tell the hour of the day and the day; some are negative."""
    steps = round(days * 24 * HOUR_S / step_s)
    at_h = begins.hour + np.arange(steps) * step_s / HOUR_S
    return Series("p", begins, step_s, 10.0 * np.sin(at_h / 24.0 * 2.0 * np.pi) + at_h // 24 + 5.0)


def test_a_tariff_begins_at_midnight_and_has_the_columns_of_the_series() -> None:
    whole = series()
    tariff = Tariff.of(whole, AHEAD_S)
    assert tariff.begins == datetime(2026, 1, 1, tzinfo=UTC)
    assert (tariff.first_day, tariff.days) == (0, 399)
    at_midnight = Series("p", tariff.begins, HOUR_S, whole.values[3:])
    hours = len(at_midnight)
    assert np.array_equal(tariff.rows[0], np.maximum(at_midnight.values, 0.0))
    assert np.array_equal(tariff.rows[1, :hours], relative(at_midnight, AHEAD_S))
    assert np.array_equal(tariff.rows[2:], outlook(at_midnight, AHEAD_S).T)


def test_short_steps_are_averaged_over_the_hour() -> None:
    quarters = Tariff.of(series(step_s=900.0), AHEAD_S)
    assert quarters.rows[0, 20] == pytest.approx(np.maximum(series(step_s=900.0).values[92:96].mean(), 0.0))


def test_parts_have_different_days_and_end_in_their_part() -> None:
    whole = Tariff.of(series(), AHEAD_S)
    training, choosing, confirming = split([whole])
    assert [(one.first_day, one.days) for one in training] == [(0, 60), (80, 60), (160, 59), (239, 60)]
    assert [(one.first_day, one.days) for one in choosing] == [(60, 20), (140, 20), (219, 20), (299, 20)]
    assert [(one.first_day, one.days) for one in confirming] == [(319, 80)]
    assert [len(parts) for parts in split([Tariff.of(series(LEAST_DAYS + 1), AHEAD_S)])] == [1, 1, 1]
    rng, last = np.random.default_rng(0), 0
    for part in (*(part for pair in zip(training, choosing, strict=True) for part in pair), *confirming):
        days = {part.draw_day(10 * 86_400.0, rng) for _ in range(2_000)}
        assert min(days) == part.first_day >= last
        last = max(days) + 11
        assert last <= part.first_day + part.days
        prices = part.signal(max(days))[PRICE + 2]
        known = part.rows[0, max(days) * 24 :]
        assert np.array_equal(prices[: known.size][:HORIZON_H], known[: prices.size])
        assert set(prices[known.size :]) <= set(part.rows[0, -168:])
    assert whole.quarter(300) == "2026-Q4"


def test_a_signal_has_the_hours_of_its_day() -> None:
    tariff = Tariff.of(series(), AHEAD_S)
    signal = tariff.signal(30)
    assert signal.shape == (ROWS, HORIZON_H + 1)
    assert np.array_equal(signal[PRICE + 2], tariff.rows[0, 720 : 720 + HORIZON_H + 1])
    assert np.isposinf(signal[LIMIT]).all()
    assert np.array_equal(signal[RATIO:LIMIT], tariff.rows[1:, 720 : 720 + HORIZON_H + 1])
    assert signal[PRICE, 48] == pytest.approx(tariff.rows[0, 720:768].sum() * HOUR_S)


def test_a_signal_has_the_details_that_a_policy_reads() -> None:
    tariff = Tariff.of(series(60 + LEAST_DAYS), AHEAD_S).part(0.0, 0.9)
    plain, asked = tariff.signal(30), PricesAsked(ahead=True, rank=True)
    found = tariff.signal(30, asked)
    assert found.shape == (ROWS_AHEAD, HORIZON_H + 1)
    assert np.array_equal(found[:ROWS], plain)
    whole = Series("p", tariff.begins, HOUR_S, tariff.hourly.values)
    hours = slice(720, 720 + HORIZON_H + 1)
    assert np.array_equal(found[RANK], price_ranks(whole, 0, len(whole))[hours])
    ahead = prices_ahead(whole, AHEAD_S, day_means(whole, AHEAD_S), 0, len(whole))
    assert np.array_equal(found[SUMS:], np.cumsum(ahead, axis=1)[hours].T)
    assert np.array_equal(found[FROM], HOUR_S * np.arange(HORIZON_H + 1))
    assert not tariff.signal(30, PricesAsked(rank=True))[SUMS:].any()


def test_forecasts_are_averaged_over_the_hour() -> None:
    quarters = series(step_s=900.0)
    steps = len(quarters) + 8
    known_s = np.arange(steps) * 900.0 - 6.0 * HOUR_S
    values = np.random.default_rng(0).uniform(1.0, 9.0, steps)
    values[20] = np.nan
    found = Tariff.of(replace(quarters, forecast=Forecast(values, known_s)), 0.0).hourly
    assert found.forecast is not None
    assert len(found.forecast.values) == len(found) + 2
    assert np.isnan(found.forecast.values[2])
    assert found.forecast.values[3] == pytest.approx(values[24:28].mean())
    assert found.forecast.known_s[3] == 3 * HOUR_S + 2_700.0 - 6.0 * HOUR_S
    plain = Tariff.of(quarters, 0.0)
    assert not np.array_equal(Tariff.of(found, 0.0).rows[1], plain.rows[1])


def test_short_and_coarse_series_are_refused() -> None:
    with pytest.raises(InputError, match=rf"p: expected prices of {LEAST_DAYS} days or more, got 99"):
        Tariff.of(series(days=100), AHEAD_S)
    with pytest.raises(InputError, match=r"p: expected steps that divide an hour, got 7200 s"):
        Tariff.of(series(step_s=7_200.0), AHEAD_S)
    with pytest.raises(InputError, match=r"p: expected steps that divide an hour, got 2400 s"):
        Tariff.of(series(step_s=2_400.0, begins=LATE + timedelta(hours=3)), AHEAD_S)
