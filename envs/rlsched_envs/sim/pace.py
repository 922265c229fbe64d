"""How fast running jobs go, compiled: their ends are planned anew where their speed has changed."""

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
def is_modelled(sim: SimArrays) -> bool:
    """Whether models say how fast jobs run here."""
    return MODELLED and sim.state.config[0].modelled != 0


@kernel
def draw_power(sim: SimArrays, seconds: float, until_s: float) -> None:
    """Power is drawn, and time lost, for so long; what has been watched for long enough is learnt."""
    if MODELLED and sim.state.config[0].modelled:
        physics.pass_time(sim.progress, seconds)
        if sim.progress.books[0].next_seen_s <= until_s:
            lessons.learn_due(sim.progress, sim.state, until_s)


@kernel
def count_allocated(sim: SimArrays, slot: int, sign: int) -> None:
    """A slot has its GPUs (sign 1) or is about to give them back (-1); who shares them adds nothing."""
    s = sim.state
    if not physics.is_joint(s, slot):
        sim.progress.run[0].allocated_milli += sign * s.job.gpus[slot] * s.job.share_milli[slot]


@kernel
def _plan_end(sim: SimArrays, slot: int) -> None:
    """Queue the end of a settled job at its present rate; an end that was queued before is forgotten."""
    if sim.progress.work.planned[slot]:
        forget_end(sim.progress, slot)
    push_end(sim.progress, physics.end_s(sim.progress, slot, sim.progress.run[0].now_s), slot)
    sim.progress.work.planned[slot] = 1


@kernel
def refresh_group(sim: SimArrays, g: int) -> None:
    """The group of GPU `g` has changed: new rates for its jobs, and new ends for those whose rate changed."""
    s, x, now_s = sim.state, sim.progress, sim.progress.run[0].now_s
    physics.refresh(x, s, g, now_s)
    lessons.watch(x, s, g, now_s)
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0 and x.work.planned[slot] != 1:
            _plan_end(sim, slot)


@kernel
def begin_attempt(sim: SimArrays, slot: int, work_s: float, limit_s: float) -> None:
    """A slot has its GPUs: its attempt begins with so much work. Needs models."""
    physics.begin(sim.progress, sim.state, slot, work_s, limit_s, sim.progress.run[0].now_s)
    if sim.state.job.head[slot] < 0:
        physics.enter_without_gpus(sim.progress, sim.state, slot)
        _plan_end(sim, slot)
    else:
        physics.enter(sim.progress, sim.state, slot)
        refresh_group(sim, sim.progress.work.first_gpu[slot])


@kernel
def settled_s(sim: SimArrays, slot: int) -> float:
    """Write down what a running job has done and drawn. Returns the work of its attempt so far, seconds."""
    now_s = sim.progress.run[0].now_s
    if MODELLED and sim.state.config[0].modelled:
        physics.settle(sim.progress, sim.state, slot, now_s)
        return sim.progress.work.done_s[slot]
    return now_s - sim.state.job.start_s[slot]


@kernel
def note_left(sim: SimArrays, slot: int) -> None:
    """A settled slot has given its GPUs back: whoever shared them goes on at another rate."""
    if MODELLED and sim.state.config[0].modelled and physics.leave(sim.progress, sim.state, slot):
        refresh_group(sim, sim.progress.work.first_gpu[slot])


@kernel
def left_others(sim: SimArrays, slot: int) -> bool:
    """Whether a job whose GPUs have just been taken shared them, all whole, with jobs that stay."""
    if not MODELLED or not sim.state.config[0].modelled or sim.progress.work.first_gpu[slot] < 0:
        return False
    whole = sim.state.demand.share_milli[sim.state.job.demand[slot]] == WHOLE_GPU_MILLI
    return whole and tenants_of(sim.state, sim.progress.work.first_gpu[slot]) > 0
