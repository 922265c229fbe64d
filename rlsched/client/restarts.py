"""Back-off and maximum count of restarts, for a process that exits repeatedly."""

from __future__ import annotations

import math
from typing import Final

MOST: Final = 5
"""Maximum number of restarts in a row; a process that exits again is not restarted."""
FIRST_S: Final = 1.0
"""Back-off before the first restart, seconds; each further restart doubles it."""
CALM_S: Final = 60.0
"""Run time, seconds, after which the count of restarts begins again at 0."""


class Restarts:
    """Counts the restarts of one process.

    Attributes:
        in_a_row: Number of restarts since the process last ran for `CALM_S`.
    """

    def __init__(self) -> None:
        self.in_a_row = 0

    def delay_s(self, ran_s: float) -> float:
        """Return the time to wait before a restart, seconds, and count the restart.

        The process ran for `ran_s` seconds before it exited. The result is infinite if the process has been
        restarted `MOST` times in a row.
        """
        if ran_s >= CALM_S:
            self.in_a_row = 0
        if self.in_a_row >= MOST:
            return math.inf
        self.in_a_row += 1
        return FIRST_S * 2.0 ** (self.in_a_row - 1)
