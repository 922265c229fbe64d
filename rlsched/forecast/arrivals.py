"""Chooses past arrivals of jobs, which futures (simulated runs from now on) repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

BLOCK_S: Final = 6 * 3600.0
"""Length of a time block, seconds. A future repeats all arrivals of a past block, to preserve bursts."""
DAY_S: Final = 86_400.0
DAYS: Final = 7
KEPT_S: Final = (DAYS + 1) * DAY_S
LEAST_S: Final = 600.0
"""Minimum length of the known past, seconds; a shorter past is not repeated."""
MOST: Final = 50_000
"""Maximum number of arrivals that are stored."""

CAME: Final = np.dtype(
    [
        ("number", np.int64),  # number of the job
        ("submit_s", np.float64),
        ("run_s", np.float64),  # run time; nan: unknown, because the job has not ended
        ("predicted_s", np.float64),
        ("spread", np.float64),
        ("limit_s", np.float64),  # time limit; nan: no limit
        ("demand", np.int32),  # demand class of the job
        ("vc", np.int32),
        ("pinned", np.int32),  # 1: must not be preempted
    ]
)
"""Fields of an arrived job. The partition is not stored, because added nodes can change it."""


class RecentJobs:
    """Jobs that arrived in the last 8 days.

    Attributes:
        since_s: Time from which on all arrivals are known; infinite before the first arrival.
    """

    def __init__(self) -> None:
        self._rows = np.zeros(1024, CAME)
        self._first = self._end = 0
        self._at: dict[int, int] = {}
        self.since_s = np.inf

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def rows(self) -> NDArray[np.void]:
        """The recent jobs in order of arrival, (N,) CAME."""
        return self._rows[self._first : self._end]

    def add(self, row: tuple[float, ...]) -> None:
        """Add a job, given as a tuple of the fields of `CAME`."""
        if self._end == len(self._rows):
            self._make_room()
        self._rows[self._end] = row
        self._at[int(row[0])] = self._end
        self.since_s = min(self.since_s, float(row[1]))
        self._end += 1
        self._forget(float(row[1]))

    def ran(self, number: int, run_s: float) -> None:
        """Record the run time of a job, seconds."""
        at = self._at.get(number, -1)
        if at >= self._first:
            self._rows["run_s"][at] = run_s

    def unfinished(self) -> list[int]:
        """Return the numbers of the jobs with unknown run times."""
        numbers: list[int] = self.rows["number"][np.isnan(self.rows["run_s"])].tolist()
        return numbers

    def places(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return the (L,) positions in `rows` of the jobs with these IDs; -1: the job is not stored."""
        at = np.array([self._at.get(number, -1) for number in numbers], np.int64)
        return np.where(at >= self._first, at - self._first, -1)

    def _forget(self, now_s: float) -> None:
        while self._end - self._first > MOST or self._rows["submit_s"][self._first] < now_s - KEPT_S:
            gone = self._rows[self._first]
            self._at.pop(int(gone["number"]), None)
            self._first += 1
            self.since_s = max(self.since_s, float(gone["submit_s"]))

    def _make_room(self) -> None:
        kept = self.rows.copy()
        self._rows = np.zeros(max(1024, 2 * len(kept)), CAME)
        self._rows[: len(kept)] = kept
        self._at = {number: at for at, number in enumerate(kept["number"].tolist())}
        self._first, self._end = 0, len(kept)

    def next_block(self, now_s: float, block: int, draws: np.random.Generator) -> tuple[slice, float]:
        """Choose the past arrivals that one time block of a future repeats.

        Return (slice of `rows`, seconds to add to their submission times). Block 0 repeats the most recent
        hours with probability 1/2. Otherwise a block repeats the same hours of a random earlier day. If no
        earlier day with these hours is known, block 0 repeats the most recent hours, and every other block
        random known hours.

        Args:
            now_s: Present time.
            block: Index of the block; block 0 begins now.
            draws: Random numbers.
        """
        known_s = now_s - self.since_s
        if len(self) == 0 or known_s < LEAST_S:
            return slice(0, 0), 0.0
        length_s = min(BLOCK_S, known_s)
        begin_s = now_s + block * BLOCK_S
        first_day = int(np.ceil((begin_s + BLOCK_S - now_s) / DAY_S))
        last_day = min(int((begin_s - self.since_s) // DAY_S), first_day + DAYS - 1)
        if last_day < first_day or (block == 0 and draws.random() < 0.5):
            from_s = now_s - length_s
            if block > 0:
                from_s = self.since_s + draws.random() * (known_s - length_s)
        else:
            from_s = begin_s - DAY_S * draws.integers(first_day, last_day + 1)
            length_s = BLOCK_S
        submit_s = self.rows["submit_s"]
        low, high = np.searchsorted(submit_s, (from_s, from_s + length_s))
        return slice(int(low), int(high)), begin_s - from_s
