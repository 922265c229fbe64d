"""How long running jobs still need, as predicted; compiled."""

from __future__ import annotations

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel


@kernel
def remaining_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Predicted time that a running job still needs, seconds.

    What is left of the prediction, less what earlier attempts have saved; once that is nearly used up, half
    of the time it has run (the longer a heavy-tailed job has lasted, the longer it will).
    """
    ran = now_s - s.job.start_s[slot] + s.job.saved_s[slot]
    return max(s.job.predicted_s[slot] - ran, 0.5 * ran, 1.0)
