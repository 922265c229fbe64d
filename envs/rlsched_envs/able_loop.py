"""The compiled loop of runs with models: rules that may share GPUs, choose clocks and move cores."""

from __future__ import annotations

from rlsched.decide.rules import PLAIN, RuleCode, next_move
from rlsched.jit import kernel, large_kernel, wide
from rlsched_envs.able_starts import BY_RULE, join, place, reclock
from rlsched_envs.life import has_room, next_instant, note_start
from rlsched_envs.life_arrays import NEED_ROOM, UNDECIDED, LifeArrays
from rlsched_envs.simulation import MOVED, NEXT_ROW, NOW, STOPPED, SimArrays, nothing_new


@large_kernel
def _decide(sim: SimArrays, life: LifeArrays, rule: RuleCode) -> None:
    """All decisions of one instant, partition by partition."""
    part, now_s = sim.state.derived.part, sim.progress.clock[NOW]
    for p in range(part.shape[0]):
        slot, beside = -1, -1
        if rule.kind != PLAIN or not nothing_new(sim.state, p):
            slot, beside = next_move(sim.state, p, rule, now_s)
        while slot >= 0:
            if beside >= 0:
                join(sim, p, wide(slot), wide(beside), BY_RULE, rule.can)
            elif not place(sim, p, wide(slot), wide(-1), BY_RULE, rule.can):
                break
            note_start(sim, life, slot)
            slot, beside = next_move(sim.state, p, rule, now_s)
        reclock(sim, wide(p), rule.can)
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
        if not has_room(sim, life, sim.state.counters[0].live_jobs - sim.state.derived.running_len[0]):
            return NEED_ROOM
        _decide(sim, life, rule)
        life.counts[UNDECIDED] = 0
    return STOPPED
