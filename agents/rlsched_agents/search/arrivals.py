"""Recent arrivals seen by a scheduler, which sampled arrivals are drawn from."""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.cluster.arrays import SLOT_EMPTY
from rlsched.cluster.state import ClusterState

MEMORY: Final = 512
"""Number of recent arrivals to draw from, at the rate of the latest `RATE_OVER` arrivals."""
RATE_OVER: Final = 128


class Arrivals:
    """The latest `MEMORY` arrivals of a partition, in a ring buffer.

    Attributes:
        ring: (MEMORY,) jobs; the first `count` entries are in use.
    """

    _MARK: Final = np.dtype(
        [("submit_s", np.float64), ("predicted_s", np.float64), ("spread", np.float64), ("demand", np.int32)]
    )

    def __init__(self) -> None:
        self.ring = np.zeros(MEMORY, self._MARK)
        self._total = 0
        self._spread, self._spread_of = 0.0, 0

    @property
    def count(self) -> int:
        """Number of remembered arrivals."""
        return min(self._total, MEMORY)

    @property
    def median_spread(self) -> float:
        """Median spread of the predictions of the arrivals, 0 if there are none."""
        if self._spread_of != self._total:
            self._spread, self._spread_of = float(np.median(self.ring["spread"][: self.count])), self._total
        return self._spread

    def add(self, job: np.void) -> None:
        """Add a job that has arrived."""
        names = self._MARK.names or ()
        self.ring[self._total % MEMORY] = tuple(job[name] for name in names)
        self._total += 1

    def mean_gap_s(self, now_s: float) -> float:
        """Return the mean time between the latest arrivals, up to now, seconds."""
        over = min(self.count, RATE_OVER)
        since_s = float(self.ring[(self._total - over) % MEMORY]["submit_s"])
        return max(now_s - since_s, 0.0) / over


class Seen:
    """Arrivals by partition. Empty after a restart of the scheduler."""

    def __init__(self) -> None:
        self._next_seq = 0
        self._of: dict[int, Arrivals] = {}

    def arrivals_of(self, partition: int) -> Arrivals:
        """Return the arrivals of this partition."""
        return self._of.setdefault(partition, Arrivals())

    def remember(self, state: ClusterState) -> None:
        """Add the jobs that arrived since the last decision; all these jobs are still live."""
        next_seq = int(state.arrays.counters[0].next_seq)
        if next_seq < self._next_seq:
            self._next_seq, self._of = 0, {}
        if next_seq == self._next_seq:
            return
        job = state.arrays.job.view(np.ndarray)
        fresh = np.flatnonzero((job["seq"] >= self._next_seq) & (job["status"] != SLOT_EMPTY))
        for slot in fresh[np.argsort(job["seq"][fresh])].tolist():
            for partition in (int(job["own_partition"][slot]), int(job["shared_partition"][slot])):
                if partition >= 0:
                    self.arrivals_of(partition).add(job[slot])
        self._next_seq = next_seq
