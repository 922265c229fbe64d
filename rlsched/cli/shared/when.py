"""Local times as users type them: `7d` (ago), `2026-11-01`, `2026-11-01T13:30`."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from functools import lru_cache

from rlsched.errors import InputError

_QUARTER_S = 900.0
_UNITS_S = {"min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(min|h|d|w)")
_EXPECTED = "expected an age (30min, 12h, 7d, 2w), a day (2026-11-01) or a time (2026-11-01T13:30)"


def unix_s(option: str, text: str, now_s: float) -> float:
    """Return the time that an option's text describes, Unix seconds.

    Args:
        option: Name of the option, for errors.
        text: `7d` (ago), a day, or a day with a time. The time is local, unless the text has a UTC offset:
            `2026-11-01T13:30+00:00`.
        now_s: Current time, Unix seconds.

    Raises:
        InputError: the text is not a time.
    """
    age = _AGO.fullmatch(text)
    try:
        if age is not None:
            found_s = now_s - float(age[1]) * _UNITS_S[age[2]]
        else:
            found_s = datetime.fromisoformat(text).timestamp()
        if found_s < 0.0:
            raise ValueError("before 1970")
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(f"{option} {text!r}: {_EXPECTED}") from error
    return found_s


def _of_sacct(text: str) -> str:
    """Return `7d` for `now-7days` of `sacct`; other texts unchanged."""
    found = re.fullmatch(r"now-(\d{1,9})(minute|hour|day|week)s?", text)
    return text if found is None else found[1] + {"minute": "min"}.get(found[2], found[2][0])


def span_s(since: str | None, until: str | None, now_s: float) -> tuple[float | None, float | None]:
    """Return the times of `--since` and `--until`, Unix seconds; None: the option is not given.

    Raises:
        InputError: a text is not a time, or `--since` is not before `--until`.
    """
    since_s = None if since is None else unix_s("--since", _of_sacct(since), now_s)
    until_s = None if until is None or until == "now" else unix_s("--until", _of_sacct(until), now_s)
    if since_s is not None and since_s >= (now_s if until_s is None else until_s):
        end = "now" if until is None else f"--until {until}"
        raise InputError(f"--since {since}: expected a time before {end}")
    return since_s, until_s


def month_start_s(now_s: float) -> float:
    """Return the start of this month, Unix seconds."""
    now = datetime.fromtimestamp(now_s)
    return datetime(now.year, now.month, 1).timestamp()


def period_of(period: str, when_s: float) -> str:
    """Return the local month, day or hour of a time: 2026-11, 2026-11-01 or 2026-11-01T13:00+0100."""
    return _period(period, when_s // _QUARTER_S)[0]


def period_end_s(period: str, when_s: float) -> float:
    """Return the end of the local month, day or hour that contains a time, Unix seconds."""
    return _period(period, when_s // _QUARTER_S)[1]


@lru_cache(maxsize=4096)
def _period(period: str, quarter: float) -> tuple[str, float]:
    """Return a period as text, and its end, Unix seconds. `quarter`: number of a quarter of an hour in it.

    In all time zones, hours begin at quarters of an hour of UTC.
    """
    when_s = quarter * _QUARTER_S
    local = time.localtime(when_s)
    if period == "hour":
        return time.strftime("%FT%H:00%z", local), when_s + 3_600.0 - 60.0 * local.tm_min - local.tm_sec
    if period == "day":
        end = datetime(*local[:3]) + timedelta(days=1)
        return time.strftime("%F", local), end.timestamp()
    end = datetime(local.tm_year + local.tm_mon // 12, local.tm_mon % 12 + 1, 1)
    return time.strftime("%Y-%m", local), end.timestamp()
