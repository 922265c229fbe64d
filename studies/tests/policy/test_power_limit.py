"""The limit of the study falls every day to a part of the mean power; the bound of the work under it."""

from __future__ import annotations

import numpy as np
import pytest

from studies.policy.power_limit import EVENTS, FIRST_H, HIGH_KW, limit_of, most_work


def test_limit_falls_every_day_for_the_hours_of_the_event() -> None:
    for event in EVENTS:
        series = limit_of(event, 100.0, 72)
        low = np.flatnonzero(series.values < HIGH_KW)
        hours = range(FIRST_H, FIRST_H + event.hours)
        assert low.tolist() == [24 * day + hour for day in range(3) for hour in hours]
        assert set(series.values[low]) == {100.0 * (1.0 - event.cut)}


def test_bound_divides_the_power_by_work_per_watt() -> None:
    """Of 110 W, the first group gets 60 W; half of the second group runs on the other 50 W."""
    watts, work = np.array([[60.0, 100.0], [80.0, 100.0]]), np.array([[0.8, 1.0], [0.5, 1.0]])
    assert most_work(watts, work, 110.0) == pytest.approx(0.8 + 0.5)
    assert most_work(watts, work, 180.0) == pytest.approx(0.8 + 1.0 + 20.0 * 0.2 / 40.0)
    assert most_work(watts, work, 500.0) == pytest.approx(2.0)
    assert most_work(watts, work, -1.0) == 0.0
