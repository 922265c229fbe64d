"""Compiled functions for the clearing time: the time in which a partition's GPUs complete all predicted work.

With the setting `price.spare`, jobs that wait for a lower price return to the queue in time for it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.cluster.arrays import DEFERRED, RUNNING, WAITING, StateArrays
from rlsched.compile.jit import kernel
from rlsched.decide.dials.counting import partition_of
from rlsched.decide.order.slack import deferred_until_s, slack_ends_s
from rlsched.decide.remaining import remaining_s

STEP_S: Final = 600.0
"""Clearing times are rounded up to a multiple of this, seconds.

Otherwise, the end of a deferral would move with each second of run time, and require a decision each time.
"""


@kernel
def predicted_left_s(s: StateArrays, slot: int) -> float:
    """Return the predicted run time of a waiting job, less the work saved by earlier attempts, seconds."""
    return max(s.job.predicted_s[slot] - s.job.saved_s[slot], 1.0)


@kernel
def sum_work(s: StateArrays, now_s: float) -> None:
    """Set `part.work_gpu_ms` of each partition: predicted GPU time that its jobs need from now on.

    A waiting job counts in the partition of its VC, else in the shared partition. Run times are rounded up to
    whole seconds, so that the sum does not depend on the order of the jobs. Later calls at the same instant
    change nothing: decisions of an instant do not affect each other through the sum.
    """
    job, part = s.job, s.derived.part
    if s.scratch[0].summed_s == now_s:
        return
    s.scratch[0].summed_s = now_s
    for p in range(part.shape[0]):
        part.work_gpu_ms[p] = 0
    for at in range(job.shape[0] - s.counters[0].live_jobs, job.shape[0]):
        slot = s.derived.slot.stack[at]
        if job.status[slot] == RUNNING:
            left_s, p = remaining_s(s, slot, now_s), job.placed_in[slot]
        elif job.status[slot] in (WAITING, DEFERRED):
            left_s, p = predicted_left_s(s, slot), partition_of(s, slot)
        else:
            continue
        part.work_gpu_ms[p] += int(np.ceil(left_s)) * job.gpus[slot] * job.share_milli[slot]


@kernel
def latest_wait_s(s: StateArrays, slot: int, frac: float, spare: float, now_s: float) -> float:
    """Return the time, seconds, until which a job may wait for a lower price.

    The job may use `frac` (0 to 1) of its slack. It must return to the queue earlier than its slack ends, by
    `spare` times the clearing time. `sum_work` has set the work of this instant. The result is a whole number
    of milliseconds, like the times of a broker.
    """
    until_s = deferred_until_s(s, slot, frac, now_s)
    if spare <= 0.0:
        return until_s
    part = s.derived.part[partition_of(s, slot)]
    clearing_s = part.work_gpu_ms / 1000.0 / max(part.open_gpus, 1)
    latest_s = slack_ends_s(s, slot, now_s) - np.ceil(spare * clearing_s / STEP_S) * STEP_S
    return min(until_s, np.round(latest_s * 1000.0) / 1000.0)
