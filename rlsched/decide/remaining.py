"""Predicted remaining time of running jobs; compiled."""

from __future__ import annotations

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel


@kernel
def remaining_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the predicted remaining time of a running job, seconds.

    The remaining time is the prediction less the time run, but at least 1 s, and at least half of the time
    run: run times are heavy-tailed. The time run includes the work saved by earlier attempts.
    """
    ran = now_s - s.job.start_s[slot] + s.job.saved_s[slot]
    return max(s.job.predicted_s[slot] - ran, 0.5 * ran, 1.0)
