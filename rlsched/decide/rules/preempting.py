"""Compiled parts of rules that preempt by sort keys: the next job, and the jobs to preempt for it.

A running job may be preempted for a waiting job if its preemption score (`slot.leave`) is above the sort key
of the waiting job.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.placement import BY_RULE, class_fits
from rlsched.compile.jit import array_kernel, kernel
from rlsched.decide.move import Move, nothing, preempt_of, start_of
from rlsched.decide.options import NEVER, RuleOptions, may_share
from rlsched.decide.plans.best import (
    LOOK_AT,
    MOST_WAITERS,
    best_partner,
    fails_as,
    start_of_best,
    waits_for_better,
)
from rlsched.decide.plans.plan import ends_by_gpu
from rlsched.decide.rules.victims import find_victims_for

FAR: Final = 1 << 30
"""A number of GPUs above that of any cluster: the initial value in a search for a minimum."""


@kernel
def _elsewhere(s: StateArrays, p: int, slot: int) -> int:
    """Return the second partition for which a job in the queue of partition `p` waits, -1 for none."""
    own = s.job.own_partition[slot]
    return s.job.shared_partition[slot] if own == p else own


@kernel
def may_claim(s: StateArrays, p: int, slot: int) -> bool:
    """Return whether running jobs may be preempted for a job that waits for partition `p`.

    Return False unless the job's request is `plain` (counts of free GPUs decide whether it fits) or
    `exclusive` (whole nodes). Also return False if the job waits for a second partition and fits there now.
    """
    other, demand = _elsewhere(s, p, slot), s.job.demand[slot]
    may = s.demand.plain[demand] or s.demand.exclusive[demand]
    return may and (other < 0 or not class_fits(s, other, demand))


@kernel
def most_preemptible(s: StateArrays) -> float:
    """Return the highest preemption score of all running jobs, -inf if none may be preempted."""
    most = -math.inf
    for position in range(s.derived.running_len[0]):
        most = max(most, s.derived.slot.leave[s.derived.slot.running[position]])
    return most


@array_kernel
def next_by_key(
    s: StateArrays, p: int, key: NDArray[np.float64], o: RuleOptions, preempts: bool, now_s: float
) -> Move:
    """Return the next move of a rule that orders waiting jobs by `key` (J,), least first.

    Without `preempts`, no job is preempted. If a job can neither start nor preempt, later jobs with the same
    request that wait for the same partitions are skipped.
    """
    queue, waiting, partitions = s.derived.queue[p], s.derived.part.queue_len[p], s.derived.part.shape[0]
    left, kind = np.empty(waiting), np.empty(waiting, np.int64)
    for position in range(waiting):
        slot = queue[position]
        left[position] = key[slot]
        kind[position] = s.job.demand[slot] * (partitions + 1) + _elsewhere(s, p, slot) + 1
    passed = np.zeros(s.demand.shape[0] * (partitions + 1), np.bool_)
    most = most_preemptible(s) if preempts else -math.inf
    failed, looked, waiters, alone = FAR, 0, 0, np.empty(LOOK_AT, np.int64)
    ends_s = ends_by_gpu(s, p, now_s, o.start)
    while True:
        at, least = -1, math.inf
        for position in range(waiting):
            if left[position] < least and not passed[kind[position]]:
                at, least = position, left[position]
        if at < 0:
            return nothing()
        slot, demand = queue[at], s.job.demand[queue[at]]
        if class_fits(s, p, demand):
            if waiters < MOST_WAITERS and waits_for_better(s, p, slot, o.start, now_s, ends_s, BY_RULE):
                left[at] = math.inf
                waiters += 1
                continue
            return start_of_best(s, p, slot, o.start, now_s)
        if may_share(s) and o.start.share != NEVER and looked < LOOK_AT:
            known = False
            for before in range(looked):
                known = known or fails_as(s, p, slot, alone[before], o.start)
            alone[looked] = slot
            looked += 1
            partner = -1 if known else best_partner(s, p, slot, o.start, now_s)
            if partner >= 0:
                return start_of(slot, partner)
            left[at] = math.inf
        else:
            passed[kind[at]] = True
        if least < most and s.job.gpus[slot] < failed and may_claim(s, p, slot):
            out = find_victims_for(s, p, slot, s.derived.slot.leave, least)[0]
            if out >= 0:
                return preempt_of(out, slot)
            if not s.demand.exclusive[demand]:
                failed = s.job.gpus[slot]


@kernel
def look_tick_s(look_s: float, now_s: float, tick_s: float) -> float:
    """Return the first multiple of `tick_s` after now that is at least `look_s`; infinite if `look_s` is."""
    if look_s == math.inf:
        return look_s
    tick = np.ceil(look_s / tick_s) * tick_s
    return tick if tick > now_s else tick + tick_s
