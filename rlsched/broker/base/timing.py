"""Histograms of durations, for monitoring."""

from __future__ import annotations

from bisect import bisect_left

from rlsched.wire.messages import Timing

BOUNDS_S = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """Histogram of durations since the broker started, with the bin limits `BOUNDS_S`, seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration, seconds."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def timing(self) -> Timing:
        """Return the counts so far, as a message."""
        return Timing(bounds_s=list(BOUNDS_S), counts=list(self._counts), sum_s=self._sum_s)
