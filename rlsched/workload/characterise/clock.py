"""Hours, weekdays and time bins of a trace: by the wall clock, or counted from the trace's origin."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import numpy as np

from rlsched.workload.characterise.parts import DAY_S, HOUR_S, Floats, Ints, Report

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAYS = tuple(f"day {number}" for number in range(1, 8))
SLOTS = 7 * 24
MOST_HOURS = 2_000_000
"""Maximum length of a trace, hours (about 228 years); a longer trace contains a wrong time."""
MOST_BINS = 200
_BINS_S = (HOUR_S, 6 * HOUR_S, DAY_S, 7 * DAY_S, 28 * DAY_S, 364 * DAY_S)


class WeekClock(NamedTuple):
    """Converts times of a trace to hours of the week, and divides the trace into hours or bins.

    Attributes:
        first_s: First submission, seconds from the trace's origin.
        last_s: Last submission, seconds from the trace's origin.
        origin: Wall-clock time of the trace's second 0. None: it is unknown, and second 0 is the start of
            hour 0 of day 1.
    """

    first_s: float
    last_s: float
    origin: datetime | None = None

    @property
    def offset_s(self) -> float:
        """Seconds from the Monday midnight before the origin to the origin; 0 if the origin is unknown."""
        if self.origin is None:
            return 0.0
        at = self.origin
        return at.weekday() * DAY_S + at.hour * HOUR_S + at.minute * 60 + at.second

    @property
    def days(self) -> tuple[str, ...]:
        """Names of the seven days of a week."""
        return DAYS if self.origin is None else WEEKDAYS

    def hour(self, at_s: Floats) -> Ints:
        """Return the index of the hour (by the clock) that contains each time.

        Hour 0 starts at second -`offset_s` of the trace.
        """
        return np.floor((at_s + self.offset_s) / HOUR_S).astype(np.int64)

    def hours_in_slots(self) -> Ints:
        """Return how often the trace contains each hour of the week, (168,).

        Index 0 is hour 0 of day 1 (Monday, or the first day if the origin is unknown).
        """
        first, last = self.hour(np.array([self.first_s, self.last_s])).tolist()
        whole, left = divmod(last - first + 1, SLOTS)
        count = np.full(SLOTS, whole, dtype=np.int64)
        count[(first + np.arange(left)) % SLOTS] += 1
        return count

    def hour_edges(self) -> Floats | None:
        """Return the full hours between the first and the last submission, as edges of intervals, seconds.

        The first and the last edge are these submissions themselves. None: all jobs are submitted at one
        instant, or the trace is longer than `MOST_HOURS`.
        """
        first, last = self.hour(np.array([self.first_s, self.last_s])).tolist()
        if self.last_s <= self.first_s or last - first > MOST_HOURS:
            return None
        marks = np.arange(first + 1, last + 1) * HOUR_S - self.offset_s
        inside = marks[(marks > self.first_s) & (marks < self.last_s)]
        return np.concatenate([[self.first_s], inside, [self.last_s]])

    def bin_edges(self) -> Floats | None:
        """Return the edges, seconds, of at most 201 bins. None: all jobs are submitted at one instant.

        Edges between bins are at full hours, days or weeks, at equal distances. The first edge is the first
        submission, and the last edge is the last submission. If less than half a bin would remain at an end,
        it is merged with the adjacent bin.
        """
        span_s = self.last_s - self.first_s
        if span_s <= 0:
            return None
        years = np.ceil(span_s / MOST_BINS / _BINS_S[-1]) * _BINS_S[-1]
        bin_s = next((size for size in _BINS_S if span_s / size <= MOST_BINS), float(years))
        first, last = (int((at + self.offset_s) // bin_s) for at in (self.first_s, self.last_s))
        marks = np.arange(first + 1, last + 1) * bin_s - self.offset_s
        inside = marks[(marks >= self.first_s + bin_s / 2) & (marks <= self.last_s - bin_s / 2)]
        return np.concatenate([[self.first_s], inside, [self.last_s]])

    def report(self) -> Report:
        """Report the trace's origin and the names of the days."""
        return {"origin": None if self.origin is None else self.origin.isoformat(), "days": list(self.days)}
