"""The rule `gittins`, compiled: order and preemption by an index.

The waiting jobs of a partition are considered in order of their index (`decide.order.gittins`), the least
first. The first job that fits starts. For a job that neither fits nor may share GPUs, running jobs whose
index is higher by more than a margin are preempted: the cheapest jobs that make room (`rules.victims`). Jobs
that started at this instant, or run on a node that is not up, are not preempted.
"""

from __future__ import annotations

import math

import numpy as np

from rlsched.cluster.arrays import Records, StateArrays
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.placement import class_fits
from rlsched.compile.jit import array_kernel, kernel, shared
from rlsched.decide.move import Move
from rlsched.decide.options import RuleOptions
from rlsched.decide.order.gittins import next_step_s
from rlsched.decide.order.keys import index_key
from rlsched.decide.rules.preempting import FAR, look_tick_s, may_claim, most_preemptible, next_by_key
from rlsched.decide.rules.victims import find_victims_for

LOOKS = True

CLAIM = np.dtype(
    [
        ("position", np.int32),  # position of the waiting job in the queue
        ("out", np.int32),  # slot of a job to preempt for the waiting job now; more jobs may follow
        ("gpus", np.int32),  # GPUs of all jobs preempted for the waiting job
        ("lead", np.float64),  # least index of these jobs minus the index of the waiting job
    ]
)
"""Preemptions needed to start a job that does not fit."""


@kernel
def begin(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> None:
    """Set the preemption score `slot.leave` of each running job to the index of the job, less the margin.

    The score of a job that must not be preempted is -inf. The scores apply to all decisions of this instant;
    `after` sets the score of a job to -inf when the job is started or preempted.
    """
    weigh_victims(s, p, o.preempts, now_s)


@kernel
def weigh_victims(s: StateArrays, p: int, preempts: bool, now_s: float) -> None:
    """Compute the preemption scores of running jobs (`begin`); if `preempts` is false, all are -inf."""
    margin = s.order.code[0].margin + s.dials.dial[p].margin
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        may = preempts and _may_be_preempted(s, p, slot, now_s)
        s.derived.slot.leave[slot] = index_key(s, slot, now_s) - margin if may else -math.inf


@kernel
def _may_be_preempted(s: StateArrays, p: int, slot: int, now_s: float) -> bool:
    """Return whether a running job may be preempted for a job that waits for partition `p`."""
    job = s.job
    whole = s.demand.share_milli[job.demand[slot]] == WHOLE_GPU_MILLI
    return job.placed_in[slot] == p and not job.pinned[slot] and job.start_s[slot] < now_s and whole


@shared
@kernel
def next_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """Return the next move: a preemption for a waiting job or, if the job fits, its start.

    No job is preempted for a job that also waits for another partition and fits there.
    """
    return next_by_key(s, p, s.derived.slot.key, o, True, now_s)


@kernel
def after(s: StateArrays, p: int, o: RuleOptions, move: Move, now_s: float) -> None:
    """Exclude the job that the move started or preempted from further preemption at this instant."""
    s.derived.slot.leave[max(move.start, move.preempt)] = -math.inf


@kernel
def next_look_s(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> float:
    """Return the next tick (multiple of `tick_s`) at which the age of a running job changes a decision.

    Infinite: there is no such tick.
    """
    return next_age_look_s(s, p, now_s) if o.preempts else math.inf


@kernel
def next_age_look_s(s: StateArrays, p: int, now_s: float) -> float:
    """Return the next tick (multiple of `tick_s`) at which the index of a running job changes.

    Infinite: no job waits, or no index changes.
    """
    look_s = math.inf
    if s.derived.part.queue_len[p] == 0:
        return look_s
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if s.job.placed_in[slot] == p and not s.job.pinned[slot]:
            look_s = min(look_s, next_step_s(s, slot, now_s))
    return look_tick_s(look_s, now_s, s.order.code[0].tick_s)


@array_kernel
def preemptions(s: StateArrays, p: int, now_s: float, found: Records) -> int:
    """Find waiting jobs for which running jobs may be preempted: the first such job of each demand class.

    The rule preempts for the first of these jobs, unless a job before it in the queue fits.

    Args:
        s: The state.
        p: The partition.
        now_s: Current time, seconds.
        found: (N,) records of type CLAIM, to which the jobs found are written.

    Returns:
        Number of jobs found, at most N.
    """
    queue, count, failed = s.derived.queue[p], 0, FAR
    if s.derived.part.queue_len[p] == 0 or s.derived.running_len[0] == 0:
        return 0
    weigh_victims(s, p, True, now_s)
    key, leave = s.derived.slot.key, s.derived.slot.leave
    most, tried = most_preemptible(s), np.zeros(s.demand.shape[0], np.bool_)
    for position in range(s.derived.part.queue_len[p]):
        slot, demand = queue[position], s.job.demand[queue[position]]
        if count == found.shape[0] or key[slot] >= most:
            break
        gpus = s.job.gpus[slot]
        if tried[demand] or gpus >= failed or class_fits(s, p, demand) or not may_claim(s, p, slot):
            continue
        out, held, lowest = find_victims_for(s, p, slot, leave, key[slot])
        tried[demand] = True
        if out < 0:
            failed = failed if s.demand.exclusive[demand] else gpus
            continue
        found.position[count], found.out[count], found.gpus[count] = position, out, held
        found.lead[count] = lowest + s.order.code[0].margin + s.dials.dial[p].margin - key[slot]
        count += 1
    return count
