"""Actions of a rule or policy on jobs, compiled: start and preempt."""

from __future__ import annotations

import numpy as np

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import MAX_TENANTS
from rlsched.cluster.choose import choose
from rlsched.cluster.speed import gpu_kind
from rlsched.compile.jit import kernel
from rlsched.decide.clocks import clock_for, clock_on, cores_for, join_cores
from rlsched.decide.constants import MODELLED
from rlsched.decide.move import BY_OPTIONS, Move
from rlsched.decide.options import StartOptions
from rlsched.decide.order import queue
from rlsched.decide.order.keys import order_key
from rlsched.decide.plans.alone import alone_plan
from rlsched_envs.sim.attempt_arrays import PREEMPTED
from rlsched_envs.sim.attempts import log_end, log_start
from rlsched_envs.sim.constants import LOGGED
from rlsched_envs.sim.heap import forget_end, push_end
from rlsched_envs.sim.pace import begin_attempt, count_allocated, left_others, note_left, settled_s
from rlsched_envs.sim.sim_arrays import SimArrays


@kernel
def start(sim: SimArrays, p: int, move: Move, o: StartOptions) -> bool:
    """Start the job of a move in partition `p`; False if there is no place for it."""
    if not MODELLED or not sim.state.config[0].modelled:
        if not _allocate(sim, p, move.start, move.place):
            return False
    elif move.share_with >= 0:
        _join(sim, p, move, o)
    elif not _allocate_modelled(sim, p, move, o):
        return False
    queue.started(sim.state, move.start, sim.progress.run[0].now_s)
    note_start(sim, move.start)
    return True


@kernel
def _allocate(sim: SimArrays, p: int, slot: int, node: int) -> bool:
    """Allocate whole GPUs of partition `p` to a waiting job on `node`, or by the placement rule (-1)."""
    s, scratch = sim.state, sim.progress.scratch
    host = choose(s, p, slot, node, scratch)
    if host < 0:
        return False
    gpus, share_milli = scratch[: s.job.gpus[slot]], s.job.share_milli[slot]
    ledger.allocate(s, slot, gpus, host, p, share_milli, 1.0, sim.progress.run[0].now_s)
    return True


@kernel
def _allocate_modelled(sim: SimArrays, p: int, move: Move, o: StartOptions) -> bool:
    """`_allocate`, with the clock and the cores of the start options."""
    s, scratch, slot, clock = sim.state, sim.progress.scratch, move.start, move.clock
    place = move.place if move.place >= 0 else alone_plan(s, p, slot, o).node
    host = choose(s, p, slot, place, scratch)
    if host < 0:
        return False
    gpus = scratch[: s.job.gpus[slot]]
    if clock == BY_OPTIONS:
        clock = clock_on(s, p, slot, gpus, o)
    if gpus.shape[0] > 0:
        s.job.cpu_milli_each[slot] = cores_for(s, slot, gpus, o)
    ledger.allocate(s, slot, gpus, host, p, s.job.share_milli[slot], clock, sim.progress.run[0].now_s)
    return True


@kernel
def _join(sim: SimArrays, p: int, move: Move, o: StartOptions) -> None:
    """Let a waiting job share the GPUs of a running one."""
    s, slot, clock = sim.state, move.start, move.clock
    kind = gpu_kind(s, s.job.head[move.share_with] // MAX_TENANTS)
    if clock == BY_OPTIONS:
        clock = clock_for(s, p, slot, kind, o)
    cores = join_cores(s, slot, move.share_with, kind)
    ledger.join(s, slot, move.share_with, cores, clock, sim.progress.run[0].now_s)


@kernel
def note_start(sim: SimArrays, slot: int) -> None:
    """Record the start of a slot that was just allocated, and plan its end."""
    truth, r = sim.truth, sim.progress
    row, now_s = r.ends.row[slot], r.run[0].now_s
    if np.isnan(r.outcome.start_s[row]):
        r.outcome.start_s[row] = now_s
    count_allocated(sim, slot, 1)
    r.run[0].starts += 1
    if LOGGED:
        log_start(sim, slot)
        return
    if r.placed_gpu.shape[0] > 0:
        place, at = sim.state.job.head[slot], r.placed_at[row]
        while place >= 0:
            r.placed_gpu[at] = place // MAX_TENANTS
            at += 1
            place = sim.state.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    end_s, job = truth.fixed_end_s[row], sim.state.job
    work_s = job.overhead_left_s[slot] + (truth.duration_s[row] - job.saved_s[slot])
    if MODELLED and sim.state.config[0].modelled:
        begin_attempt(sim, slot, work_s, np.nan)
    else:
        push_end(r, end_s if end_s == end_s else now_s + work_s, slot)


@kernel
def preempt(sim: SimArrays, slot: int) -> None:
    """Preempt a running job and requeue it.

    Without an attempt log the job has saved all of its work. Its restart cost counts as queueing at once,
    less the unpaid part of the previous one: at the end of a run, `queued_s` is the JCT in excess of the
    jobs' durations.
    """
    s, now_s = sim.state, sim.progress.run[0].now_s
    forget_end(sim.progress, slot)
    if LOGGED:
        log_end(sim, slot, PREEMPTED)
    else:
        _save_all(sim, slot, sim.progress.run[0].restart_s)
    give_back(sim, slot)
    s.job.preemptions[slot] += 1
    _charge_restart(sim, slot)
    queue.requeue(s, slot, now_s)


@kernel
def note_preemption(sim: SimArrays, slot: int) -> None:
    """Record that the ledger has preempted and requeued a slot. Requires the attempt log."""
    s, run = sim.state, sim.progress.run[0]
    forget_end(sim.progress, slot)
    log_end(sim, slot, PREEMPTED)
    if not left_others(sim, slot):
        run.allocated_milli -= s.job.gpus[slot] * s.job.share_milli[slot]
    note_left(sim, slot)
    _charge_restart(sim, slot)
    ledger.reorder(s, slot, order_key(s, slot, run.now_s))


@kernel
def _charge_restart(sim: SimArrays, slot: int) -> None:
    """Charge the restart cost of a preempted job."""
    restart_s = sim.progress.run[0].restart_s
    if LOGGED:
        restart_s = sim.log.jobs.restart_s[sim.progress.ends.row[slot]]
    sim.state.job.overhead_left_s[slot] = restart_s
    sim.progress.run[0].preemptions += 1


@kernel
def _save_all(sim: SimArrays, slot: int, restart_s: float) -> None:
    """Keep the work of a preempted job; the unpaid part of a restart cost is dropped."""
    job, done_s = sim.state.job, settled_s(sim, slot)
    left_s = sim.truth.duration_s[sim.progress.ends.row[slot]] - job.saved_s[slot]
    sim.progress.run[0].queued_s += restart_s - max(job.overhead_left_s[slot] - done_s, 0.0)
    job.saved_s[slot] += min(max(done_s - job.overhead_left_s[slot], 0.0), left_s)


@kernel
def give_back(sim: SimArrays, slot: int) -> None:
    """Release the GPUs of a settled job; jobs that shared them continue at another rate."""
    s = sim.state
    ledger.release(s, slot, sim.progress.run[0].now_s)
    if not left_others(sim, slot):
        sim.progress.run[0].allocated_milli -= s.job.gpus[slot] * s.job.share_milli[slot]
    note_left(sim, slot)
