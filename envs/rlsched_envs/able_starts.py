"""Starts with abilities, compiled: on free GPUs or beside a running job, with a clock and with cores."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import MAX_TENANTS
from rlsched.cluster.choose import choose
from rlsched.decide.abilities import AbilityCode, clock_for, cores_for, join_cores
from rlsched.decide.reclock import next_reclock
from rlsched.decide.rules import RuleCode, next_move
from rlsched.jit import large_kernel, wide
from rlsched.models.speed import gpu_kind
from rlsched_envs.physics import JOBS_J, JOBS_W, LOST_RATE, LOST_S
from rlsched_envs.simulation import (
    FINISHED,
    MOVED,
    NEED_SLOTS,
    NEXT_ROW,
    NOW,
    QUEUED_S,
    STARTS,
    STOPPED,
    SimArrays,
    next_instant,
    note_start,
    nothing_new,
    refresh_group,
)

BY_RULE: Final = -1.0
"""As a clock: the one that the abilities' rule gives."""


@large_kernel
def place(sim: SimArrays, p: int, slot: int, node: int, clock: float, can: AbilityCode) -> bool:
    """Give a waiting job free GPUs of partition `p`, with this clock and the cores that a rule gives it."""
    s, scratch, now_s = sim.state, sim.progress.scratch, sim.progress.clock[NOW]
    host = choose(s, p, slot, node, scratch)
    if host < 0:
        return False
    gpus = scratch[: s.job.gpus[slot]]
    if gpus.shape[0] > 0:
        if clock == BY_RULE:
            clock = clock_for(s, p, slot, gpu_kind(s, gpus[0]), can)
        s.job.cpu_milli_each[slot] = cores_for(s, slot, gpus, can)
    ledger.allocate(s, slot, gpus, host, p, s.job.share_milli[slot], abs(clock), now_s)
    return True


@large_kernel
def join(sim: SimArrays, p: int, slot: int, beside: int, clock: float, can: AbilityCode) -> None:
    """Let a waiting job share the GPUs of a running one."""
    s = sim.state
    kind = gpu_kind(s, s.job.head[beside] // MAX_TENANTS)
    if clock == BY_RULE:
        clock = clock_for(s, p, slot, kind, can)
    ledger.join(s, slot, beside, join_cores(s, slot, beside, kind), clock, sim.progress.clock[NOW])


@large_kernel
def reclock(sim: SimArrays, p: int, can: AbilityCode) -> int:
    """Give the running jobs of partition `p` the clocks that a rule would choose now. Returns how many."""
    s, now_s, changed = sim.state, sim.progress.clock[NOW], 0
    position, clock = next_reclock(s, p, 0, now_s, can)
    while position >= 0:
        slot = s.derived.slot.running[position]
        ledger.set_clock(s, slot, clock, now_s)
        refresh_group(sim, sim.progress.run.first_gpu[slot])
        changed += 1
        position, clock = next_reclock(s, p, position + 1, now_s, can)
    return changed


@large_kernel
def _decide(sim: SimArrays, rule: RuleCode) -> None:
    """All decisions of one instant, partition by partition."""
    part, now_s = sim.state.derived.part, sim.progress.clock[NOW]
    for p in range(part.shape[0]):
        if nothing_new(sim.state, p):
            continue
        slot, beside = next_move(sim.state, p, rule, now_s)
        while slot >= 0:
            if beside >= 0:
                join(sim, p, wide(slot), wide(beside), BY_RULE, rule.can)
            elif not place(sim, p, wide(slot), wide(-1), BY_RULE, rule.can):
                break
            note_start(sim, slot)
            slot, beside = next_move(sim.state, p, rule, now_s)
        part.seen_changes[p], part.seen_arrivals[p] = part.changes[p], part.arrivals[p]


@large_kernel
def run_able(sim: SimArrays, rule: RuleCode, until_row: int) -> int:
    """`simulation.run_rule` with abilities, for jobs that run once."""
    while sim.progress.tally[NEXT_ROW] < until_row:
        moved = next_instant(sim)
        if moved != MOVED:
            return moved
        _decide(sim, rule)
    return STOPPED


@large_kernel
def run_able_recording(
    sim: SimArrays,
    rule: RuleCode,
    at_s: NDArray[np.float64],
    cost_s: NDArray[np.float64],
    slope: NDArray[np.float64],
    energy_j: NDArray[np.float64],
    power_w: NDArray[np.float64],
) -> int:
    """Run a rule to the end; note at every instant what it has cost so far, and how fast that grows.

    Time: queueing and time lost while running, job-seconds, and jobs that wait plus time lost a second.
    Energy: of the jobs. The arrays hold 2 T + 1 instants. Returns how many there were, -1 if slots ran out.
    """
    r, sums, k = sim.progress, sim.progress.clock, 0
    while True:
        moved = next_instant(sim)
        if moved == NEED_SLOTS:
            return -1
        if moved == FINISHED:
            return k
        _decide(sim, rule)
        at_s[k] = r.clock[NOW]
        cost_s[k] = r.clock[QUEUED_S] + sums[LOST_S]
        slope[k] = r.tally[NEXT_ROW] - r.tally[STARTS] + sums[LOST_RATE]
        energy_j[k], power_w[k] = sums[JOBS_J], sums[JOBS_W]
        k += 1
