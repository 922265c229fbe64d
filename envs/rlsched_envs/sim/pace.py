"""Speed of running jobs, compiled: ends are planned again if the speed changes."""

from __future__ import annotations

from rlsched.cluster.arrays import MAX_TENANTS
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.kernels import tenants_of
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED
from rlsched_envs.sim import lessons, physics
from rlsched_envs.sim.heap import forget_end, push_end
from rlsched_envs.sim.sim_arrays import SimArrays


@kernel
def draw_power(sim: SimArrays, seconds: float, until_s: float) -> None:
    """Account power and lost time for this duration; learn from pairs that were watched long enough."""
    if MODELLED and sim.state.config[0].modelled:
        physics.pass_time(sim.progress, seconds)
        if sim.progress.books[0].next_seen_s <= until_s:
            lessons.learn_due(sim.progress, sim.state, until_s)


@kernel
def count_allocated(sim: SimArrays, slot: int, sign: int) -> None:
    """Count the GPUs of a slot: allocated (sign 1) or to be released (-1); a job that shares adds nothing."""
    s = sim.state
    if not physics.is_joint(s, slot):
        sim.progress.run[0].allocated_milli += sign * s.job.gpus[slot] * s.job.share_milli[slot]


@kernel
def _plan_end(sim: SimArrays, slot: int) -> None:
    """Plan the end of a settled job at its current rate; forgets an earlier planned end."""
    if sim.progress.work.planned[slot]:
        forget_end(sim.progress, slot)
    push_end(sim.progress, physics.end_s(sim.progress, slot, sim.progress.run[0].now_s), slot)
    sim.progress.work.planned[slot] = 1


@kernel
def refresh_group(sim: SimArrays, g: int) -> None:
    """After a change in the group of GPU `g`, update the rates of its jobs, and ends whose rate changed."""
    s, x, now_s = sim.state, sim.progress, sim.progress.run[0].now_s
    physics.refresh(x, s, g, now_s)
    lessons.watch(x, s, g, now_s)
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0 and x.work.planned[slot] != 1:
            _plan_end(sim, slot)


@kernel
def begin_attempt(sim: SimArrays, slot: int, work_s: float, limit_s: float) -> None:
    """Start the attempt of a slot with allocated GPUs and this work. Needs models."""
    physics.begin(sim.progress, sim.state, slot, work_s, limit_s, sim.progress.run[0].now_s)
    if sim.state.job.head[slot] < 0:
        physics.enter_without_gpus(sim.progress, sim.state, slot)
        _plan_end(sim, slot)
    else:
        physics.enter(sim.progress, sim.state, slot)
        refresh_group(sim, sim.progress.work.first_gpu[slot])


@kernel
def settled_s(sim: SimArrays, slot: int) -> float:
    """Settle work and energy of a running job. Returns the work of its attempt so far, seconds."""
    now_s = sim.progress.run[0].now_s
    if MODELLED and sim.state.config[0].modelled:
        physics.settle(sim.progress, sim.state, slot, now_s)
        return sim.progress.work.done_s[slot]
    return now_s - sim.state.job.start_s[slot]


@kernel
def note_left(sim: SimArrays, slot: int) -> None:
    """A settled slot has released its GPUs: update the rates of jobs that shared them."""
    if MODELLED and sim.state.config[0].modelled and physics.leave(sim.progress, sim.state, slot):
        refresh_group(sim, sim.progress.work.first_gpu[slot])


@kernel
def left_others(sim: SimArrays, slot: int) -> bool:
    """Whether the released GPUs of a job were shared, as whole GPUs, with jobs that stay."""
    if not MODELLED or not sim.state.config[0].modelled or sim.progress.work.first_gpu[slot] < 0:
        return False
    whole = sim.state.demand.share_milli[sim.state.job.demand[slot]] == WHOLE_GPU_MILLI
    return whole and tenants_of(sim.state, sim.progress.work.first_gpu[slot]) > 0
