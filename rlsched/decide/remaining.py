"""Predicted remaining time of running jobs; compiled."""

from __future__ import annotations

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel


@kernel
def remaining_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Predicted remaining time of a running job, seconds.

    The prediction less the time run and the time that earlier attempts saved. Once the prediction is nearly
    used up: half of the time that the job has run (the longer a heavy-tailed job has lasted, the longer it
    will last).
    """
    ran = now_s - s.job.start_s[slot] + s.job.saved_s[slot]
    return max(s.job.predicted_s[slot] - ran, 0.5 * ran, 1.0)
