"""Jobs that a fit can use. They are rows of a few large arrays, not one Python object per job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.predict.distribution import Floats
from rlsched.workload.predict.event_history import FEATURES

BLOCK: Final = 1024


@dataclass
class _JobBlock:
    """A block of jobs, in order of submission.

    Attributes:
        features: (BLOCK, FEATURES) float32.
        start_s: (BLOCK,) start times, seconds; nan: the job has not started, or was removed.
        duration_s: (BLOCK,) run times, seconds; nan before the end.
        here: (BLOCK,) whether the row contains a job that was not removed.
    """

    features: Floats = field(default_factory=lambda: np.zeros((BLOCK, len(FEATURES)), np.float32))
    start_s: Floats = field(default_factory=lambda: np.full(BLOCK, np.nan))
    duration_s: Floats = field(default_factory=lambda: np.full(BLOCK, np.nan))
    here: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(BLOCK, np.bool_))


class JobsInOrder:
    """Jobs in order of submission, ended or not."""

    def __init__(self) -> None:
        self._blocks: dict[int, _JobBlock] = {}
        self._row_of: dict[str, int] = {}  # rows of the jobs that have not ended
        self._rows = self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, job_id: str, features: Floats) -> None:
        """Add a submitted job with (FEATURES,) `features`."""
        if self._rows % BLOCK == 0:
            self._blocks[self._rows // BLOCK] = _JobBlock()
        block, at = self._place(self._rows)
        block.features[at], block.here[at] = features, True
        self._row_of[job_id] = self._rows
        self._rows += 1
        self._count += 1

    def set_start(self, job_id: str, at_s: float) -> None:
        """Set the start of a job; nan if the job does not run."""
        block, at = self._place(self._row_of[job_id])
        block.start_s[at] = at_s

    def record_end(self, job_id: str, duration_s: float, now_s: float) -> None:
        """Record that a job has ended. If its start was not recorded, set it to end - duration."""
        block, at = self._place(self._row_of.pop(job_id))
        block.duration_s[at] = duration_s
        if np.isnan(block.start_s[at]):
            block.start_s[at] = now_s - duration_s

    def remove_job(self, job_id: str) -> None:
        """Remove a job from which no run time can be learned."""
        row = self._row_of.pop(job_id, None)
        if row is not None:
            self._forget(row)

    def forget_oldest(self, most: int) -> None:
        """Remove ended jobs, except the `most` jobs that were submitted last."""
        over = max(self._count - most, 0)
        here = np.concatenate([first + np.flatnonzero(one.here) for first, one in self._each()] or [_NONE])
        for row in here[:over].tolist():
            block, at = self._place(row)
            if not np.isnan(block.duration_s[at]):
                self._forget(row)

    def started_jobs(self) -> tuple[NDArray[np.intp], Floats, Floats]:
        """Return the started jobs as three arrays: row index, start in s, duration in s (nan: still runs)."""
        some = [(first, one, np.flatnonzero(~np.isnan(one.start_s))) for first, one in self._each()]
        rows = np.concatenate([first + at for first, _, at in some] or [_NONE])
        start_s = np.concatenate([one.start_s[at] for _, one, at in some] or [np.empty(0)])
        duration_s = np.concatenate([one.duration_s[at] for _, one, at in some] or [np.empty(0)])
        return rows, start_s, duration_s

    def features(self, row: int) -> Floats:
        """Return the (FEATURES,) features, float32, of the job with this row index."""
        block, at = self._place(row)
        row_of_block: Floats = block.features[at]
        return row_of_block

    def _forget(self, row: int) -> None:
        block, at = self._place(row)
        block.here[at], block.start_s[at] = False, np.nan
        self._count -= 1
        if row // BLOCK < self._rows // BLOCK and not block.here.any():  # the block is full
            del self._blocks[row // BLOCK]

    def _each(self) -> Iterator[tuple[int, _JobBlock]]:
        """Yield each block with the index of its first row."""
        return ((number * BLOCK, block) for number, block in self._blocks.items())

    def _place(self, row: int) -> tuple[_JobBlock, int]:
        return self._blocks[row // BLOCK], row % BLOCK


_NONE: Final = np.empty(0, np.intp)
