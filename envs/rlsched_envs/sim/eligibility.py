"""Compiled functions that determine when a job may enter the queue: dependencies, limits of job arrays."""

from __future__ import annotations

from rlsched.compile.jit import kernel
from rlsched_envs.sim.attempt_arrays import HELD_BACK, LET_IN, AttemptArrays


@kernel
def may_enter(log: AttemptArrays, row: int) -> bool:
    """Return whether the dependencies of a job have ended, and its job array is below the array's limit."""
    if log.jobs.waits_for[row] > 0:
        return False
    a = log.jobs.array[row]
    return a < 0 or log.arrays.inside[a] < log.arrays.limit[a]


@kernel
def make_ready(log: AttemptArrays, row: int) -> None:
    """Make a held-back job eligible, and add it to the heap `ready`. Jobs leave the heap in row order."""
    log.jobs.stage[row] = LET_IN
    log.counters[0].held_back -= 1
    if log.jobs.array[row] >= 0:
        log.arrays.inside[log.jobs.array[row]] += 1
    ready, at = log.ready, log.counters[0].ready
    ready[at] = row
    log.counters[0].ready += 1
    while at > 0 and ready[at] < ready[(at - 1) // 2]:
        ready[at], ready[(at - 1) // 2] = ready[(at - 1) // 2], ready[at]
        at = (at - 1) // 2


@kernel
def pop_ready(log: AttemptArrays) -> int:
    """Remove the lowest row from the heap `ready`, and return it."""
    ready = log.ready
    row = ready[0]
    last = log.counters[0].ready - 1
    log.counters[0].ready = last
    ready[0] = ready[last]
    at = 0
    while 2 * at + 1 < last:
        child = 2 * at + 1
        if child + 1 < last and ready[child + 1] < ready[child]:
            child += 1
        if ready[at] <= ready[child]:
            break
        ready[at], ready[child] = ready[child], ready[at]
        at = child
    return row


@kernel
def next_task(log: AttemptArrays, a: int) -> None:
    """Record the end of a task of array `a`. If another task waits only for the limit, make it eligible."""
    arrays = log.arrays
    arrays.inside[a] -= 1
    position = arrays.passed[a]
    while position < arrays.length[a] and log.jobs.stage[log.tasks[arrays.first[a] + position]] == LET_IN:
        position += 1
    arrays.passed[a] = position
    while position < arrays.length[a]:
        row = log.tasks[arrays.first[a] + position]
        if log.jobs.stage[row] == HELD_BACK and may_enter(log, row):
            make_ready(log, row)
            return
        position += 1
