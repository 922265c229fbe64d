"""Compiled functions for the slack of jobs: the delay that their users accept."""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.compile.jit import kernel
from rlsched.decide.order.gittins import attained_gpu_s

MOST_SLACK_FRAC: Final = 0.8
"""Largest fraction of its slack that a job may use to wait for a lower price; the rest is for queueing.
"""


@kernel
def deferred_until_s(s: StateArrays, slot: int, frac: float, now_s: float) -> float:
    """Return the time, seconds, until which a job may be deferred if it may use `frac` (0 to 1) of its slack.

    Time on shared GPUs uses up a part of the slack, other run time uses none. The result is rounded up to
    whole milliseconds, like the times of a broker.
    """
    job = s.job
    gpus = max(job.gpus[slot], 1) * s.demand.share_milli[job.demand[slot]] / WHOLE_GPU_MILLI
    until_s = job.submit_s[slot] + attained_gpu_s(s, slot, now_s) / gpus + frac * job.slack_s[slot]
    return np.ceil(until_s * 1000.0) / 1000.0


@kernel
def slack_ends_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the time, seconds, at which a job has used up its slack if it waits from now on."""
    return deferred_until_s(s, slot, 1.0, now_s)
