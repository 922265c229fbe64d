"""Moving running jobs to defragment GPUs for a gang, compiled: which jobs move, and whether it pays.

A gang may wait although enough GPUs are free, on several nodes. The plan finds the node with the fewest GPUs
to clear such that every job that leaves it fits at once on GPUs that are free elsewhere, with the gang and
the other movers in their places; a restart is the only cost to the movers. `rules.migration` carries out the
plan.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import (
    BEST_FIT,
    CONSOLIDATE,
    MAX_TENANTS,
    NODE_UP,
    StateArrays,
)
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.compile.jit import array_kernel, kernel
from rlsched.decide.options import MigrationOptions
from rlsched.decide.remaining import remaining_s

RESTART_S: Final = 60.0
"""Assumed cost of a migration per GPU, seconds: the cost that Lucid's simulator charges jobs of more than
8 GPUs (Hu et al., ASPLOS'23). A policy does not know the true cost."""
FAR: Final = 1 << 30
"""More GPUs, and more jobs, than any cluster has: the initial value of a minimum."""


@kernel
def _may_move(s: StateArrays, p: int, slot: int, now_s: float, o: MigrationOptions) -> bool:
    """Whether a job may be moved: on whole, unshared GPUs of one node of partition `p`, and not young."""
    job = s.job
    if job.placed_in[slot] != p or job.pinned[slot] or job.share_milli[slot] != WHOLE_GPU_MILLI:
        return False
    if not job.start_s[slot] < now_s or now_s - job.start_s[slot] < o.dwell_s:
        return False
    if not s.demand.plain[job.demand[slot]] or job.gpus[slot] == 0:
        return False
    place = job.head[slot]
    while place >= 0:
        if s.gpu.node[place // MAX_TENANTS] != job.host[slot]:
            return False
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    return True


@kernel
def _goes_before(s: StateArrays, one: int, other: int) -> bool:
    """Order of moving jobs: the larger first, then the one that has run longer, then the earlier one."""
    job = s.job
    if job.gpus[one] != job.gpus[other]:
        return job.gpus[one] > job.gpus[other]
    if job.start_s[one] != job.start_s[other]:
        return job.start_s[one] < job.start_s[other]
    return job.seq[one] < job.seq[other]


@kernel
def _movable_on(
    s: StateArrays, p: int, n: int, now_s: float, o: MigrationOptions, found: NDArray[np.int64]
) -> int:
    """Write the jobs of node `n` that may move, in moving order; returns their number."""
    count = 0
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        slot = s.gpu.tenant[g, 0]
        if slot >= 0 and s.job.head[slot] // MAX_TENANTS == g and _may_move(s, p, slot, now_s, o):
            at = count
            while at > 0 and _goes_before(s, slot, found[at - 1]):
                found[at] = found[at - 1]
                at -= 1
            found[at] = slot
            count += 1
    return count


@array_kernel
def _subset(s: StateArrays, jobs: NDArray[np.int64], needed: int, few: bool) -> NDArray[np.int64]:
    """Jobs to move so that `needed` GPUs become free: fewest GPUs, then few jobs, or else many small ones.

    Ties go to the jobs that come first in `jobs`. Once a chosen job has left, the choice for the remaining
    GPUs is the remaining jobs. Empty if all together hold too few.
    """
    count, most = jobs.shape[0], 0
    for k in range(count):
        most += s.job.gpus[jobs[k]]
    if most < needed:
        return jobs[:0]
    best = np.full((count + 1, most + 1), -1)  # jobs from k on that together hold exactly this many GPUs
    best[count, 0] = 0
    for k in range(count - 1, -1, -1):
        gpus = s.job.gpus[jobs[k]]
        for held in range(most + 1):
            best[k, held] = best[k + 1, held]
            if held >= gpus and best[k + 1, held - gpus] >= 0:
                taken, left = best[k + 1, held - gpus] + 1, best[k, held]
                if left < 0 or (taken < left if few else taken > left):
                    best[k, held] = taken
    held = needed
    while best[0, held] < 0:
        held += 1
    chosen, at = np.empty(best[0, held], np.int64), 0
    for k in range(count):
        gpus = s.job.gpus[jobs[k]]
        takes = held >= gpus and best[k + 1, held - gpus] >= 0
        if takes and best[k + 1, held - gpus] + 1 == best[k, held]:
            chosen[at] = jobs[k]
            at, held = at + 1, held - gpus
    return chosen[:at]


@kernel
def put(free: NDArray[np.int64], gpus: int) -> bool:
    """Take `gpus` of the node with the fewest free ones that has them, as *consolidate*. `free`: (N,)."""
    at, least = -1, FAR
    for n in range(free.shape[0]):
        if gpus <= free[n] < least:
            at, least = n, free[n]
    if at >= 0:
        free[at] -= gpus
    return at >= 0


@kernel
def put_all(s: StateArrays, free: NDArray[np.int64], jobs: NDArray[np.int64]) -> bool:
    """Whether these jobs fit one after the other, in their order."""
    fit = True
    for k in range(jobs.shape[0]):
        fit = fit and put(free, s.job.gpus[jobs[k]])
    return fit


@array_kernel
def free_of(s: StateArrays, p: int) -> NDArray[np.int64]:
    """(N,) free GPUs of the nodes of partition `p` that are up, -1 for all others."""
    free = np.full(s.node.shape[0], -1)
    for n in range(s.node.shape[0]):
        if s.node.part_of[n] == p and s.node.status[n] == NODE_UP:
            free[n] = s.node.free[n]
    return free


@array_kernel
def merged(s: StateArrays, one: NDArray[np.int64], two: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merge two lists of jobs, the largest first; of equal jobs the earlier one."""
    jobs = np.empty(one.shape[0] + two.shape[0], np.int64)
    for k in range(jobs.shape[0]):
        slot = one[k] if k < one.shape[0] else two[k - one.shape[0]]
        at = k
        while at > 0 and _starts_before(s, slot, jobs[at - 1]):
            jobs[at] = jobs[at - 1]
            at -= 1
        jobs[at] = slot
    return jobs


@kernel
def _starts_before(s: StateArrays, one: int, other: int) -> bool:
    """Whether a moved job starts again before another one."""
    if s.job.gpus[one] != s.job.gpus[other]:
        return s.job.gpus[one] > s.job.gpus[other]
    return s.job.seq[one] < s.job.seq[other]


@kernel
def could_migrate(s: StateArrays, p: int, gpus: int) -> bool:
    """Whether moves could make room for a gang of `gpus` at all; checked before any node."""
    part, rule = s.derived.part, s.config[0].placement
    return gpus <= part.node_size[p] and gpus <= part.free_gpus[p] and rule in (CONSOLIDATE, BEST_FIT)


@array_kernel
def who_moves(
    s: StateArrays, p: int, slot: int, now_s: float, o: MigrationOptions, gone: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Choose jobs to move so that a gang fits one node of partition `p`, and all movers fit elsewhere.

    For each node two sets are tried: few large jobs, and many small ones. The node with the fewest GPUs to
    clear is chosen, then the one with the fewest jobs to move.

    Args:
        s: The state.
        p: The partition.
        slot: The gang; it does not fit now, and counts of free GPUs are sufficient to place it.
        now_s: Now.
        o: Options that determine which jobs may be moved.
        gone: Jobs that were moved and do not run yet; they need places too.

    Returns:
        Slots of the movers, in the order of preemption; empty if there is no such node.
    """
    gpus, free = s.job.gpus[slot], free_of(s, p)
    best, least, fewest = gone[:0], FAR, FAR
    if not could_migrate(s, p, gpus):
        return best
    found = np.empty(s.derived.part.node_size[p], np.int64)
    for n in range(s.node.shape[0]):
        needed = gpus - free[n]
        if free[n] < 0 or s.node.gpus[n] < gpus or needed > least:
            continue
        jobs = found[: _movable_on(s, p, n, now_s, o, found)]
        for few in (True, False):
            movers = _subset(s, jobs, needed, few)
            held = 0
            for k in range(movers.shape[0]):
                held += s.job.gpus[movers[k]]
            better = held < least or (held == least and movers.shape[0] < fewest)
            if movers.shape[0] == 0 or not better:
                continue
            left = free.copy()
            left[n] += held - gpus
            if put_all(s, left, merged(s, gone, movers)):
                best, least, fewest = movers, held, movers.shape[0]
    return best


@array_kernel
def wait_otherwise_s(s: StateArrays, p: int, gpus: int, now_s: float) -> float:
    """Predicted time until a node of partition `p` has `gpus` free GPUs without a migration, seconds.

    Running jobs end as predicted by `remaining_s`, and no job takes the GPUs that they leave.
    """
    wait_s, left_s = math.inf, np.empty(s.derived.part.node_size[p])
    for n in range(s.node.shape[0]):
        if s.node.part_of[n] != p or s.node.status[n] != NODE_UP or s.node.gpus[n] < gpus:
            continue
        for k in range(s.node.gpus[n]):
            left_s[k] = 0.0
            for tenant in s.gpu.tenant[s.node.first_gpu[n] + k]:
                if tenant >= 0:
                    left_s[k] = max(left_s[k], remaining_s(s, tenant, now_s))
        wait_s = min(wait_s, np.sort(left_s[: s.node.gpus[n]])[gpus - 1])
    return wait_s


@kernel
def pays(s: StateArrays, p: int, slot: int, movers: NDArray[np.int64], now_s: float, gain: float) -> bool:
    """Whether the predicted GPU-seconds of the gang's wait exceed the cost of the restarts."""
    if gain <= 0.0:
        return True
    restarts_gpu_s = 0.0
    for k in range(movers.shape[0]):
        restarts_gpu_s += RESTART_S * s.job.gpus[movers[k]]
    gpus = s.job.gpus[slot]
    return gpus * wait_otherwise_s(s, p, gpus, now_s) >= gain * restarts_gpu_s
