"""Parses times in the format of the ENTSO-E Transparency Platform, in UTC or a European local time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_TIME = re.compile(r"\s*(\d\d)[./](\d\d)[./](\d{4}) (\d\d):(\d\d)(?::(\d\d))?\s*(?:\((\w+)\))?\s*")
_WINTER_H: Final = {"UTC": 0, "WET": 0, "CET": 1, "EET": 2}
"""Offsets of winter time from UTC, hours. Summer time adds one hour, except for UTC. It lasts from the last
Sunday of March to the last Sunday of October.
"""


class EuropeanClock:
    """Converts the intervals of a file to UTC. Intervals must be passed in the order of the file.

    In autumn, one local hour occurs twice. The first occurrence is read as summer time, and the second as
    winter time, unless the time has a mark such as `(CET)`.

    Attributes:
        zone: Name of the winter time: UTC, WET, CET or EET.
    """

    def __init__(self, header: str) -> None:
        """Find the zone in the header of the column, such as `MTU (CET/CEST)`.

        Raises:
            ValueError: the header names no known zone.
        """
        found = [zone for zone in _WINTER_H if re.search(rf"\({zone}(/\w+)?\)", header)]
        if len(found) != 1:
            raise ValueError(f"expected one of {', '.join(f'({zone})' for zone in _WINTER_H)} in {header!r}")
        self.zone = found[0]
        self._last: datetime | None = None

    def read(self, text: str) -> tuple[datetime, float] | None:
        """Return (start in UTC, length in seconds) of an interval; None if the clocks skip this hour.

        Raises:
            ValueError: the text is not an interval such as `01.01.2023 00:00 - 01.01.2023 01:00`.
        """
        start, dash, end = text.partition(" - ")
        if not dash:
            raise ValueError("no interval")
        (local, mark), (local_end, mark_end) = _parts(start), _parts(end)
        starts = self._candidates(local, mark)
        later = [one for one in starts if self._last is None or one > self._last]
        if not starts:
            return None
        begins = later[0] if later else starts[-1]
        self._last = begins
        # If the clocks change within an interval, one of the differences is an hour too long.
        ends = self._candidates(local_end, mark_end) or [self._winter(local_end)]
        lasts = [local_end - local, *(one - begins for one in ends)]
        positive = [one for one in lasts if one > timedelta(0)]
        if not positive:
            raise ValueError("the interval ends before it starts")
        return begins, min(positive).total_seconds()

    def _candidates(self, local: datetime, mark: str | None) -> list[datetime]:
        """Return the times in UTC at which local clocks show `local`: none, one, or two, ascending."""
        winter = self._winter(local)
        if self.zone == "UTC":
            return [winter]
        summer = winter - timedelta(hours=1)
        if mark is not None:
            return [summer if mark.endswith("EST") else winter]
        return [one for one, is_summer in ((summer, True), (winter, False)) if _is_summer(one) == is_summer]

    def _winter(self, local: datetime) -> datetime:
        return (local - timedelta(hours=_WINTER_H[self.zone])).replace(tzinfo=UTC)


def _parts(text: str) -> tuple[datetime, str | None]:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("no time")
    day, month, year, hour, minute, second = (int(one or 0) for one in found.groups()[:6])
    if hour == 24:
        return datetime(year, month, day, 0, minute, second) + timedelta(days=1), found[7]
    return datetime(year, month, day, hour, minute, second), found[7]


def _is_summer(at: datetime) -> bool:
    """Return whether the European Union has summer time at a time in UTC, by its rule since 1996."""
    return _change(at.year, 3) <= at < _change(at.year, 10)


def _change(year: int, month: int) -> datetime:
    """Return 01:00 UTC on the last Sunday of a month of 31 days."""
    last = datetime(year, month, 31, 1, tzinfo=UTC)
    return last - timedelta(days=(last.weekday() + 1) % 7)
