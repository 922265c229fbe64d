"""Compiled functions for the slack of jobs: the delay that their users accept.

With the setting `slack`, jobs with slack come later in the queue than other jobs at first, so that jobs
without slack wait less. Once most of their slack is used, they come earlier.
"""

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


@kernel
def slack_ln_weight(s: StateArrays, slot: int, now_s: float) -> float:
    """Return ln(weight) of a live job by the fraction of its slack that it has used; 0: it has no slack.

    The weights are settings (`rlsched.decide.settings.SlackSettings`).
    """
    code = s.order.code[0]
    if s.job.slack_s[slot] <= 0.0:
        return 0.0
    if deferred_until_s(s, slot, code.early_until, now_s) > now_s:
        return code.early_ln_weight
    return 0.0 if deferred_until_s(s, slot, code.late_from, now_s) > now_s else code.late_ln_weight


@kernel
def next_slack_change_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the time at which `slack_ln_weight` of a waiting job changes next, seconds; infinite: never."""
    code = s.order.code[0]
    if s.job.slack_s[slot] <= 0.0 or (code.early_ln_weight == 0.0 and code.late_ln_weight == 0.0):
        return np.inf
    early_s = deferred_until_s(s, slot, code.early_until, now_s)
    late_s = deferred_until_s(s, slot, code.late_from, now_s)
    return early_s if early_s > now_s else late_s if late_s > now_s else np.inf
