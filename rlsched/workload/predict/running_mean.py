"""Run times predicted from history: a running mean over the ended jobs, by VC and number of GPUs."""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.trace import Trace

PRIOR_S = 1800.0
"""Predicted run time while no job has ended yet, s: between the medians of Helios and Philly."""
PRIOR_SPREAD = 2.0
_PRIOR_WEIGHT = 3.0
_FALLBACK_WEIGHT = 5.0

Key = tuple[str, int]


class RunningMean:
    """Mean and spread of ln(run time) of the ended jobs with the same VC and number of GPUs.

    Each mean is shrunk towards the next wider one: by VC and number of GPUs, by number of GPUs, of all jobs,
    prior (`PRIOR_S`, `PRIOR_SPREAD`). A mean of k jobs has weight k, the wider mean weight 5, and the prior
    weight 3.

    Because of the logarithm, a single job of several weeks does not dominate the mean. The prediction
    exp(mean) is a median.
    """

    def __init__(self) -> None:
        self._sums: dict[Key, tuple[int, float, float]] = {}

    @property
    def sums(self) -> dict[Key, tuple[int, float, float]]:
        """Sums of the ended jobs by key: number of jobs, sum of ln(run time / 1 s), sum of the squared ln.

        A key is (VC, GPUs), (`*`, GPUs) for all VCs, or (`*`, 0) for all jobs.
        """
        return dict(self._sums)

    def restore_sums(self, sums: dict[Key, tuple[int, float, float]]) -> None:
        """Replace all sums by values that the property `sums` had in an earlier process."""
        self._sums = dict(sums)

    def observe(self, vc: str, gpus: int, duration_s: float) -> None:
        """Record that a job has ended."""
        x = math.log(max(duration_s, 1.0))
        for key in ((vc, gpus), ("*", gpus), ("*", 0)):
            count, total, squares = self._sums.get(key, (0, 0.0, 0.0))
            self._sums[key] = (count + 1, total + x, squares + x * x)

    def predict(self, vc: str, gpus: int) -> tuple[float, float]:
        """Return (predicted run time in s, spread) for a job that is submitted now."""
        mean, variance = math.log(PRIOR_S), PRIOR_SPREAD**2
        weight = _PRIOR_WEIGHT
        for key in (("*", 0), ("*", gpus), (vc, gpus)):
            count, total, squares = self._sums.get(key, (0, 0.0, 0.0))
            if count:
                second = (squares + weight * (variance + mean * mean)) / (count + weight)
                mean = (total + weight * mean) / (count + weight)
                variance = max(second - mean * mean, 1e-4)
            weight = _FALLBACK_WEIGHT
        return math.exp(mean), math.sqrt(variance)


def causal_predictions(
    trace: Trace, end_s: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predict every job at its submission from the jobs that had ended by then.

    Args:
        trace: J jobs.
        end_s: (J,) end of each job in the history, seconds, nan if it never ended.

    Returns:
        (J,) predicted run times in s, at most the user's limit, and (J,) spreads.
    """
    model = RunningMean()
    ended: list[tuple[float, int]] = []
    predicted, spread = np.empty(len(trace)), np.empty(len(trace))
    gpus = trace.num_gpus.astype(np.int64).tolist()
    vcs, durations, ends = trace.vc.tolist(), trace.duration_s.tolist(), end_s.tolist()
    for row, now_s in enumerate(trace.submit_s.tolist()):
        while ended and ended[0][0] <= now_s:
            _, past = heapq.heappop(ended)
            model.observe(vcs[past], gpus[past], durations[past])
        predicted[row], spread[row] = model.predict(vcs[row], gpus[row])
        if math.isfinite(ends[row]):
            heapq.heappush(ended, (ends[row], row))
    return np.fmin(predicted, trace.time_limit_s), spread


def own_spread(trace: Trace, end_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (J,) spread of the trace's own predictions, as known when each job is submitted.

    The spread is the root mean square of ln(true / predicted), computed from a prior value and from the jobs
    with predictions that had ended by then.

    Args:
        trace: J jobs with predictions.
        end_s: (J,) end of each job in the history, seconds, nan if it never ended.
    """
    out = np.empty(len(trace))
    ended: list[tuple[float, int]] = []
    count, squares = _FALLBACK_WEIGHT, _FALLBACK_WEIGHT * PRIOR_SPREAD**2
    error = np.log(np.maximum(trace.duration_s, 1.0) / np.maximum(trace.predicted_s, 1.0))
    for row, now_s in enumerate(trace.submit_s.tolist()):
        while ended and ended[0][0] <= now_s:
            past = heapq.heappop(ended)[1]
            count, squares = count + 1, squares + float(error[past]) ** 2
        out[row] = math.sqrt(squares / count)
        if math.isfinite(end_s[row]) and math.isfinite(error[row]):
            heapq.heappush(ended, (float(end_s[row]), row))
    return out
