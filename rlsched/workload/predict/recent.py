"""Accuracy of the predictions for recently ended jobs, compared with the running mean for the same jobs."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np

from rlsched.workload.predict.distribution import Floats
from rlsched.workload.predict.quality import MIN_JOBS, quality

LAST_JOBS: Final = 200
WEEK_S: Final = 7 * 86400.0
MAX_JOBS: Final = 5000
"""Maximum number of ended jobs that are stored: the jobs that ended last."""


class _Ended(NamedTuple):
    ended_s: float
    duration_s: float
    gpus: int
    predicted: Floats  # (BINS,) float32
    mean: Floats


class PredictorComparison(NamedTuple):
    """Accuracy of two predictors on the same ended jobs.

    Attributes:
        jobs: Number of jobs.
        since_s: Time at which the first of these jobs ended, Unix seconds; None without jobs.
        predicted: `quality` of the predictor in use; None for fewer than `MIN_JOBS` jobs.
        running_mean: `quality` of the running mean for the same jobs; None for fewer than `MIN_JOBS` jobs.
    """

    jobs: int
    since_s: float | None
    predicted: dict[str, Any] | None
    running_mean: dict[str, Any] | None


class Recent:
    """The latest ended jobs and their predictions at submission."""

    def __init__(self) -> None:
        self._ended: deque[_Ended] = deque(maxlen=MAX_JOBS)
        self._known: tuple[tuple[int, int], tuple[PredictorComparison, PredictorComparison]] | None = None
        self.count = 0

    def add(self, ended_s: float, duration_s: float, gpus: int, predicted: Floats, mean: Floats) -> None:
        """Record an ended job, with two (BINS,) distributions of its run time, predicted at its submission.

        `predicted` is from the predictor in use, `mean` from the running mean.
        """
        self._ended.append(
            _Ended(ended_s, duration_s, gpus, predicted.astype(np.float32), mean.astype(np.float32))
        )
        self.count += 1

    def compared(self, now_s: float) -> tuple[PredictorComparison, PredictorComparison]:
        """Compare the predictor in use with the running mean, on recently ended jobs.

        Return two comparisons: one for the last `LAST_JOBS` jobs, one for the jobs of the last seven days.

        The result is cached until another job ends, but for at most one minute.
        """
        key = (self.count, int(now_s // 60))
        if self._known is None or self._known[0] != key:
            week = [one for one in self._ended if one.ended_s >= now_s - WEEK_S]
            self._known = (key, (_compare(list(self._ended)[-LAST_JOBS:]), _compare(week)))
        return self._known[1]


def _compare(ended: list[_Ended]) -> PredictorComparison:
    since_s = ended[0].ended_s if ended else None
    if len(ended) < MIN_JOBS:
        return PredictorComparison(len(ended), since_s, None, None)
    duration_s = np.array([one.duration_s for one in ended])
    gpus = np.array([one.gpus for one in ended], dtype=np.float64)
    predicted, mean = (
        np.array(rows, dtype=np.float64) for rows in zip(*(one[3:] for one in ended), strict=True)
    )
    return PredictorComparison(
        len(ended), since_s, quality(predicted, duration_s, gpus), quality(mean, duration_s, gpus)
    )
