"""Computes the past GPU use of users at each submission, from the recorded history, for fair share."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.trace import Trace

Floats = NDArray[np.float64]
HALF_LIFE_S: Final = 7 * 86400.0
"""Half-life of past use, seconds; the default of Slurm's `PriorityDecayHalfLife`."""
_ENDS, _ASKS, _STARTS = range(3)


def used_at_submission(trace: Trace, start_s: Floats, half_life_s: float = HALF_LIFE_S) -> Floats:
    """Return the (J,) GPU-seconds that the user of each job had used when the job was submitted.

    Past use decays exponentially.

    Args:
        trace: J jobs.
        start_s: (J,) start of each job, seconds of the trace; nan: the job did not start.
        half_life_s: Half-life of the decay, seconds.
    """
    used = np.zeros(len(trace))
    if not len(trace):
        return used
    _, user = np.unique(trace.user, return_inverse=True)
    jobs = np.arange(len(trace))
    ran = jobs[np.isfinite(start_s)]
    at_s = np.concatenate(((start_s + trace.duration_s)[ran], trace.submit_s, start_s[ran]))
    kind = np.repeat((_ENDS, _ASKS, _STARTS), (len(ran), len(jobs), len(ran)))
    of = np.concatenate((ran, jobs, ran))
    order = np.lexsort((kind, at_s, user[of]))
    decay = np.log(2.0) / half_life_s
    before, then_s, total, rate = -1, 0.0, 0.0, 0.0
    rows = zip(at_s[order].tolist(), kind[order].tolist(), of[order].tolist(), strict=True)
    whose, gpus = user.tolist(), trace.num_gpus.tolist()
    for now_s, what, job in rows:
        if whose[job] != before:
            before, then_s, total, rate = whose[job], now_s, 0.0, 0.0
        kept = float(np.exp(-decay * (now_s - then_s)))
        total, then_s = total * kept + rate * (1.0 - kept) / decay, now_s
        if what == _ASKS:
            used[job] = total
        else:
            rate += gpus[job] if what == _STARTS else -gpus[job]
    return used
