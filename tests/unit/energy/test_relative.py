"""Price relative to the mean: nothing that is published later counts; the table gives the price at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsched.energy.forecast import Forecast
from rlsched.energy.relative import (
    AHEAD_H,
    LEAST_RATIO,
    MOST_RATIO,
    OUTLOOK,
    PricesAsked,
    PriceTable,
    day_means,
    outlook,
    price_ranks,
    prices_ahead,
    relative,
)
from rlsched.energy.series import HOUR_S, Series

BEGINS = datetime(2026, 3, 1, tzinfo=UTC)


def series(values: list[float], step_s: float = HOUR_S, forecast: Forecast | None = None) -> Series:
    return Series("s", BEGINS, step_s, np.array(values, np.float64), forecast)


def random_forecast(seed: int, steps: int, step_s: float = HOUR_S, *, later: int = 0) -> Forecast:
    """Forecasts of most steps, known up to two days before; `later`: number of steps after the values."""
    rng, count = np.random.default_rng(seed), steps + later
    known_s = np.arange(count) * step_s - rng.integers(0, 48, count) * HOUR_S
    missing = rng.random(count) < 0.2
    values = rng.integers(1, 200, count).astype(float)
    return Forecast(np.where(missing, np.nan, values), np.where(missing, np.nan, known_s))


def seen_by_hand(one: Series, k: int, steps: int, ahead: int, day: int) -> list[float | None]:
    """Values of the steps from `k` on as known in step `k`, from the definition; None: before the start."""
    found = list[float | None]()
    for later in range(steps):
        at, said = k + later, one.forecast
        if later <= ahead and at < len(one):
            found.append(float(one.values[at]))
        elif said is not None and at < len(said.values) and said.known_s[at] <= k * one.step_s:
            found.append(float(said.values[at]))
        elif later >= day:
            found.append(found[later - day])
        else:
            found.append(float(one.values[at - day]) if at >= day else None)
    return found


def by_hand(values: list[float], k: int, ahead: int, day: int) -> float:
    """The ratio of step `k`, from the definition: a step that is not known counts as the one a day before."""
    counted = []
    for later in range(day):
        at = k + later if later <= ahead else k + later - day
        if 0 <= at < len(values):
            counted.append(values[at])
    mean = sum(counted) / len(counted)
    return 1.0 if mean <= 0.0 else min(max(values[k] / mean, LEAST_RATIO), MOST_RATIO)


@given(
    st.lists(st.integers(-50, 500).map(float), min_size=3, max_size=80),
    st.sampled_from([0.0, 1.0, 12.0, 24.0]),
    st.sampled_from([HOUR_S, 4.0 * HOUR_S]),
)
def test_ratio_is_the_value_over_the_mean_of_the_next_day(
    values: list[float], ahead_h: float, step_s: float
) -> None:
    day = round(24 * HOUR_S / step_s)
    ahead = min(int(ahead_h * HOUR_S / step_s), day - 1)
    found = relative(series(values, step_s), ahead_h * HOUR_S)
    expected = [by_hand(values, k, ahead, day) for k in range(len(values))]
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)


def ahead_of(one: Series, known_ahead_s: float) -> np.ndarray:
    return prices_ahead(one, known_ahead_s, day_means(one, known_ahead_s), 0, len(one))


def ranks_of(one: Series, _known_ahead_s: float = 0.0) -> np.ndarray:
    return price_ranks(one, 0, len(one))


@given(st.integers(0, 59), st.sampled_from([0, 6, 12]), st.booleans())
def test_values_that_are_published_later_do_not_count(k: int, ahead_h: int, has_forecast: bool) -> None:
    values = np.random.default_rng(k).uniform(10.0, 100.0, 60)
    changed = values.copy()
    changed[k + ahead_h + 1 :] *= 7.0
    one, other = series(values.tolist()), series(changed.tolist())
    if has_forecast:
        said = random_forecast(k, 60, later=30)
        is_later = said.known_s > k * HOUR_S
        other = replace(other, forecast=replace(said, values=np.where(is_later, 9.0, 1.0) * said.values))
        one = replace(one, forecast=said)
    for columns in (relative, outlook, ahead_of, ranks_of):
        before, after = (columns(each, ahead_h * HOUR_S) for each in (one, other))
        assert np.array_equal(before[: k + 1], after[: k + 1])


@given(
    st.lists(st.integers(-50, 500).map(float), min_size=3, max_size=80),
    st.integers(0, 99),
    st.sampled_from([0.0, 1.0, 12.0, 24.0]),
    st.sampled_from([HOUR_S, 4.0 * HOUR_S]),
)
def test_an_unknown_step_counts_as_its_forecast(
    values: list[float], seed: int, ahead_h: float, step_s: float
) -> None:
    day = round(24 * HOUR_S / step_s)
    ahead = min(int(ahead_h * HOUR_S / step_s), day - 1)
    one = series(values, step_s, random_forecast(seed, len(values), step_s, later=seed))
    found, columns = relative(one, ahead_h * HOUR_S), outlook(one, ahead_h * HOUR_S)
    for k, price in enumerate(values):
        seen = seen_by_hand(one, k, day, ahead, day)
        counted = [value for value in seen if value is not None]
        mean = sum(counted) / len(counted)
        ratio = 1.0 if mean <= 0.0 else min(max(price / mean, LEAST_RATIO), MOST_RATIO)
        assert found[k] == pytest.approx(ratio, rel=1e-3, abs=1e-3)
        lower = [(price if value is None else value) < price for value in seen[1:]]
        assert columns[k, 2] == pytest.approx(sum(lower) / len(lower), abs=1e-5)


def test_a_forecast_that_is_never_known_in_time_changes_nothing() -> None:
    values = np.random.default_rng(5).uniform(10.0, 100.0, 400)
    at_start = Forecast(np.full(400, 900.0), np.arange(400) * HOUR_S)
    one, other = series(values.tolist()), series(values.tolist(), forecast=at_start)
    for columns in (relative, outlook, ahead_of):
        assert columns(other, 0.0) == pytest.approx(columns(one, 0.0), abs=2e-6)


@given(
    st.lists(st.integers(-50, 500).map(float), min_size=3, max_size=60),
    st.integers(0, 99),
    st.sampled_from([0.0, 12.0, 24.0]),
    st.sampled_from([900.0, HOUR_S, 2_400.0, 3.0 * HOUR_S]),
    st.booleans(),
)
def test_prices_ahead_are_relative_to_the_mean(
    values: list[float], seed: int, ahead_h: float, step_s: float, has_forecast: bool
) -> None:
    said = random_forecast(seed, len(values), step_s, later=2 * seed) if has_forecast else None
    one, day = series(values, step_s, said), round(24 * HOUR_S / step_s)
    known = int(ahead_h * HOUR_S / step_s)
    found, means = ahead_of(one, ahead_h * HOUR_S), day_means(one, ahead_h * HOUR_S)
    for k, price in enumerate(values):
        seen = seen_by_hand(one, k, math.ceil(AHEAD_H * HOUR_S / step_s), known, day)
        prices = [price if value is None else value for value in seen]
        for h in range(AHEAD_H):
            n = HOUR_S / step_s
            within = [prices[int((h + 0.5) * n)]] if n % 1 else prices[int(h * n) : int((h + 1) * n)]
            mean = sum(within) / len(within) / means[k] if means[k] > 0.0 else 1.0
            assert found[k, h] == pytest.approx(min(max(mean, LEAST_RATIO), MOST_RATIO), abs=2e-6)


@given(st.lists(st.integers(-5, 5).map(float), min_size=3, max_size=200))
def test_the_rank_is_the_share_of_lower_prices_in_the_past_week(values: list[float]) -> None:
    step_s = 4 * HOUR_S
    found = price_ranks(series(values, step_s), 0, len(values))
    for k, price in enumerate(values):
        week = values[max(k + 1 - 42, 0) : k + 1]
        assert found[k] == pytest.approx(sum(one < price for one in week) / len(week), abs=1e-6)


@pytest.mark.parametrize("step_s", [300.0, 900.0, HOUR_S, 2_400.0])
def test_a_table_gives_the_details_of_each_step(step_s: float) -> None:
    """The details of one step are bit for bit as in the columns of all steps, which the simulator reads."""
    values = np.random.default_rng(3).uniform(-10.0, 100.0, 900)
    one = series(values.tolist(), step_s, random_forecast(3, 900, step_s, later=50))
    table, ahead, ranks = PriceTable(one, 6 * HOUR_S), ahead_of(one, 6 * HOUR_S), ranks_of(one)
    for k in (0, 1, 37, 288, 500, 899):
        from_s = BEGINS.timestamp() + k * step_s
        for now_s in (from_s, from_s + 0.5 * step_s):
            plain, found = table.at(now_s), table.at(now_s, PricesAsked(ahead=True, rank=True))
            assert plain is not None
            assert found is not None
            assert (plain.from_s, plain.ahead, plain.rank) == (0.0, (), 0.0)
            assert (found.from_s, found.until_s) == (from_s, from_s + step_s)
            assert np.array_equal(found.ahead, ahead[k])
            assert found.rank == ranks[k]
            assert found[:3] == plain[:3]
    only = table.at(from_s, PricesAsked(rank=True))
    assert only is not None
    assert (only.ahead, only.rank) == ((), ranks[899])


@given(
    st.lists(st.integers(-50, 500).map(float), min_size=3, max_size=80),
    st.sampled_from([0.0, 1.0, 12.0, 24.0]),
    st.sampled_from([HOUR_S, 2.0 * HOUR_S]),
)
def test_outlook_is_that_of_the_definition(values: list[float], ahead_h: float, step_s: float) -> None:
    day = round(24 * HOUR_S / step_s)
    ahead = min(int(ahead_h * HOUR_S / step_s), day - 1)
    found = outlook(series(values, step_s), ahead_h * HOUR_S)
    assert np.isfinite(found).all()
    for k, price in enumerate(values):
        at = [
            k + later if later <= ahead and k + later < len(values) else k + later - day
            for later in range(day)
        ]
        later_values = [values[one] if one >= 0 else price for one in at]
        for column, hours in enumerate((6, 12, 24)):
            steps = later_values[1 : round(hours * HOUR_S / step_s)]
            assert found[k, column] == pytest.approx(sum(one < price for one in steps) / len(steps), abs=1e-5)
        week = values[max(k + 1 - 7 * day, 0) : k + 1]
        mean = sum(week) / len(week)
        if mean <= 0.0:
            assert (found[k, 3:7] == 0.0).all()
            continue
        least = LEAST_RATIO * mean
        lowest = math.log(max(min(later_values), least) / max(price, least))
        rise = math.log(max(sum(later_values) / day, least) / mean)
        assert found[k, 3] == pytest.approx(lowest, abs=1e-5)
        assert found[k, 5] == pytest.approx(rise, abs=1e-5)


def test_steps_are_not_mixed_up_in_long_series() -> None:
    values = np.random.default_rng(0).uniform(10.0, 100.0, 9_000)
    assert np.array_equal(
        outlook(series(values.tolist()), 0.0)[5_000:5_100],
        outlook(series(values[4_000:].tolist()), 0.0)[1_000:1_100],
    )


def test_a_constant_price_is_its_mean() -> None:
    assert (relative(series([40.0] * 50), 0.0) == 1.0).all()


def test_a_table_gives_the_price_until_the_ratio_changes() -> None:
    table = PriceTable(series([50.0] * 30 + [100.0, 100.0]), 0.0)
    first_s = BEGINS.timestamp()
    assert table.at(first_s - 1.0) is None
    calm = (0.0,) * (len(OUTLOOK) - 1) + (0.041667,)
    assert table.at(first_s + 100.0) == (50.0, 1.0, calm, first_s + 30 * HOUR_S, 0.0, (), 0.0)
    dear = table.at(first_s + 30 * HOUR_S)
    assert dear is not None
    assert dear.ratio == pytest.approx(100.0 / ((23 * 50.0 + 100.0) / 24))
    assert dear.until_s == first_s + 31 * HOUR_S
    assert table.at(table.ends_s) is None


def test_a_table_joins_no_steps_with_different_prices() -> None:
    """Ratio and outlook of these steps are equal, because the mean is below 0; the prices are not."""
    table, first_s = PriceTable(series([-10.0, -20.0, -20.0, -10.0]), 0.0), BEGINS.timestamp()
    found = [table.at(first_s + hour * HOUR_S) for hour in range(4)]
    assert [one.price for one in found if one is not None] == [-10.0, -20.0, -20.0, -10.0]
    assert [one.until_s - first_s for one in found if one is not None] == [3600.0, 10800.0, 10800.0, 14400.0]


def test_the_mean_price_between_two_times() -> None:
    table, first_s = PriceTable(series([10.0, 20.0, -60.0]), 0.0), BEGINS.timestamp()
    assert table.mean(first_s + 1_800.0, first_s + 9_000.0) == pytest.approx((5.0 + 20.0 - 30.0) / 2.0)
    assert table.mean(first_s, first_s + 10_800.0) == pytest.approx(-10.0)
    assert table.mean(first_s - 1.0, first_s + 60.0) is None
    assert table.mean(first_s + 60.0, first_s + 10_801.0) is None
    assert table.mean(first_s + 60.0, first_s + 60.0) is None
