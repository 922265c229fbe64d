"""Converts publishers' times (with a UTC offset, a zone name, or in local time) to seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from rlsched.errors import InputError
from rlsched.workload.formats.account import MalformedError
from rlsched.workload.formats.lines import UNKNOWN

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMED = {"UTC": 0, "GMT": 0, "PST": -8, "PDT": -7}
"""Zone name -> offset from UTC, hours, for the zone names that can follow a time."""
_EXPECTED = "a time such as 2020-06-09 18:41:01"


class TimeParser:
    """Parser of the times of one file.

    Args:
        zone: Zone, such as `America/Los_Angeles`, of times that are written without a zone. None: these times
            are used as written, as if every day had 24 hours.

    Raises:
        InputError: the zone is unknown on this machine.
    """

    def __init__(self, zone: str | None = None) -> None:
        self.zone = zone
        self._zone: tzinfo | None = _zone_info(zone) if zone else None

    def read(self, text: str, column: str, not_before_s: float | None = None) -> float | None:
        """Return seconds since 1970; None: the time is unknown.

        Args:
            text: The time.
            column: Name of the column, for messages.
            not_before_s: Earliest possible time, seconds since 1970. It resolves the hour that occurs twice
                when summer time ends: if the first occurrence is too early, the second one is used.

        Raises:
            MalformedError: the text is not a time.
        """
        text = text.strip()
        if text in UNKNOWN:
            return None
        plain, _, name = text.rpartition(" ")
        offset = _NAMED.get(name)
        try:
            if len(text) < 19:
                raise ValueError(text)
            time = datetime.fromisoformat(text if offset is None else plain)
        except ValueError as error:
            raise MalformedError(column, f"{column!r}: expected {_EXPECTED}, got {text[:40]!r}") from error
        if offset is not None:
            time = time.replace(tzinfo=timezone(timedelta(hours=offset)))
        if time.tzinfo is not None or self._zone is None:
            return _seconds(time if time.tzinfo is not None else time.replace(tzinfo=UTC))
        first_s = _seconds(time.replace(tzinfo=self._zone))
        if not_before_s is not None and first_s < not_before_s:
            second_s = _seconds(time.replace(tzinfo=self._zone, fold=1))
            return second_s if second_s >= not_before_s else first_s
        return first_s

    def instant(self, seconds: float) -> datetime | None:
        """Convert seconds since 1970 to a time in the zone; without a zone, to the time as written in the
        file.

        None: the time is after the year 9999.
        """
        try:
            at = _EPOCH + timedelta(seconds=seconds)
        except OverflowError:
            return None
        return at.astimezone(self._zone) if self._zone else at.replace(tzinfo=None)

    def show(self, seconds: float) -> str:
        """Convert seconds since 1970 to text, in UTC; without a zone, to the time as written in the file."""
        try:
            text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")
        except OverflowError:
            return f"second {seconds:.0f} after 1970"
        return f"{text} UTC" if self._zone else text


def _zone_info(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InputError(
            f"time zone {name!r} is not known here; give a name such as Europe/Berlin "
            "(if that is not known either: pip install tzdata)"
        ) from error


def _seconds(time: datetime) -> float:
    return (time - _EPOCH).total_seconds()
