"""The compiled loop of rules that preempt: the quota walk at every instant that is a tick."""

from __future__ import annotations

import numpy as np

from rlsched.cluster.placement import fits_slot
from rlsched.decide.quota_walk import is_tick, next_look_s, walk
from rlsched.jit import array_kernel, kernel
from rlsched_envs.life import has_room, next_instant, note_start, preempt_slot
from rlsched_envs.life_arrays import NEED_ROOM, UNDECIDED, LifeArrays
from rlsched_envs.simulation import MOVED, NEXT_ROW, NOW, STOPPED, TIMER, SimArrays, allocate_slot


@array_kernel
def _decide_in(sim: SimArrays, life: LifeArrays, p: int, threshold_gpu_s: float) -> bool:
    """Follow the walk of partition `p` until it says nothing new; returns whether a job was preempted."""
    s, now_s = sim.state, sim.progress.clock[NOW]
    preempted, again = False, True
    while again:
        again = False
        preempt, start = walk(s, p, now_s, threshold_gpu_s)
        for slot in preempt:
            preempt_slot(sim, life, slot)
            preempted = True
        for slot in start:
            if fits_slot(s, p, slot):
                allocate_slot(sim, p, slot, -1)
                note_start(sim, life, slot)
                if s.job.pinned[slot]:
                    again = True
                    break
    return preempted


@kernel
def _decide(sim: SimArrays, life: LifeArrays, threshold_gpu_s: float, tick_s: float) -> None:
    """All decisions of one instant, as `decide.loop.decide_all` asks for them, and the next timer."""
    s, clock = sim.state, sim.progress.clock
    partitions = s.derived.part.shape[0]
    again = is_tick(clock[NOW], tick_s)
    while again:
        again = False
        for p in range(partitions):
            if _decide_in(sim, life, p, threshold_gpu_s):
                again = True
    clock[TIMER] = np.inf
    for p in range(partitions):
        clock[TIMER] = min(clock[TIMER], next_look_s(s, p, clock[NOW], threshold_gpu_s, tick_s))


@kernel
def run_walk(sim: SimArrays, life: LifeArrays, threshold_gpu_s: float, tick_s: float, until_row: int) -> int:
    """`life.run_rule` for a rule that preempts: MOVED never, else what that returns."""
    while life.counts[UNDECIDED] or sim.progress.tally[NEXT_ROW] < until_row:
        if not life.counts[UNDECIDED]:
            moved = next_instant(sim, life)
            if moved != MOVED:
                return moved
            life.counts[UNDECIDED] = 1
        if not has_room(sim, life, sim.state.counters[0].live_jobs):
            return NEED_ROOM
        _decide(sim, life, threshold_gpu_s, tick_s)
        life.counts[UNDECIDED] = 0
    return STOPPED
