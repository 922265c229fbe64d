"""Converts forecasts to text."""

from __future__ import annotations

from collections.abc import Sequence

from rlsched.decide.plans.plan_text import span
from rlsched.wire.messages import JobForecast

NOT_WITHIN = "not within 7 days"
AGED_S = 30.0
"""Seconds. `cell` adds the age of a forecast if the age exceeds twice this value plus a minute."""


def in_words(forecast: JobForecast, now_s: float) -> str:
    """Return a forecast as one line: start, end and age of the forecast."""
    said = []
    if forecast.start_s is not None:
        said.append(f"starts {times_in_words(forecast.start_s, now_s)}")
    said.append(f"ends {times_in_words(forecast.end_s, now_s)}")
    age_s = now_s - forecast.said_s
    return f"{'; '.join(said)}; forecast {span(max(age_s, 0.0))} ago"


def times_in_words(times: Sequence[float | None], now_s: float) -> str:
    """Return the median and the 10 to 90 % range of a time as text, relative to `now_s`."""
    low, median, high = (None if time is None else max(time - now_s, 0.0) for time in times)
    if low is None:
        return NOT_WITHIN
    if median is None:
        return f"{NOT_WITHIN} (10 % in {span(low)})"
    upper = f"90 % {NOT_WITHIN}" if high is None else f"90 % {span(high)}"
    return f"in {span(median)} (10 % {span(low)}, {upper})"


def cell(times: Sequence[float | None] | None, now_s: float, said_s: float) -> str:
    """Return the median and the 10 to 90 % range as text for a table, with the age of an old forecast."""
    if times is None:
        return ""
    low, median, high = (None if time is None else max(time - now_s, 0.0) for time in times)
    if median is None:
        return ">7 d"
    bounds = f"{_short(low)}-{_short(high)}"
    age_s = now_s - said_s
    return f"{_short(median)} ({bounds})" + (f", {_short(age_s)} old" if age_s > 2 * AGED_S + 60.0 else "")


def _short(seconds: float | None) -> str:
    if seconds is None:
        return ">7d"
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}" if seconds < 10 * size else f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
