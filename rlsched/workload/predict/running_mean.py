"""Run times predicted from history: a causal running mean by VC and number of GPUs.

The same class serves the simulator (`causal_predictions`, for a whole trace) and the broker, which passes it
the jobs that have ended.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.trace import Trace

PRIOR_S = 1800.0
"""Predicted run time before any job has ended, s: between the medians of Helios and Philly."""
PRIOR_SPREAD = 2.0
_PRIOR_WEIGHT = 3.0
_FALLBACK_WEIGHT = 5.0

Key = tuple[str, int]


class RunningMean:
    """Mean and spread of ln(run time) of the ended jobs of the same VC and number of GPUs.

    The mean of a key with few jobs is shrunk towards the mean of all jobs with the same number of GPUs. This
    mean is shrunk towards the mean of all jobs, and the mean of all jobs towards a prior (`PRIOR_S`,
    `PRIOR_SPREAD`). A mean of k jobs has weight k, the next wider mean has weight 5, and the prior has weight
    3. Because of the logarithm, a single job of several weeks does not dominate the mean. The prediction is
    therefore a median, and the spread is the standard deviation of ln(run time / prediction).
    """

    def __init__(self) -> None:
        self._sums: dict[Key, tuple[int, float, float]] = {}

    @property
    def sums(self) -> dict[Key, tuple[int, float, float]]:
        """Return (VC or `*`, GPUs or 0) -> (jobs, sum of ln(run time / 1 s), sum of the squared ln)."""
        return dict(self._sums)

    def restore_sums(self, sums: dict[Key, tuple[int, float, float]]) -> None:
        """Replace all sums by the property `sums` of an earlier running mean."""
        self._sums = dict(sums)

    def observe(self, vc: str, gpus: int, duration_s: float) -> None:
        """Record that a job has ended."""
        x = math.log(max(duration_s, 1.0))
        for key in ((vc, gpus), ("*", gpus), ("*", 0)):
            count, total, squares = self._sums.get(key, (0, 0.0, 0.0))
            self._sums[key] = (count + 1, total + x, squares + x * x)

    def predict(self, vc: str, gpus: int) -> tuple[float, float]:
        """Return (predicted run time in s, spread) for a job that arrives now."""
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
    """Predict every job at its arrival from the jobs that had ended by then.

    Args:
        trace: J jobs.
        end_s: (J,) end of each job in the reference history, nan if it never ended.

    Returns:
        (J,) predicted run times in s, at most the user's limit, and (J,) spreads. A job's own true duration
        influences no prediction at or before its arrival.
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
    """Return the (J,) spread of the predictions that the trace contains, as known when each job is submitted.

    The spread is the root mean square of ln(true / predicted) over a prior and over all jobs with a
    prediction that have ended before the submission. `end_s`: (J,) end of each job in the reference history,
    nan if it never ended.
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
