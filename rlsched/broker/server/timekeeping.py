"""The broker's clock: its time grows with every reading, even if this machine's clock is set back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

AHEAD_S = 60.0
"""Time by which the journal's last time may be ahead of this machine's clock before a warning is logged,
seconds.
"""


class BrokerClock:
    """Unix time in whole milliseconds that grows with every reading, even if the system clock jumps.

    Args:
        after_s: Time that the first reading exceeds, Unix seconds; after a restart, the journal's last time.
        wall: Returns Unix time; called once.
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
        """Return the time, at least 1 ms later than the previous reading."""
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
