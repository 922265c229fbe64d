"""The gate to the queue, compiled: which jobs are eligible, by dependencies and the limits of arrays."""

from __future__ import annotations

from rlsched.jit import kernel
from rlsched_envs.life_arrays import AT_GATE, HELD_BACK, LET_IN, READY, LifeArrays


@kernel
def may_enter(life: LifeArrays, row: int) -> bool:
    """Whether all that a row waits for have ended, and its array has room."""
    if life.jobs.waits_for[row] > 0:
        return False
    a = life.jobs.array[row]
    return a < 0 or life.arrays.inside[a] < life.arrays.limit[a]


@kernel
def make_ready(life: LifeArrays, row: int) -> None:
    """A job that was held back becomes eligible: it comes to the queue at this instant, in row order."""
    life.jobs.stage[row] = LET_IN
    life.counts[AT_GATE] -= 1
    if life.jobs.array[row] >= 0:
        life.arrays.inside[life.jobs.array[row]] += 1
    ready, at = life.ready, life.counts[READY]
    ready[at] = row
    life.counts[READY] += 1
    while at > 0 and ready[at] < ready[(at - 1) // 2]:
        ready[at], ready[(at - 1) // 2] = ready[(at - 1) // 2], ready[at]
        at = (at - 1) // 2


@kernel
def pop_ready(life: LifeArrays) -> int:
    """The first row, in row order, of those that are ready."""
    ready = life.ready
    row = ready[0]
    last = life.counts[READY] - 1
    life.counts[READY] = last
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
def next_task(life: LifeArrays, a: int) -> None:
    """A task of an array has ended: the first one that only the limit held back becomes eligible."""
    arrays = life.arrays
    arrays.inside[a] -= 1
    position = arrays.passed[a]
    while position < arrays.length[a] and life.jobs.stage[life.tasks[arrays.first[a] + position]] == LET_IN:
        position += 1
    arrays.passed[a] = position
    while position < arrays.length[a]:
        row = life.tasks[arrays.first[a] + position]
        if life.jobs.stage[row] == HELD_BACK and may_enter(life, row):
            make_ready(life, row)
            return
        position += 1
