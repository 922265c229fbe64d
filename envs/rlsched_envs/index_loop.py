"""The compiled loop of rules that go by an index: with or without models, preempting or not."""

from __future__ import annotations

import math

from rlsched.cluster.gittins import GittinsCode
from rlsched.cluster.kernels import note_moved
from rlsched.decide.abilities import AbilityCode
from rlsched.decide.index_walk import indices, move_index, next_look_s, next_of
from rlsched.decide.repack import RepackCode
from rlsched.decide.repack_walk import next_beside, next_move_look_s
from rlsched.jit import array_kernel, kernel, large_kernel, wide
from rlsched_envs.able_starts import BY_RULE, join, place, reclock
from rlsched_envs.life import has_room, next_instant, note_start, preempt_slot
from rlsched_envs.life_arrays import NEED_ROOM, UNDECIDED, LifeArrays
from rlsched_envs.simulation import MOVED, NEXT_ROW, NOW, STOPPED, TIMER, SimArrays, allocate_slot


@kernel
def _start(sim: SimArrays, life: LifeArrays, p: int, slot: int, beside: int, can: AbilityCode) -> bool:
    """Start a job on free GPUs, or on those of `beside`; False where there is no place after all."""
    if beside >= 0:
        join(sim, p, wide(slot), wide(beside), BY_RULE, can)
    elif sim.state.config[0].modelled:
        if not place(sim, p, wide(slot), wide(-1), BY_RULE, can):
            return False
    elif not allocate_slot(sim, p, slot, -1):
        return False
    note_start(sim, life, slot)
    return True


@array_kernel
def _decide_in(
    sim: SimArrays, life: LifeArrays, p: int, c: GittinsCode, can: AbilityCode, preempts: bool, r: RepackCode
) -> bool:
    """All decisions of one partition at one instant; returns whether a job was preempted."""
    s, now_s, preempted = sim.state, sim.progress.clock[NOW], False
    if s.derived.part.queue_len[p] == 0:
        reclock(sim, p, can)
        return False
    key, leave = indices(s, p, now_s, c, preempts)
    while True:
        gang = -1
        if r.wanted:
            out, into, beside, gang = next_beside(s, p, now_s, key, leave, can, r)
        else:
            out, into, beside = next_of(s, p, key, leave, can)
        if out >= 0:
            preempt_slot(sim, life, out)
            note_moved(s, out, gang)
            move_index(s, now_s, c, out, key, leave)
            preempted = True
        elif into < 0 or not _start(sim, life, p, into, beside, can):
            reclock(sim, p, can)
            return preempted


@kernel
def _decide(
    sim: SimArrays, life: LifeArrays, c: GittinsCode, can: AbilityCode, preempts: bool, r: RepackCode
) -> None:
    """All decisions of one instant, as `decide.loop.decide_all` asks for them, and the next timer."""
    s, clock = sim.state, sim.progress.clock
    partitions, again = s.derived.part.shape[0], True
    while again:
        again = False
        for p in range(partitions):
            again = _decide_in(sim, life, wide(p), c, can, preempts, r) or again
    clock[TIMER] = math.inf
    for p in range(partitions):
        clock[TIMER] = min(clock[TIMER], next_look_s(s, p, clock[NOW], c, preempts))
        if r.wanted:
            clock[TIMER] = min(clock[TIMER], next_move_look_s(s, p, clock[NOW], c.tick_s, r))


@large_kernel
def run_index(
    sim: SimArrays,
    life: LifeArrays,
    c: GittinsCode,
    can: AbilityCode,
    preempts: bool,
    r: RepackCode,
    until_row: int,
) -> int:
    """`life.run_rule` for a rule that goes by an index."""
    while life.counts[UNDECIDED] or sim.progress.tally[NEXT_ROW] < until_row:
        if not life.counts[UNDECIDED]:
            moved = next_instant(sim, life)
            if moved != MOVED:
                return moved
            life.counts[UNDECIDED] = 1
        if not has_room(sim, life, sim.state.counters[0].live_jobs):
            return NEED_ROOM
        _decide(sim, life, c, can, preempts, r)
        life.counts[UNDECIDED] = 0
    return STOPPED
