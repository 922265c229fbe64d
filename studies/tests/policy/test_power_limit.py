"""The limit of the study: it falls every day at the same hours, to a part of the mean power."""

from __future__ import annotations

import numpy as np

from studies.policy.power_limit import EVENTS, FIRST_H, HIGH_KW, limit_of


def test_limit_falls_every_day_for_the_hours_of_the_event() -> None:
    for event in EVENTS:
        series = limit_of(event, 100.0, 72)
        low = np.flatnonzero(series.values < HIGH_KW)
        hours = range(FIRST_H, FIRST_H + event.hours)
        assert low.tolist() == [24 * day + hour for day in range(3) for hour in hours]
        assert set(series.values[low]) == {100.0 * (1.0 - event.cut)}
