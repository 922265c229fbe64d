"""Running jobs whose SM clock a rule would choose otherwise now, compiled: who changes next, and to which.

A clock that was chosen by the queue's length (`abilities.weighed_level`, or in a lull) is out of date once
the queue has grown or shrunk. Jobs are looked at where decisions are made, after those of the partition, and
keep a clock for `Abilities.dwell_s` at least.
"""

from __future__ import annotations

import math

from rlsched.cluster.arrays import MAX_TENANTS, StateArrays
from rlsched.decide.abilities import AbilityCode, clock_for
from rlsched.jit import kernel, large_kernel
from rlsched.models.speed import gpu_kind


@kernel
def kept_s(s: StateArrays, slot: int, now_s: float) -> float:
    """How long a running job has had its clock, seconds."""
    return now_s - max(s.job.start_s[slot], s.job.clocked_s[slot])


@large_kernel
def next_reclock(s: StateArrays, p: int, first: int, now_s: float, can: AbilityCode) -> tuple[int, float]:
    """(position, clock) of the next running job of partition `p` that changes its clock; (-1, 1) for none.

    Positions are those of the index of running jobs, from `first` on. A job that has changed does not change
    again at the same instant.
    """
    if can.dwell_s == math.inf or not s.config[0].modelled:
        return -1, 1.0
    for position in range(first, s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if s.job.placed_in[slot] == p and s.job.head[slot] >= 0 and kept_s(s, slot, now_s) >= can.dwell_s:
            clock = clock_for(s, p, slot, gpu_kind(s, s.job.head[slot] // MAX_TENANTS), can)
            if clock != s.job.sm_clock_frac[slot] and not _is_fixed(s, slot):
                return position, clock
    return -1, 1.0


@kernel
def _is_fixed(s: StateArrays, slot: int) -> bool:
    """Whether nobody can set the clocks of some of a running job's GPUs."""
    place = s.job.head[slot]
    while place >= 0:
        if s.node.fixed_clock[s.gpu.node[place // MAX_TENANTS]]:
            return True
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    return False
