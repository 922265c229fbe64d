"""Price relative to the mean: nothing that is published later counts; the table gives the price at a time."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsched.energy.relative import LEAST_RATIO, MOST_RATIO, OUTLOOK, PriceTable, outlook, relative
from rlsched.energy.series import HOUR_S, Series

BEGINS = datetime(2026, 3, 1, tzinfo=UTC)


def series(values: list[float], step_s: float = HOUR_S) -> Series:
    return Series("s", BEGINS, step_s, np.array(values, np.float64))


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


@given(st.integers(0, 59), st.sampled_from([0, 6, 12]))
def test_values_that_are_published_later_do_not_count(k: int, ahead_h: int) -> None:
    values = np.random.default_rng(k).uniform(10.0, 100.0, 60)
    changed = values.copy()
    changed[k + ahead_h + 1 :] *= 7.0
    for columns in (relative, outlook):
        before, after = (columns(series(one.tolist()), ahead_h * HOUR_S) for one in (values, changed))
        assert np.array_equal(before[: k + 1], after[: k + 1])


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
    assert table.at(first_s + 100.0) == (50.0, 1.0, calm, first_s + 30 * HOUR_S)
    dear = table.at(first_s + 30 * HOUR_S)
    assert dear is not None
    assert dear.ratio == pytest.approx(100.0 / ((23 * 50.0 + 100.0) / 24))
    assert dear.until_s == first_s + 31 * HOUR_S
    assert table.at(table.ends_s) is None
