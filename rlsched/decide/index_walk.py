"""Rules that go by an index and may preempt, compiled: who starts next, and who gives way to it.

The waiting jobs of a partition are gone through by their index (`cluster.gittins`), the least first. The
first one that fits starts. One that does not may share GPUs, where the rule has that ability; else jobs
whose index is higher by a margin are preempted for it, the cheapest that make room (`decide.evict`). Jobs
that are not preemptible, that started at this very instant, or whose node is not up stay.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, StateArrays
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.gittins import Gittins, GittinsCode, job_index, next_step_s
from rlsched.cluster.placement import class_fits
from rlsched.decide.abilities import LOOK_AT, NEVER, AbilityCode, best_partner
from rlsched.decide.evict import who_leaves
from rlsched.decide.repack import FAR, Repack
from rlsched.decide.rules import Rule
from rlsched.jit import array_kernel, kernel

PREEMPTION = np.dtype(
    [
        ("position", np.int32),  # of the job that waits, in the queue
        ("out", np.int32),  # slot to preempt for it now; it may take more than one
        ("gpus", np.int32),  # that all who leave for it hold
        ("margin", np.float64),  # by how much the least of their indices is above its own
    ]
)
"""What it takes to start a job that does not fit."""


class IndexRule(Rule, frozen=True, kw_only=True):
    """A rule that goes by an index.

    Attributes:
        index: How the index is made.
        preempts: Whether it preempts; else it only starts jobs, in the order of their indices.
        repack: When it moves running jobs so that a gang finds its GPUs together; None: never.
    """

    index: Gittins
    preempts: bool = True
    repack: Repack | None = None


@kernel
def _may_leave(s: StateArrays, p: int, slot: int, now_s: float) -> bool:
    """Whether a running job may be preempted for one that waits for partition `p`."""
    job = s.job
    whole = s.demand.share_milli[job.demand[slot]] == WHOLE_GPU_MILLI
    return job.placed_in[slot] == p and not job.pinned[slot] and job.start_s[slot] < now_s and whole


@array_kernel
def indices(
    s: StateArrays, p: int, now_s: float, c: GittinsCode, preempts: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What decides in partition `p` at one instant.

    Neither changes while jobs start and leave at that instant, but for the slots that do (`move_index`).

    Returns:
        (J,) index of each waiting slot; (J,) index of each running slot that may be preempted, less the
        margin, -inf of all others.
    """
    key, leave = np.empty(s.job.shape[0]), np.full(s.job.shape[0], -math.inf)
    for position in range(s.derived.part.queue_len[p]):
        slot = s.derived.queue[p, position]
        key[slot] = job_index(s.job, c, slot, now_s)
    if preempts and s.derived.part.queue_len[p] > 0:
        for position in range(s.derived.running_len[0]):
            slot = s.derived.slot.running[position]
            if _may_leave(s, p, slot, now_s):
                leave[slot] = job_index(s.job, c, slot, now_s) - c.margin
    return key, leave


@kernel
def move_index(
    s: StateArrays,
    now_s: float,
    c: GittinsCode,
    slot: int,
    key: NDArray[np.float64],
    leave: NDArray[np.float64],
) -> None:
    """A slot has just been preempted: it waits from now on."""
    key[slot], leave[slot] = job_index(s.job, c, slot, now_s), -math.inf


@kernel
def _elsewhere(s: StateArrays, p: int, slot: int) -> int:
    """The other partition that a job of partition `p` waits for, -1 for none."""
    own = s.job.own_partition[slot]
    return s.job.shared_partition[slot] if own == p else own


@kernel
def may_claim(s: StateArrays, p: int, slot: int) -> bool:
    """Whether jobs of partition `p` may be preempted for this one: nobody is, where it fits elsewhere."""
    other, demand = _elsewhere(s, p, slot), s.job.demand[slot]
    return s.demand.plain[demand] and (other < 0 or not class_fits(s, other, demand))


@array_kernel
def next_of(
    s: StateArrays, p: int, key: NDArray[np.float64], leave: NDArray[np.float64], can: AbilityCode
) -> tuple[int, int, int]:
    """`next_by_index` by these `indices`.

    What fits, and what room can be made, is the same for all jobs that ask for the same and wait for the
    same partitions: once the first of them has found nothing, the others are passed over.
    """
    queue, waiting, partitions = s.derived.queue[p], s.derived.part.queue_len[p], s.derived.part.shape[0]
    left, kind = np.empty(waiting), np.empty(waiting, np.int64)
    for position in range(waiting):
        slot = queue[position]
        left[position] = key[slot]
        kind[position] = s.job.demand[slot] * (partitions + 1) + _elsewhere(s, p, slot) + 1
    passed = np.zeros(s.demand.shape[0] * (partitions + 1), np.bool_)
    most = leave.max()
    failed, looked = FAR, 0
    while True:
        at, least = -1, math.inf
        for position in range(waiting):
            if left[position] < least and not passed[kind[position]]:
                at, least = position, left[position]
        if at < 0:
            return -1, -1, -1
        slot, demand = queue[at], s.job.demand[queue[at]]
        if class_fits(s, p, demand):
            return -1, slot, -1
        if can.share != NEVER and looked < LOOK_AT and s.config[0].modelled:
            looked += 1
            beside = best_partner(s, p, slot, can)
            if beside >= 0:
                return -1, slot, beside
            left[at] = math.inf
        else:
            passed[kind[at]] = True
        if least < most and s.job.gpus[slot] < failed and may_claim(s, p, slot):
            out = who_leaves(s, p, s.job.gpus[slot], leave, least)[0]
            if out >= 0:
                return out, -1, -1
            failed = s.job.gpus[slot]


@array_kernel
def next_by_index(
    s: StateArrays, p: int, now_s: float, c: GittinsCode, can: AbilityCode, preempts: bool
) -> tuple[int, int, int]:
    """(slot to preempt, slot to start, running slot it shares GPUs with), each -1: what comes next.

    One at a time: a job that another is preempted for starts when enough of them have left. Nobody is
    preempted for a job that fits the other partition that it waits for: it starts there.
    """
    key, leave = indices(s, p, now_s, c, preempts)
    return next_of(s, p, key, leave, can)


@array_kernel
def preemptions(s: StateArrays, p: int, now_s: float, c: GittinsCode, found: Records) -> int:
    """The first jobs of the queue for which running ones may be preempted, one a demand class.

    The queue goes by the index: a later job of the same class may have no more preempted for it. The first of
    them is the one that `next_by_index` would preempt for, unless a job before it fits.

    Args:
        s: The state.
        p: The partition.
        now_s: Now.
        c: How the index is made.
        found: (N,) PREEMPTION, where to write.

    Returns:
        How many there are, N at most.
    """
    queue, count, failed = s.derived.queue[p], 0, FAR
    if s.derived.part.queue_len[p] == 0 or s.derived.running_len[0] == 0:
        return 0
    key, leave = indices(s, p, now_s, c, True)
    most, tried = leave.max(), np.zeros(s.demand.shape[0], np.bool_)
    for position in range(s.derived.part.queue_len[p]):
        slot, demand = queue[position], s.job.demand[queue[position]]
        if count == found.shape[0] or key[slot] >= most:
            break
        gpus = s.job.gpus[slot]
        if tried[demand] or gpus >= failed or class_fits(s, p, demand) or not may_claim(s, p, slot):
            continue
        out, held, lowest = who_leaves(s, p, gpus, leave, key[slot])
        tried[demand] = True
        if out < 0:
            failed = gpus
            continue
        found.position[count], found.out[count], found.gpus[count] = position, out, held
        found.margin[count] = lowest + c.margin - key[slot]
        count += 1
    return count


@kernel
def look_tick_s(look_s: float, now_s: float, tick_s: float) -> float:
    """The first tick after now that is not before `look_s`; infinite where that is."""
    if look_s == math.inf:
        return look_s
    tick = np.ceil(look_s / tick_s) * tick_s
    return tick if tick > now_s else tick + tick_s


@kernel
def next_look_s(s: StateArrays, p: int, now_s: float, c: GittinsCode, preempts: bool) -> float:
    """When the age of a running job next changes what the rule says of partition `p`, at a tick; or infinite.

    Nothing changes where nobody waits.
    """
    look_s = math.inf
    if s.derived.part.queue_len[p] == 0 or not preempts:
        return look_s
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if s.job.placed_in[slot] == p and not s.job.pinned[slot]:
            look_s = min(look_s, next_step_s(s.job, c, slot, now_s))
    return look_tick_s(look_s, now_s, c.tick_s)
