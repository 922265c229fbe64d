"""Compiled functions that count arrivals and prediction errors, as input for the dials.

Simulator and broker call these functions when a job arrives and when it ends.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.dials import SPANS_S
from rlsched.compile.jit import kernel

EVERY_S: Final = 600.0
EVERY_ARRIVALS: Final = 32
"""The dials are updated after `EVERY_S` seconds, or after `EVERY_ARRIVALS` arrivals, whichever is first."""
REMEMBERED_ENDS: Final = 200.0
"""The average of prediction errors covers about this number of the latest finished jobs."""
_SPANS: Final = len(SPANS_S)
_STEPS: Final = 2.0**18


@kernel
def partition_of(s: StateArrays, slot: int) -> int:
    """Return the partition in which a job is counted: the partition of its VC, else the shared partition."""
    own = s.job.own_partition[slot]
    return own if own >= 0 else s.job.shared_partition[slot]


@kernel
def reset_dials(s: StateArrays) -> None:
    """Set all dials to 0 and clear the counts."""
    dials, counts = s.dials.dial.view(np.int64), s.dials.counted.view(np.float64)
    for k in range(dials.shape[0]):
        dials[k] = 0
    for k in range(counts.shape[0]):
        counts[k] = 0.0


@kernel
def fade(s: StateArrays, p: int, now_s: float) -> None:
    """Update the counts of arrivals in partition `p`, which decay exponentially, to the time `now_s`."""
    c = s.dials.counted[p]
    for k in range(_SPANS):
        left = math.exp(-(now_s - c.noted_s) / SPANS_S[k])
        c.jobs[k] *= left
        c.gpu_s[k] *= left
    c.noted_s = now_s


@kernel
def note_arrival(s: StateArrays, slot: int, now_s: float) -> None:
    """Count the arrival of a job in its partition; needed only if dials are in use."""
    p = partition_of(s, slot)
    c = s.dials.counted[p]
    if c.noted_s == 0.0 and c.jobs[_SPANS - 1] == 0.0:
        c.first_s = c.noted_s = now_s
    fade(s, p, now_s)
    work_gpu_s = s.job.predicted_s[slot] * max(s.job.gpus[slot], 1) * s.job.share_milli[slot] / 1000.0
    for k in range(_SPANS):
        c.jobs[k] += 1.0
        c.gpu_s[k] += work_gpu_s
    s.dials.dial[p].arrivals += 1
    _look_whether_due(s, p, now_s)


@kernel
def note_end(s: StateArrays, slot: int, run_s: float, now_s: float) -> None:
    """Count a finished job and its prediction error; `run_s`: total run time of its attempts, seconds."""
    p = partition_of(s, slot)
    c = s.dials.counted[p]
    if now_s != c.ended_s:
        join_ends(s, p)
        c.ended_s = now_s
    log_predicted, log_ran = _exact_log(s.job.predicted_s[slot]), _exact_log(run_s)
    c.ended[1] += 1.0
    c.log_predicted[1] += log_predicted
    c.log_ran[1] += log_ran
    c.log_predicted_square[1] += log_predicted * log_predicted
    c.log_ran_square[1] += log_ran * log_ran
    c.log_product[1] += log_predicted * log_ran
    _look_whether_due(s, p, now_s)


@kernel
def _exact_log(time_s: float) -> float:
    """Return ln(`time_s`), rounded so that sums of several results do not depend on the order of addition."""
    return np.round(math.log(max(time_s, 1.0)) * _STEPS) / _STEPS


@kernel
def join_ends(s: StateArrays, p: int) -> None:
    """Add the latest jobs to the decaying sums over finished jobs.

    The latest jobs are all jobs that ended at the last instant at which a job ended. Their sums are separate
    until this call.
    """
    c = s.dials.counted[p]
    left = (1.0 - 1.0 / REMEMBERED_ENDS) ** c.ended[1]
    c.ended[0] = c.ended[0] * left + c.ended[1]
    c.log_predicted[0] = c.log_predicted[0] * left + c.log_predicted[1]
    c.log_ran[0] = c.log_ran[0] * left + c.log_ran[1]
    c.log_predicted_square[0] = c.log_predicted_square[0] * left + c.log_predicted_square[1]
    c.log_ran_square[0] = c.log_ran_square[0] * left + c.log_ran_square[1]
    c.log_product[0] = c.log_product[0] * left + c.log_product[1]
    c.ended[1] = c.log_predicted[1] = c.log_ran[1] = 0.0
    c.log_predicted_square[1] = c.log_ran_square[1] = c.log_product[1] = 0.0


@kernel
def _look_whether_due(s: StateArrays, p: int, now_s: float) -> None:
    d = s.dials.dial[p]
    if d.arrivals >= EVERY_ARRIVALS or now_s >= d.next_s:
        d.due = 1
