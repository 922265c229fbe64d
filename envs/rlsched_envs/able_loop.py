"""The compiled loop of runs with models: rules that may share GPUs, choose clocks and move cores."""

from __future__ import annotations

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import LIVE_JOBS, MAX_TENANTS
from rlsched.cluster.choose import choose
from rlsched.decide.abilities import AbilityCode, clock_for, cores_for, join_cores
from rlsched.decide.rules import PLAIN, RuleCode, next_move
from rlsched.jit import kernel, large_kernel
from rlsched.models.speed import gpu_kind
from rlsched_envs.life import NEED_ROOM, UNDECIDED, LifeArrays, has_room, next_instant, note_start
from rlsched_envs.simulation import MOVED, NEXT_ROW, NOW, STOPPED, SimArrays, nothing_new


@kernel
def place(sim: SimArrays, p: int, slot: int, node: int, can: AbilityCode) -> bool:
    """Give a waiting job free GPUs of partition `p`, with the clock and the cores that a rule gives it."""
    s, scratch, now_s = sim.state, sim.progress.scratch, sim.progress.clock[NOW]
    host = choose(s, p, slot, node, scratch)
    if host < 0:
        return False
    gpus = scratch[: s.job.gpus[slot]]
    clock = 1.0
    if gpus.shape[0] > 0:
        clock = clock_for(s, p, slot, gpu_kind(s, gpus[0]), can)
        s.job.cpu_milli_each[slot] = cores_for(s, slot, gpus, can)
    ledger.allocate(s, slot, gpus, host, p, s.job.share_milli[slot], clock, now_s)
    return True


@kernel
def join(sim: SimArrays, p: int, slot: int, beside: int, can: AbilityCode) -> None:
    """Let a waiting job share the GPUs of a running one."""
    s = sim.state
    kind = gpu_kind(s, s.job.head[beside] // MAX_TENANTS)
    cores, clock = join_cores(s, slot, beside, kind), clock_for(s, p, slot, kind, can)
    ledger.join(s, slot, beside, cores, clock, sim.progress.clock[NOW])


@large_kernel
def _decide(sim: SimArrays, life: LifeArrays, rule: RuleCode) -> None:
    """All decisions of one instant, partition by partition."""
    part, now_s = sim.state.derived.part, sim.progress.clock[NOW]
    for p in range(part.shape[0]):
        if rule.kind == PLAIN and nothing_new(sim.state, p):
            continue
        slot, beside = next_move(sim.state, p, rule, now_s)
        while slot >= 0:
            if beside >= 0:
                join(sim, p, slot, beside, rule.can)
            elif not place(sim, p, slot, -1, rule.can):
                break
            note_start(sim, life, slot)
            slot, beside = next_move(sim.state, p, rule, now_s)
        part.seen_changes[p], part.seen_arrivals[p] = part.changes[p], part.arrivals[p]


@kernel
def run_rule(sim: SimArrays, life: LifeArrays, rule: RuleCode, until_row: int) -> int:
    """`life.run_rule`, with abilities."""
    while life.counts[UNDECIDED] or sim.progress.tally[NEXT_ROW] < until_row:
        if not life.counts[UNDECIDED]:
            moved = next_instant(sim, life)
            if moved != MOVED:
                return moved
            life.counts[UNDECIDED] = 1
        if not has_room(sim, life, sim.state.counters[LIVE_JOBS] - sim.state.derived.running_len[0]):
            return NEED_ROOM
        _decide(sim, life, rule)
        life.counts[UNDECIDED] = 0
    return STOPPED
