"""Compiled actions on jobs: `start` and `preempt`.

The other functions are parts of these actions.
"""

from __future__ import annotations

import numpy as np

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import MAX_TENANTS, Records
from rlsched.cluster.choose import choose
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.kernels import tenants_of
from rlsched.cluster.loans import withdraw_one
from rlsched.cluster.speed import gpu_kind
from rlsched.compile.jit import kernel, shared
from rlsched.decide.clocks import clock_for, clock_on, cores_for, join_cores
from rlsched.decide.constants import MODELLED, PRICED
from rlsched.decide.move import BY_OPTIONS, Move
from rlsched.decide.options import StartOptions
from rlsched.decide.order import queue
from rlsched.decide.plans.plan import node_to_place
from rlsched.workload.dependencies import STARTED
from rlsched_envs.sim import lessons, physics
from rlsched_envs.sim.attempt_arrays import ENDED, FAILED, ONGOING, PREEMPTED, TIMEOUT
from rlsched_envs.sim.constants import LOGGED, PHYSICS
from rlsched_envs.sim.eligibility import resolve
from rlsched_envs.sim.sim_arrays import SimArrays, forget_end, push_end


@kernel
def draw_power(sim: SimArrays, seconds: float, until_s: float) -> None:
    """Add the energy of the `seconds` before `until_s`, and the work lost to slowdowns, to the run's totals.

    Also learns the speeds of pairs of jobs that have shared GPUs long enough (`lessons`).
    """
    if PHYSICS and sim.state.config[0].modelled:
        physics.pass_time(sim.progress, until_s - seconds, until_s)
        if sim.state.config[0].limited:
            physics.pass_limit(sim.progress, sim.state, seconds)
        if PRICED and sim.progress.books[0].unused_sleep > 0.0:
            physics.pass_unused(sim.progress, sim.state, until_s - seconds, until_s)
        if sim.progress.books[0].next_seen_s <= until_s:
            lessons.learn_due(sim.progress, sim.state, until_s)


@kernel
def count_allocated(sim: SimArrays, slot: int, sign: int) -> None:
    """Count the GPUs of a job as allocated (`sign` 1) or released (-1).

    Whole GPUs that several jobs share are counted once.
    """
    s = sim.state
    if not (MODELLED and s.config[0].modelled and physics.is_joint(s, slot)):
        sim.progress.run[0].allocated_milli += sign * s.job.gpus[slot] * s.job.share_milli[slot]


@kernel
def _plan_end(sim: SimArrays, slot: int) -> None:
    """Plan the end of a job at its current rate, in place of the end planned before.

    The job's work must be up to date (`physics.settle`).
    """
    if sim.progress.work.planned[slot]:
        forget_end(sim.progress, slot)
    push_end(sim.progress, physics.end_s(sim.progress, slot, sim.progress.run[0].now_s), slot)
    sim.progress.work.planned[slot] = 1


@kernel
def refresh_group(sim: SimArrays, g: int) -> None:
    """Update the rates of the jobs on GPU `g` after a change, and plan their ends again if needed."""
    s, x, now_s = sim.state, sim.progress, sim.progress.run[0].now_s
    physics.refresh(x, s, g, now_s)
    lessons.watch(x, s, g, now_s)
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0 and x.work.planned[slot] != 1:
            _plan_end(sim, slot)


@kernel
def hold_clocks(sim: SimArrays) -> None:
    """Lower or raise the clocks of running jobs to what the power limit permits now. Requires models."""
    s, now_s = sim.state, sim.progress.run[0].now_s
    if not s.config[0].limited:
        return
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        g, clock = s.job.head[slot] // MAX_TENANTS, s.gpu.clock_frac[s.job.head[slot] // MAX_TENANTS]
        if s.job.head[slot] < 0:
            continue
        if clock > physics.group_cap(s, g) or clock < physics.group_clock(s, g, now_s):
            refresh_group(sim, g)


@kernel
def begin_attempt(sim: SimArrays, slot: int, work_s: float, limit_s: float) -> None:
    """Start an attempt of the job in a slot, whose resources are allocated. Requires models.

    Lent cores that the job needs are withdrawn from other jobs, which get slower. `work_s`: work of the
    attempt, seconds at full speed. `limit_s`: time limit, nan: none.
    """
    physics.begin(sim.progress, slot, work_s, limit_s, sim.progress.run[0].now_s)
    if sim.state.job.head[slot] < 0:
        physics.enter_without_gpus(sim.progress, sim.state, slot)
        _plan_end(sim, slot)
    else:
        physics.enter(sim.progress, sim.state, slot)
        refresh_group(sim, sim.progress.work.first_gpu[slot])
    borrower = withdraw_one(sim.state, slot)
    while borrower >= 0:
        refresh_group(sim, sim.progress.work.first_gpu[borrower])
        borrower = withdraw_one(sim.state, slot)


@kernel
def settled_s(sim: SimArrays, slot: int) -> float:
    """Return the work that the current attempt of a running job has done, seconds at full speed.

    With models, also adds the job's work and energy up to now to its totals (`physics.settle`).
    """
    now_s = sim.progress.run[0].now_s
    if PHYSICS and sim.state.config[0].modelled:
        physics.settle(sim.progress, sim.state, slot, now_s)
        return sim.progress.work.done_s[slot]
    return now_s - sim.state.job.start_s[slot]


@kernel
def note_left(sim: SimArrays, slot: int) -> None:
    """After a job has left its GPUs, update the rates of the other jobs on these GPUs."""
    if PHYSICS and sim.state.config[0].modelled and physics.leave(sim.progress, sim.state, slot):
        refresh_group(sim, sim.progress.work.first_gpu[slot])


@kernel
def left_others(sim: SimArrays, slot: int) -> bool:
    """Return whether other jobs still run on the GPUs that a job has released.

    False for a job that requested only a part of a GPU.
    """
    if not MODELLED or not sim.state.config[0].modelled or sim.progress.work.first_gpu[slot] < 0:
        return False
    whole = sim.state.demand.share_milli[sim.state.job.demand[slot]] == WHOLE_GPU_MILLI
    return whole and tenants_of(sim.state, sim.progress.work.first_gpu[slot]) > 0


@kernel
def has_room(sim: SimArrays, jobs: int) -> bool:
    """Return whether the attempt log has room for `jobs` more attempts, however many GPUs they use."""
    log = sim.log
    if log.attempts.shape[0] - log.counters[0].attempts < jobs:
        return False
    gpus = MAX_TENANTS * sim.state.gpu.shape[0]
    return log.attempt_gpu.shape[0] == 0 or log.attempt_gpu.shape[0] - log.counters[0].attempt_gpus >= gpus


@kernel
def log_start(sim: SimArrays, slot: int) -> None:
    """Log the start of an attempt, and plan its end. The attempt log must have room (`has_room`)."""
    s, r, log = sim.state, sim.progress, sim.log
    row, now_s, jobs = r.ends.row[slot], r.run[0].now_s, sim.log.jobs
    at = log.counters[0].attempts
    log.counters[0].attempts += 1
    jobs.latest[row] = at
    one = log.attempts
    one.row[at], one.attempt[at], one.gpus[at] = row, s.job.attempt[slot], s.job.gpus[slot]
    one.start_s[at], one.end_s[at], one.useful_s[at] = now_s, np.nan, 0.0
    one.done_s[at] = one.share_s[at] = one.used_s[at] = one.clock_s[at] = 0.0
    one.energy_j[at] = r.outcome.energy_j[row] if PHYSICS and s.config[0].modelled else 0.0
    one.reason[at], one.gpu_at[at] = ONGOING, log.counters[0].attempt_gpus
    if log.attempt_gpu.shape[0] > 0:
        place = s.job.head[slot]
        while place >= 0:
            log.attempt_gpu[log.counters[0].attempt_gpus] = place // MAX_TENANTS
            log.counters[0].attempt_gpus += 1
            place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    if s.job.attempt[slot] == 1 and jobs.children[row] > 0:
        resolve(log, row, STARTED)
    reason = ENDED
    if s.job.attempt[slot] == 1 and jobs.duration_s[row] > jobs.profile_s[row]:
        s.job.overhead_left_s[slot] = jobs.profile_s[row]
    takes_s = s.job.overhead_left_s[slot] + (jobs.duration_s[row] - jobs.saved_s[row])
    if jobs.failures[row] < jobs.failures_given[row]:
        left_s = log.fail_after_s[jobs.first_failure[row] + jobs.failures[row]] - jobs.run_s[row]
        if left_s < takes_s:
            takes_s, reason = max(left_s, 0.0), FAILED
    if PHYSICS and s.config[0].modelled:
        jobs.ends_by[row] = reason
        begin_attempt(sim, slot, takes_s, jobs.limit_s[row])
        return
    if jobs.limit_s[row] < takes_s:
        takes_s, reason = jobs.limit_s[row], TIMEOUT
    end_s = now_s + takes_s
    if not np.isnan(sim.truth.fixed_end_s[row]):
        end_s, reason = max(sim.truth.fixed_end_s[row], now_s), ENDED
    jobs.ends_by[row] = reason
    push_end(r, end_s, slot)


@kernel
def _work_kept_s(jobs: Records, row: int, done_s: float, reason: int, recorded: bool) -> float:
    """Return the work of an attempt that later attempts need not repeat, seconds.

    A job with a checkpoint interval (`checkpoint_s`) keeps its work up to the last checkpoint; with the
    interval 0, it keeps all its work. A job without an interval (nan) keeps all its work if it is preempted,
    and loses its work if the job, its node or a co-tenant fails. A job that reaches its time limit loses no
    work. `recorded`: whether the job ends at a recorded time (`fixed_end_s`); its duration is then unknown.
    """
    left_s = done_s if recorded else jobs.duration_s[row] - jobs.saved_s[row]
    if reason == ENDED:
        return left_s
    done_s = min(done_s, left_s)
    every_s = jobs.checkpoint_s[row]
    if reason == TIMEOUT or every_s == 0.0:
        return done_s
    if np.isnan(every_s):
        return done_s if reason == PREEMPTED else 0.0
    saved_s = np.floor((jobs.saved_s[row] + done_s) / every_s) * every_s
    return max(saved_s - jobs.saved_s[row], 0.0)


@kernel
def log_end(sim: SimArrays, slot: int, reason: int) -> None:
    """Log the end of the attempt in a slot; add the work that no later attempt repeats to the saved work."""
    r, jobs, one = sim.progress, sim.log.jobs, sim.log.attempts
    row, now_s = r.ends.row[slot], r.run[0].now_s
    at = jobs.latest[row]
    done_s = now_s - one.start_s[at]
    if PHYSICS and sim.state.config[0].modelled:
        done_s = settled_s(sim, slot)
    worked_s = max(done_s - sim.state.job.overhead_left_s[slot], 0.0)
    recorded = not np.isnan(sim.truth.fixed_end_s[row])
    kept_s = _work_kept_s(jobs, row, worked_s, reason, recorded)
    one.end_s[at], one.reason[at], one.useful_s[at] = now_s, reason, kept_s
    one.done_s[at] = done_s
    if PHYSICS and sim.state.config[0].modelled:
        one.energy_j[at] = r.outcome.energy_j[row] - one.energy_j[at]
        one.share_s[at], one.used_s[at] = r.work.share_s[slot], r.work.used_s[slot]
        one.clock_s[at] = r.work.clock_s[slot]
    jobs.saved_s[row] += kept_s
    sim.state.job.saved_s[slot] = jobs.saved_s[row]
    jobs.run_s[row] += done_s
    if reason == FAILED:
        jobs.failures[row] += 1
        jobs.run_s[row] = 0.0


@shared
@kernel
def start(sim: SimArrays, p: int, move: Move, o: StartOptions) -> bool:
    """Start the waiting job `move.start` in partition `p`; return False if it does not fit there."""
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
    """Allocate GPUs of partition `p` to a waiting job; return False if the job does not fit.

    `node`: index of a node, or BY_RULE or NO_PREFERENCE (`rlsched.cluster.choose.choose`).
    """
    s, scratch = sim.state, sim.progress.scratch
    host = choose(s, p, slot, node, scratch)
    if host < 0:
        return False
    gpus, share_milli = scratch[: s.job.gpus[slot]], s.job.share_milli[slot]
    ledger.allocate(s, slot, gpus, host, p, share_milli, 1.0, sim.progress.run[0].now_s)
    return True


@kernel
def _allocate_modelled(sim: SimArrays, p: int, move: Move, o: StartOptions) -> bool:
    """Allocate GPUs of partition `p` to the job of a move; return False if the job does not fit.

    The clock and the CPU cores of the job follow from the move and from the start options `o`.
    """
    s, scratch, slot, clock = sim.state, sim.progress.scratch, move.start, move.clock
    place = move.place if move.place >= 0 else node_to_place(s, p, slot, o, move.place)
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
    """Start a waiting job on the GPUs of a running job; both jobs share these GPUs from now on."""
    s, slot, clock = sim.state, move.start, move.clock
    kind = gpu_kind(s, s.job.head[move.share_with] // MAX_TENANTS)
    if clock == BY_OPTIONS:
        clock = clock_for(s, p, slot, kind, o)
    cores = join_cores(s, slot, move.share_with, kind)
    ledger.join(s, slot, move.share_with, cores, clock, sim.progress.run[0].now_s)


@kernel
def _withdraw_loans(sim: SimArrays, slot: int) -> None:
    """If a started job needs cores that are lent to other jobs, withdraw these cores from the other jobs.

    Use this function only in runs in which the number of cores does not affect speeds.
    """
    while withdraw_one(sim.state, slot) >= 0:
        pass


@kernel
def note_start(sim: SimArrays, slot: int) -> None:
    """Record in the run the start of a job whose resources are already allocated, and plan the job's end."""
    truth, r = sim.truth, sim.progress
    row, now_s = r.ends.row[slot], r.run[0].now_s
    if np.isnan(r.outcome.start_s[row]):
        r.outcome.start_s[row] = now_s
    if MODELLED and sim.state.config[0].modelled:
        head = sim.state.job.head[slot]
        r.work.first_gpu[slot] = head // MAX_TENANTS if head >= 0 else -1
    count_allocated(sim, slot, 1)
    if MODELLED and not PHYSICS:
        _withdraw_loans(sim, slot)
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
    if PHYSICS and sim.state.config[0].modelled:
        begin_attempt(sim, slot, work_s, np.nan)
    else:
        push_end(r, end_s if end_s == end_s else now_s + work_s, slot)


@shared
@kernel
def preempt(sim: SimArrays, slot: int) -> None:
    """Preempt a running job and requeue it.

    Without an attempt log, the job keeps all its work. The run's `queued_s` is then increased by the restart
    cost, less the unspent part of the job's previous restart cost. At the end of such a run, `queued_s` is
    the sum of JCT - duration over all jobs, job-seconds.
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
    """Record in the run a preemption already applied to the cluster's state. Requires the attempt log."""
    s, run = sim.state, sim.progress.run[0]
    forget_end(sim.progress, slot)
    log_end(sim, slot, PREEMPTED)
    if not left_others(sim, slot):
        run.allocated_milli -= s.job.gpus[slot] * s.job.share_milli[slot]
    note_left(sim, slot)
    _charge_restart(sim, slot)
    queue.rank(s, slot, run.now_s)


@kernel
def _charge_restart(sim: SimArrays, slot: int) -> None:
    """Set the restart cost of a preempted job, and count the preemption."""
    restart_s = sim.progress.run[0].restart_s
    if LOGGED:
        restart_s = sim.log.jobs.restart_s[sim.progress.ends.row[slot]]
    sim.state.job.overhead_left_s[slot] = restart_s
    sim.progress.run[0].preemptions += 1


@kernel
def _save_all(sim: SimArrays, slot: int, restart_s: float) -> None:
    """Save all work of a preempted job, and update `queued_s`.

    `queued_s` increases by `restart_s`, less the unspent part of the job's previous restart cost.
    """
    job, done_s = sim.state.job, settled_s(sim, slot)
    left_s = sim.truth.duration_s[sim.progress.ends.row[slot]] - job.saved_s[slot]
    sim.progress.run[0].queued_s += restart_s - max(job.overhead_left_s[slot] - done_s, 0.0)
    job.saved_s[slot] += min(max(done_s - job.overhead_left_s[slot], 0.0), left_s)


@kernel
def give_back(sim: SimArrays, slot: int) -> None:
    """Release the GPUs of a job, and update the rates of its co-tenants.

    The job's work and energy must be up to date (`physics.settle`).
    """
    s = sim.state
    ledger.release(s, slot, sim.progress.run[0].now_s)
    if not left_others(sim, slot):
        sim.progress.run[0].allocated_milli -= s.job.gpus[slot] * s.job.share_milli[slot]
    note_left(sim, slot)
