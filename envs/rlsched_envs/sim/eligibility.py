"""Compiled functions that determine when a job may enter the queue: dependencies, limits of job arrays."""

from __future__ import annotations

from rlsched.compile.jit import kernel
from rlsched.workload.dependencies import AFTER, ENDED_OTHERWISE, MET, NEVER, RESULTS, STARTED
from rlsched_envs.sim.attempt_arrays import CANCELLED, HELD_BACK, LEFT_OUT, LET_IN, AttemptArrays


@kernel
def may_enter(log: AttemptArrays, row: int) -> bool:
    """Return whether the dependencies of a job are met, and its job array is below its limit."""
    if log.jobs.waits_for[row] > 0:
        return False
    a = log.jobs.array[row]
    return a < 0 or log.arrays.inside[a] < log.arrays.limit[a]


@kernel
def hold_back(log: AttemptArrays, row: int) -> None:
    """Keep a newly submitted job out of the queue. Cancel it if a dependency of the job can never be met."""
    log.jobs.stage[row] = HELD_BACK
    log.counters[0].held_back += 1
    if log.jobs.hopeless[row]:
        _cancel(log, row)
        _resolve_cancelled(log)


@kernel
def resolve(log: AttemptArrays, row: int, event: int) -> None:
    """Update the jobs that depend on a job which has started or ended.

    `event`: STARTED, COMPLETED or ENDED_OTHERWISE (`rlsched.workload.dependencies`).
    """
    _resolve_children(log, row, event)
    _resolve_cancelled(log)


@kernel
def _resolve_cancelled(log: AttemptArrays) -> None:
    while log.counters[0].cancelled > 0:
        log.counters[0].cancelled -= 1
        _resolve_children(log, log.cancelled[log.counters[0].cancelled], ENDED_OTHERWISE)


@kernel
def _resolve_children(log: AttemptArrays, row: int, event: int) -> None:
    jobs = log.jobs
    for position in range(jobs.first_child[row], jobs.first_child[row] + jobs.children[row]):
        child, kind = log.children.row[position], log.children.kind[position]
        if event != STARTED and kind == AFTER and jobs.latest[row] >= 0:
            continue  # met by the start
        result = RESULTS[event][kind]
        if result == MET:
            jobs.waits_for[child] -= 1
            if jobs.stage[child] == HELD_BACK and may_enter(log, child):
                make_ready(log, child)
        elif result == NEVER:
            jobs.hopeless[child] = 1
            if jobs.stage[child] == HELD_BACK:
                _cancel(log, child)


@kernel
def _cancel(log: AttemptArrays, row: int) -> None:
    """Cancel a held-back job. Call `_resolve_cancelled` afterwards."""
    log.jobs.stage[row], log.jobs.over_by[row] = LEFT_OUT, CANCELLED
    log.counters[0].held_back -= 1
    log.cancelled[log.counters[0].cancelled] = row
    log.counters[0].cancelled += 1


@kernel
def make_ready(log: AttemptArrays, row: int) -> None:
    """Make a held-back job eligible, and add it to the heap `ready`, which is in the order of the trace."""
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
    """Remove the first job in trace order from the heap `ready`, and return its row."""
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
    """Record the end of a task of job array `a`. If the array's limit now admits a task, make it eligible."""
    arrays = log.arrays
    arrays.inside[a] -= 1
    position = arrays.passed[a]
    while position < arrays.length[a] and log.jobs.stage[log.tasks[arrays.first[a] + position]] >= LET_IN:
        position += 1
    arrays.passed[a] = position
    while position < arrays.length[a]:
        row = log.tasks[arrays.first[a] + position]
        if log.jobs.stage[row] == HELD_BACK and may_enter(log, row):
            make_ready(log, row)
            return
        position += 1
