"""How things go from a decision on, and a watch that ends a replay which takes too long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from rlsched.decisions.timeline import Timeline
from rlsched.errors import RlschedError


class Course(NamedTuple):
    """How things went from a decision on.

    Attributes:
        timeline: Jobs with their attempts.
        to_s: Until when all is known of it; infinite: it goes to its end.
        last_s: When the last thing happened.
        energy_j: What was drawn up to then; None without models.
        by_predictions: Jobs whose run time is a prediction.
    """

    timeline: Timeline
    to_s: float
    last_s: float
    energy_j: float | None = None
    by_predictions: int = 0


class Watch:
    """Ends a replay that takes too long.

    Args:
        limit_s: How long it may take.
        clock: Monotonic seconds.
    """

    def __init__(self, limit_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock, self._began = limit_s, clock, clock()

    def took_s(self) -> float:
        """Since the beginning."""
        return self._clock() - self._began

    def look(self, now_s: float) -> None:
        """Time goes on.

        Raises:
            RlschedError: it took too long.
        """
        if self.took_s() > self._limit_s:
            raise RlschedError(
                f"could not finish within {self._limit_s:g} s: the replay had come to second {now_s:,.0f}; "
                "ask for fewer hours, or give it longer (--within)"
            )
