"""The compiled loop of rules that look ahead: `simulation.run_rule` for `easy`, `sgf-age` and `reserve`.

A loop of its own, because those rules take longer to compile than all the rest of the simulator.
"""

from __future__ import annotations

from rlsched.decide.rules import RuleCode, next_to_start
from rlsched.jit import kernel
from rlsched_envs.simulation import MOVED, NEXT_ROW, NOW, STOPPED, SimArrays, next_instant, start_slot


@kernel
def run_rule(sim: SimArrays, rule: RuleCode, until_row: int) -> int:
    """Run any rule until the trace is over, or until `until_row` rows have arrived and been decided on."""
    while sim.progress.tally[NEXT_ROW] < until_row:
        moved = next_instant(sim)
        if moved != MOVED:
            return moved
        for p in range(sim.state.derived.part.shape[0]):
            slot = next_to_start(sim.state, p, rule, sim.progress.clock[NOW])
            while slot >= 0:
                start_slot(sim, p, slot, -1)
                slot = next_to_start(sim.state, p, rule, sim.progress.clock[NOW])
    return STOPPED
