"""Migration in progress, compiled: the next move, and the places promised to the gang and the moved jobs.

Movers are preempted one after the other, each with the number of its gang (`job.moved_for`). While one of
them does not run, the gang precedes all other jobs of the partition until it starts, then the moved jobs
follow, the largest first. The plan was made in that order (`migration_plan.who_moves`), and nothing else has
happened since, so they find their places. If stopping takes time, as in a broker, other jobs start meanwhile
only if the promised places stay free, and no job is preempted in that partition.

A gang that is preempted or fails afterwards loses its claim: the claim belongs to one attempt
(`job.moved_attempt`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import LEAVING, WAITING, StateArrays
from rlsched.cluster.placement import class_fits
from rlsched.compile.jit import array_kernel, kernel
from rlsched.decide.move import Move, move_of, nothing, start_of
from rlsched.decide.options import MigrationOptions, RuleOptions
from rlsched.decide.rules.migration_plan import (
    FAR,
    could_migrate,
    free_of,
    merged,
    pays,
    put,
    put_all,
    who_moves,
)
from rlsched.decide.rules.preempting import look_tick_s, may_claim, next_by_key


@array_kernel
def first_migration(s: StateArrays, p: int, now_s: float, o: MigrationOptions) -> tuple[int, int]:
    """Return (slot to preempt, waiting slot it makes room for) of the next migration; (-1, -1) for none.

    The waiting jobs are considered by key, the least first, one per demand class.
    """
    queue, tried, fits_none = s.derived.queue[p], np.zeros(s.demand.shape[0], np.bool_), FAR
    key = s.derived.slot.key
    gone = np.empty(0, np.int64)
    while True:
        slot, least = -1, math.inf
        for position in range(s.derived.part.queue_len[p]):
            one = queue[position]
            if key[one] < least and not tried[s.job.demand[one]]:
                slot, least = one, key[one]
        if slot < 0:
            return -1, -1
        tried[s.job.demand[slot]] = True
        gpus = s.job.gpus[slot]
        could = 0 < gpus < fits_none and could_migrate(s, p, gpus)
        if could and may_claim(s, p, slot) and not class_fits(s, p, s.job.demand[slot]):
            movers = who_moves(s, p, slot, now_s, o, gone)
            if movers.shape[0] == 0:
                fits_none = gpus
            elif pays(s, p, slot, movers, now_s, o.gain):
                return movers[0], slot


# ---- promised places ------------------------------------------------------------------------------


@kernel
def _is_away(s: StateArrays, p: int, slot: int) -> bool:
    """Whether a live job was moved, does not run yet, and may run in partition `p`."""
    away = s.job.moved_for[slot] >= 0 and s.job.status[slot] in (WAITING, LEAVING)
    return away and p in (s.job.own_partition[slot], s.job.shared_partition[slot])


@array_kernel
def moved_jobs(s: StateArrays, p: int) -> NDArray[np.int64]:
    """Slots of moved jobs that do not run yet and may run in partition `p`, in restart order."""
    first, count = s.job.shape[0] - s.counters[0].live_jobs, 0
    for at in range(first, s.job.shape[0]):
        count += _is_away(s, p, s.derived.slot.stack[at])
    jobs = np.empty(count, np.int64)
    if count == 0:
        return jobs
    count = 0
    for at in range(first, s.job.shape[0]):
        if _is_away(s, p, s.derived.slot.stack[at]):
            jobs[count] = s.derived.slot.stack[at]
            count += 1
    return merged(s, jobs, jobs[:0])


@kernel
def _claimant(s: StateArrays, p: int, gone: NDArray[np.int64]) -> int:
    """Return the waiting slot of partition `p` that a job was moved for, -1 if it has started since."""
    for position in range(s.derived.part.queue_len[p]):
        slot = s.derived.queue[p, position]
        for k in range(gone.shape[0]):
            same = s.job.moved_for[gone[k]] == s.job.seq[slot]
            if same and s.job.moved_attempt[gone[k]] == s.job.attempt[slot]:
                return slot
    return -1


@array_kernel
def promises_stand(s: StateArrays, p: int, gone: NDArray[np.int64]) -> bool:
    """Whether some moved jobs have not left yet, and all of them find their places."""
    leaving = False
    for k in range(gone.shape[0]):
        leaving = leaving or s.job.status[gone[k]] == LEAVING
    return leaving and put_all(s, free_of(s, p), gone)


@array_kernel
def keeps_promises(s: StateArrays, p: int, slot: int, gone: NDArray[np.int64]) -> bool:
    """Whether the moved jobs still find their places if the job in `slot` starts in partition `p`."""
    free = free_of(s, p)
    whole = s.demand.plain[s.job.demand[slot]] and s.job.gpus[slot] > 0
    return whole and put(free, s.job.gpus[slot]) and put_all(s, free, gone)


@array_kernel
def next_owed(s: StateArrays, p: int, now_s: float, o: MigrationOptions, gone: NDArray[np.int64]) -> Move:
    """Return the next move of a migration in progress; a move that does nothing if there is none.

    `gone`: result of `moved_jobs`.
    """
    if gone.shape[0] == 0:
        return nothing()
    gang = _claimant(s, p, gone)
    if gang >= 0:
        if class_fits(s, p, s.job.demand[gang]):
            return start_of(gang, -1)
        movers = who_moves(s, p, gang, now_s, o, gone)
        if movers.shape[0] > 0:
            return move_of(movers[0], gang)
    for k in range(gone.shape[0]):
        if s.job.status[gone[k]] == WAITING and class_fits(s, p, s.job.demand[gone[k]]):
            return start_of(gone[k], -1)
    return nothing()


@array_kernel
def next_with_migration(s: StateArrays, p: int, now_s: float, o: RuleOptions) -> Move:
    """`preempting.next_by_key` of a rule that moves running jobs."""
    gone = moved_jobs(s, p)
    move = next_owed(s, p, now_s, o.migration, gone)
    if move.preempt >= 0 or move.start >= 0:
        return move
    if promises_stand(s, p, gone):
        return _beside_promises(s, p, o, gone, now_s)
    move = next_by_key(s, p, s.derived.slot.key, o, True, now_s)
    if gone.shape[0] == 0 and move.start < 0 and (move.preempt < 0 or o.migration.first):
        mover, gang = first_migration(s, p, now_s, o.migration)
        if mover >= 0:
            return move_of(mover, gang)
    return move


@array_kernel
def _beside_promises(s: StateArrays, p: int, o: RuleOptions, gone: NDArray[np.int64], now_s: float) -> Move:
    """Return the next start that keeps the places promised to moved jobs; preempts no job."""
    key, open_key = s.derived.slot.key, s.derived.slot.open_key
    for position in range(s.derived.part.queue_len[p]):
        slot = s.derived.queue[p, position]
        open_key[slot] = key[slot]
    while True:
        move = next_by_key(s, p, open_key, o, False, now_s)
        if move.start < 0 or move.share_with >= 0 or keeps_promises(s, p, move.start, gone):
            return move
        open_key[move.start] = math.inf


@array_kernel
def owed(s: StateArrays, p: int, now_s: float, o: MigrationOptions) -> Move:
    """`next_owed` in partition `p` now."""
    return next_owed(s, p, now_s, o, moved_jobs(s, p))


@array_kernel
def may_still_start(s: StateArrays, p: int, slot: int) -> bool:
    """Whether a job may start in partition `p` while moved jobs leave; -1: whether one may be preempted."""
    gone = moved_jobs(s, p)
    return not promises_stand(s, p, gone) or (slot >= 0 and keeps_promises(s, p, slot, gone))


@array_kernel
def next_migration(s: StateArrays, p: int, now_s: float, o: MigrationOptions) -> tuple[int, int]:
    """`first_migration`, unless a previously moved job has still to start."""
    if moved_jobs(s, p).shape[0] > 0:
        return -1, -1
    return first_migration(s, p, now_s, o)


@kernel
def next_migration_look_s(s: StateArrays, p: int, now_s: float, o: MigrationOptions) -> float:
    """Return when a running job of partition `p` next has run long enough to be moved, at a tick.

    Infinite if no waiting job could use the move.
    """
    look_s, wanted = math.inf, False
    for position in range(s.derived.part.queue_len[p]):
        slot = s.derived.queue[p, position]
        could = s.demand.plain[s.job.demand[slot]] and s.job.gpus[slot] > 1
        wanted = wanted or (could and could_migrate(s, p, s.job.gpus[slot]))
    if not wanted:
        return look_s
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        may_s = s.job.start_s[slot] + o.dwell_s
        if may_s > now_s and s.job.placed_in[slot] == p and not s.job.pinned[slot]:
            look_s = min(look_s, may_s)
    return look_tick_s(look_s, now_s, s.order.code[0].tick_s)
