"""The course of events after a decision (`Course`), and a time limit for replays (`Watch`)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from rlsched.decisions.stored_timeline import StoredTimeline
from rlsched.decisions.timeline import Timeline
from rlsched.errors import RlschedError


class Course(NamedTuple):
    """The course of events after a decision: the attempts of jobs, and the energy.

    Attributes:
        timeline: Jobs with their attempts.
        to_s: Time up to which the course is known, seconds; infinite: the whole course is known.
        last_s: Time of the last event, seconds.
        energy_j: Energy up to the last event, joules; None without models.
        by_predictions: Number of jobs for which a predicted run time was used.
    """

    timeline: Timeline | StoredTimeline
    to_s: float
    last_s: float
    energy_j: float | None = None
    by_predictions: int = 0


class Watch:
    """Time limit for a replay.

    Args:
        limit_s: Time limit, seconds of real time.
        clock: Monotonic clock, seconds.
    """

    def __init__(self, limit_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock, self._began = limit_s, clock, clock()

    def took_s(self) -> float:
        """Time since the start, seconds."""
        return self._clock() - self._began

    def check_time(self, now_s: float) -> None:
        """Check the time limit. `now_s`: simulated time, for the error message.

        Raises:
            RlschedError: the time limit is exceeded.
        """
        if self.took_s() > self._limit_s:
            raise RlschedError(
                f"not finished within {self._limit_s:g} s: the replay reached simulated second {now_s:,.0f}; "
                "request fewer hours, or raise the limit (--within)"
            )
