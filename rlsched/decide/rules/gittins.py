"""The rule `gittins`, compiled: by an index, and preempting; who starts next, and who gives way to it.

The waiting jobs of a partition are gone through by their index (`decide.order.gittins`), the least first. The
first one that fits starts. One that does not may share GPUs, where the start options say so; else jobs whose
index is higher by a margin are preempted for it, the cheapest that make room (`rules.victims`). Jobs that are
not preemptible, that started at this very instant, or whose node is not up stay. With migration, running jobs
are moved so that a gang finds its GPUs together (`rules.migration`).
"""

from __future__ import annotations

import math

import numpy as np

from rlsched.cluster.arrays import Records, StateArrays
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.placement import class_fits
from rlsched.compile.jit import array_kernel, kernel
from rlsched.decide.constants import MIGRATES
from rlsched.decide.move import Move
from rlsched.decide.options import RuleOptions
from rlsched.decide.order.gittins import next_step_s
from rlsched.decide.order.keys import index_key
from rlsched.decide.rules.migration import next_migration_look_s, next_with_migration
from rlsched.decide.rules.migration_plan import FAR
from rlsched.decide.rules.preempting import look_tick_s, may_claim, most_preemptible, next_by_key
from rlsched.decide.rules.victims import find_victims

LOOKS = True

CLAIM = np.dtype(
    [
        ("position", np.int32),  # of the job that waits, in the queue
        ("out", np.int32),  # slot to preempt for it now; it may take more than one
        ("gpus", np.int32),  # that all who leave for it hold
        ("margin", np.float64),  # by how much the least of their indices is above its own
    ]
)
"""What it takes to start a job that does not fit."""


@kernel
def begin(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> None:
    """Work out what speaks for preempting each running job, `slot.leave`: its index, less the margin.

    That of a job that must stay is -inf. Neither these nor the keys of waiting jobs change while jobs start
    and leave at one instant, but for the jobs that do (`after`).
    """
    weigh_victims(s, p, o.preempts, now_s)


@kernel
def weigh_victims(s: StateArrays, p: int, preempts: bool, now_s: float) -> None:
    """`begin`, of jobs that may be preempted or, without `preempts`, of none."""
    margin = s.order.code[0].margin + s.dials.dial[p].margin
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        may = preempts and _may_be_preempted(s, p, slot, now_s)
        s.derived.slot.leave[slot] = index_key(s, slot, now_s) - margin if may else -math.inf


@kernel
def _may_be_preempted(s: StateArrays, p: int, slot: int, now_s: float) -> bool:
    """Whether a running job may be preempted for one that waits for partition `p`."""
    job = s.job
    whole = s.demand.share_milli[job.demand[slot]] == WHOLE_GPU_MILLI
    return job.placed_in[slot] == p and not job.pinned[slot] and job.start_s[slot] < now_s and whole


@kernel
def next_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """Preempt, or start, one job: a job that others are preempted for starts when enough of them have left.

    Nobody is preempted for a job that fits the other partition that it waits for: it starts there.
    """
    if MIGRATES:
        return next_with_migration(s, p, now_s, o)
    return next_by_key(s, p, s.derived.slot.key, o, True, now_s)


@kernel
def after(s: StateArrays, p: int, o: RuleOptions, move: Move, now_s: float) -> None:
    """A job that has just started, or been preempted, is not preempted at this instant."""
    s.derived.slot.leave[max(move.start, move.preempt)] = -math.inf


@kernel
def next_look_s(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> float:
    """When ages next change what the rule says of partition `p`, at a tick; infinite: never."""
    look_s = next_age_look_s(s, p, now_s) if o.preempts else math.inf
    if MIGRATES:
        look_s = min(look_s, next_migration_look_s(s, p, now_s, o.migration))
    return look_s


@kernel
def next_age_look_s(s: StateArrays, p: int, now_s: float) -> float:
    """When the age of a running job next changes its index, at a tick; infinite where no job waits."""
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
    """The first jobs of the queue for which running ones may be preempted, one a demand class.

    The queue goes by the index: a later job of the same class may have no more preempted for it. The first of
    them is the one that the rule would preempt for, unless a job before it fits.

    Args:
        s: The state.
        p: The partition.
        now_s: Now.
        found: (N,) CLAIM, where to write.

    Returns:
        How many there are, N at most.
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
        out, held, lowest = find_victims(s, p, gpus, leave, key[slot])
        tried[demand] = True
        if out < 0:
            failed = gpus
            continue
        found.position[count], found.out[count], found.gpus[count] = position, out, held
        found.margin[count] = lowest + s.order.code[0].margin + s.dials.dial[p].margin - key[slot]
        count += 1
    return count
