"""The broker's clock. Its time increases with every reading, even if the system clock is set back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

AHEAD_S = 60.0
"""Maximum time by which the journal can be ahead of this machine's clock without a warning, seconds."""


class BrokerClock:
    """Unix time in whole milliseconds that increases with every reading.

    Args:
        after_s: Unix seconds; all readings are later. After a restart, this is the journal's last time.
        wall: Function that returns Unix time; called once.
        elapsed: A monotonic clock, seconds.
    """

    def __init__(
        self,
        after_s: float,
        *,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._last_s = after_s
        self._elapsed = elapsed
        self._offset_s = max(wall(), after_s) - elapsed()

    def read(self) -> float:
        """Return the time, Unix seconds, at least 1 ms later than the previous reading."""
        self._last_s = self.peek()
        return self._last_s

    def peek(self) -> float:
        """Return the time that `read` would return now."""
        return round(max(self._elapsed() + self._offset_s, self._last_s + 0.001), 3)


def ahead_line(journal: Path, ahead_s: float) -> str:
    """Return a warning if a journal's last time is ahead of the clock by more than `AHEAD_S`, else "".

    `ahead_s`: the journal's last time minus the time of this machine's clock, seconds.
    """
    if ahead_s <= AHEAD_S:
        return ""
    by = f"{ahead_s / 86_400:.1f} days" if ahead_s >= 86_400 else f"{ahead_s:.0f} s"
    return (
        f"warning: the last time in {journal} is {by} ahead of this machine's clock: set the clock "
        "(`timedatectl`) if it is wrong. If the clock was wrong before, displayed times stay ahead until the "
        "clock has caught up; predicted and measured run times are right"
    )
