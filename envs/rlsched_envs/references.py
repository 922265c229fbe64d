"""`gittins` and `easy:size` as references of an episode, compiled, by the order of the queue.

The same rules as in `index_loop` and `room_loop`, on the lighter books of `simulation`: nothing else
interrupts a job here.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import INDEX, StateArrays
from rlsched.cluster.gittins import default_code
from rlsched.decide.abilities import AbilityCode
from rlsched.decide.easy import PATIENCE_S, next_by_easy
from rlsched.decide.index_walk import indices, move_index, next_look_s, next_of
from rlsched.jit import array_kernel, large_kernel, wide
from rlsched_envs.able_starts import BY_RULE, join, place
from rlsched_envs.physics import JOBS_J, JOBS_W, LOST_RATE, LOST_S
from rlsched_envs.simulation import (
    FINISHED,
    HEAP_LEN,
    MOVED,
    NEED_SLOTS,
    NEXT_ROW,
    NOW,
    PREEMPTIONS,
    QUEUED_S,
    STARTS,
    STOPPED,
    TIMER,
    SimArrays,
    next_instant,
    note_start,
    preempt_slot,
    start_slot,
)


@array_kernel
def _decide_in(sim: SimArrays, p: int, can: AbilityCode, restart_s: float) -> None:
    """All decisions of one partition in one pass."""
    s, now_s, c = sim.state, sim.progress.clock[NOW], default_code()
    if s.derived.part.queue_len[p] == 0:
        return
    key, leave = indices(s, p, now_s, c, True)
    while True:
        out, into, beside = next_of(s, p, key, leave, can)
        if out >= 0:
            preempt_slot(sim, out, restart_s)
            move_index(s, now_s, c, out, key, leave)
        elif into < 0:
            return
        elif not s.config[0].modelled:
            if not start_slot(sim, p, into, -1):
                return
        elif beside >= 0:
            join(sim, p, wide(into), wide(beside), BY_RULE, can)
            note_start(sim, into)
        elif place(sim, p, wide(into), wide(-1), BY_RULE, can):
            note_start(sim, into)
        else:
            return


@large_kernel
def _reserve_in(sim: SimArrays, p: int) -> None:
    """All decisions of one partition by EASY."""
    s, now_s = sim.state, sim.progress.clock[NOW]
    at = next_by_easy(s, p, now_s, PATIENCE_S)
    while at >= 0 and start_slot(sim, p, s.derived.queue[p, at], -1):
        at = next_by_easy(s, p, now_s, PATIENCE_S)


@large_kernel
def next_tick_s(s: StateArrays, now_s: float) -> float:
    """When the rule looks again though no event happens until then; infinite: never."""
    look_s = math.inf
    if s.config[0].order != INDEX:
        return look_s
    for p in range(s.derived.part.shape[0]):
        look_s = min(look_s, next_look_s(s, p, now_s, default_code(), True))
    return look_s


@large_kernel
def _decide(sim: SimArrays, can: AbilityCode, restart_s: float) -> None:
    """All decisions of one instant: every partition again after a pass with a preemption."""
    if sim.state.config[0].order != INDEX:
        for p in range(sim.state.derived.part.shape[0]):
            _reserve_in(sim, wide(p))
        return
    tally, before = sim.progress.tally, -1
    while tally[PREEMPTIONS] != before:
        before = tally[PREEMPTIONS]
        for p in range(sim.state.derived.part.shape[0]):
            _decide_in(sim, wide(p), can, restart_s)
    sim.progress.clock[TIMER] = next_tick_s(sim.state, sim.progress.clock[NOW])


@large_kernel
def run_reference(sim: SimArrays, can: AbilityCode, restart_s: float, until_row: int) -> int:
    """`simulation.run_rule` for these rules; a restart costs so many seconds."""
    while sim.progress.tally[NEXT_ROW] < until_row:
        moved = next_instant(sim)
        if moved != MOVED:
            return moved
        _decide(sim, can, restart_s)
    return STOPPED


@large_kernel
def run_reference_recording(
    sim: SimArrays,
    can: AbilityCode,
    restart_s: float,
    at_s: NDArray[np.float64],
    cost_s: NDArray[np.float64],
    slope: NDArray[np.float64],
    energy_j: NDArray[np.float64],
    power_w: NDArray[np.float64],
) -> int:
    """`able_starts.run_able_recording` for these rules, without ticks at which nothing happens.

    Returns how many instants there were, -1 if slots ran out or the arrays were too short.
    """
    r, sums, k = sim.progress, sim.progress.clock, 0
    modelled = sim.state.config[0].modelled != 0
    while True:
        arrived, started = r.tally[NEXT_ROW], r.tally[STARTS]
        running, preempted = r.tally[HEAP_LEN], r.tally[PREEMPTIONS]
        moved = next_instant(sim)
        if moved == NEED_SLOTS:
            return -1
        if moved == FINISHED:
            return k
        _decide(sim, can, restart_s)
        same_jobs = arrived == r.tally[NEXT_ROW] and started == r.tally[STARTS]
        if same_jobs and running == r.tally[HEAP_LEN] and preempted == r.tally[PREEMPTIONS]:
            continue  # a tick at which the rule had nothing to say
        if k == at_s.shape[0]:
            return -1
        at_s[k] = r.clock[NOW]
        cost_s[k], slope[k] = r.clock[QUEUED_S], r.tally[NEXT_ROW] - r.tally[STARTS]
        if modelled:
            cost_s[k] += sums[LOST_S]
            slope[k] += sums[LOST_RATE]
            energy_j[k], power_w[k] = sums[JOBS_J], sums[JOBS_W]
        k += 1
